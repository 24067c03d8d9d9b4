"""What commands import, so that they answer at once; never how long that takes."""

import json
import os
import subprocess
import sys

import pytest

from shoal.base.job_folder import JobFolder
from shoal.config.job import JobConfig

RUN = """
import runpy, sys
def tell():
    print("imported:", *sys.modules)
import atexit
atexit.register(tell)
sys.argv = ["shoal", *sys.argv[1:]]
runpy.run_module("shoal", run_name="__main__")
"""

READS_DATA = {"tensorflow", "keras", "pyarrow", "fsspec", "sqlalchemy", "shoal.data"}
ROLES = {"shoal.native", "shoal.worker", "shoal.master", "shoal.ps"}
CALLS = {"grpc", "numpy"}
CLUSTER = {"kubernetes"}
ANYTHING = READS_DATA | ROLES | CALLS | CLUSTER


def imported_by(folder, *arguments, code=0, **environment):
    """The modules in a process that has run a command, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "KUBECONFIG": str(folder / "none")} | environment,
    )
    printed, _, modules = done.stdout.rpartition("imported: ")
    assert done.returncode == code, done.stdout + done.stderr
    assert "shoal.cli" in modules.split()
    return set(modules.split()), printed + done.stderr


@pytest.fixture
def ended(tmp_path):
    """A folder with a job that has ended."""
    job = JobFolder(tmp_path / "shoal-jobs" / "over")
    job.logs.mkdir(parents=True)
    config = JobConfig(
        command="train", model_def="m.custom_model", training_data="data", job_name="over"
    )
    job.config.write_text(config.resolved().to_json())
    (job.logs / "master.log").write_text("all is over\n")
    job.result.write_text(json.dumps(RESULT))
    return tmp_path


RESULT = {"job_name": "over", "command": "train", "state": "succeeded"}


@pytest.mark.parametrize("command", [(), ("train",), ("status",), ("checkpoint",), ("analyze",)])
def test_help_needs_nothing_but_the_flags(tmp_path, command):
    modules, printed = imported_by(tmp_path, *command, "--help")
    assert "Usage: shoal" in printed
    assert not modules & (ANYTHING | {"rich", "google.protobuf"})


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["jobs"], "over"),
        (["status", "over"], "succeeded"),
        (["logs", "over"], "all is over"),
    ],
)
def test_what_is_in_a_jobs_folder_is_told_without_grpc_or_cluster(ended, command, told):
    modules, printed = imported_by(ended, *command)
    assert told in printed
    assert not modules & ANYTHING


@pytest.mark.parametrize(
    "command", [["status", "other"], ["logs", "other"], ["stop", "other"], ["delete", "other"]]
)
def test_without_a_cluster_its_library_is_not_imported(ended, command):
    modules, printed = imported_by(ended, *command, code=2)
    assert "no Kubernetes cluster is set up: there is no file" in printed
    assert not modules & ANYTHING


def test_a_cluster_is_asked_without_what_reads_data(tmp_path):
    config = tmp_path / "config"
    config.write_text("{}")  # there, and without a context
    modules, printed = imported_by(tmp_path, "status", "other", code=2, KUBECONFIG=str(config))
    assert "no Kubernetes cluster is set up: " in printed
    assert "kubernetes" in modules
    assert not modules & (READS_DATA | ROLES)


def test_a_master_is_asked_without_what_reads_data_or_the_cluster(ended):
    modules, printed = imported_by(ended, "stop", "over", code=2)
    assert "job over does not run: it has ended: succeeded" in printed
    assert "grpc" in modules
    assert not modules & (READS_DATA | ROLES | CLUSTER)
