"""Packages that commands and roles load, so that they start at once; never how long that takes.

A row of a table has all that may be loaded: what is not in it costs each start, and is imported
where it is needed instead.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import kill_job
from shoal.config.job import JobConfig
from shoal.proto.channels import rpc
from shoal.proto.wire import transport
from tests.ps.caller import Caller

ALL = {"click", "shoal.base", "shoal.checkpoints", "shoal.config", "shoal.errors", "shoal.files"}
COMMAND = ALL | {"shoal.cli", "shoal.client"}
REPORT = COMMAND | {"rich", "shoal.cluster", "shoal.result"}
MESSAGES = {"google.protobuf", "shoal.proto", "shoal.security"}
CALLS = MESSAGES | {"grpc", "numpy", "typing_extensions", "xxhash"}
READS = MESSAGES | {"google_crc32c", "numpy", "pyarrow", "shoal.data", "shoal.native"}
READS |= {"shoal.seed", "xxhash", "cloudpickle"}  # the last by pyarrow, where it is installed
ROLE = ALL | CALLS | {"shoal.native"}
SERVER = ROLE | {"shoal.metrics", "shoal.ps"}
MASTER = ROLE | {"shoal.cluster", "shoal.master", "shoal.seed"}

NO_CLUSTER = "no Kubernetes cluster is set up: there is no file"
TRAIN = "train --model-zoo . --model-def m.custom_model --training-data d.csv --job-name new"

# Of a command: the exit code, a part of what it prints, and what it may load.
COMMANDS = {
    "--help": (0, "Usage: shoal", COMMAND),
    "train --help": (0, "Usage: shoal", COMMAND),
    "status --help": (0, "Usage: shoal", COMMAND),
    "checkpoint --help": (0, "Usage: shoal", COMMAND),
    "analyze --help": (0, "Usage: shoal", COMMAND),
    "sql --help": (0, "Usage: shoal", COMMAND),
    "jobs": (0, "over", REPORT),
    "status over": (0, "succeeded", REPORT),
    "logs over": (0, "all is over", REPORT),
    "status other": (2, NO_CLUSTER, REPORT),
    "logs other": (2, NO_CLUSTER, REPORT),
    "stop other": (2, NO_CLUSTER, REPORT),
    "delete other": (2, NO_CLUSTER, REPORT),
    "stop over": (2, "job over does not run: it has ended: succeeded", REPORT | CALLS),
    # It has read the data, and would start the master next.
    f"{TRAIN} --output taken": (2, "--output", REPORT | READS),
}

ROLES = {"shoal.ps": SERVER, "shoal.master": MASTER}


def packages(text):
    """Those in the output of -X importtime; of shoal and google, the rooms."""
    found = set()
    for name in re.findall(r"^import time:[^|]*\|[^|]*\| +(\S+)$", text, re.MULTILINE):
        parts = name.split(".")
        depth = 2 if parts[0] in ("shoal", "google") else 1
        if len(parts) >= depth and not parts[depth - 1].startswith("_"):
            found.add(".".join(parts[:depth]))
    found -= {*sys.stdlib_module_names, "sitecustomize"}
    # What is only looked for is named, too.
    return {name for name in found if importlib.util.find_spec(name) is not None}


def run(folder, *arguments, code=0, **environment):
    """Run a module of Python; what it has printed, and the packages that it has loaded."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "KUBECONFIG": str(folder / "none")} | environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    loaded = packages(done.stderr)
    assert {"click", "shoal.errors"} <= loaded
    return done.stdout + done.stderr, loaded


@pytest.fixture
def folder(tmp_path):
    """A folder with a job that has ended, a model and its data, and a file `taken`."""
    job = JobFolder(tmp_path / "shoal-jobs" / "over")
    job.logs.mkdir(parents=True)
    config = JobConfig(
        command="train", model_def="m.custom_model", training_data="data", job_name="over"
    )
    job.config.write_text(config.resolved().to_json())
    (job.logs / "master.log").write_text("all is over\n")
    result = {"job_name": "over", "command": "train", "state": "succeeded"}
    job.result.write_text(json.dumps(result))
    functions = ("custom_model", "loss", "optimizer", "feed")
    (tmp_path / "m.py").write_text("".join(f"def {name}(*_): ...\n" for name in functions))
    (tmp_path / "d.csv").write_text("a,b,c\n1,x,2.5\n2,y,\n")
    (tmp_path / "taken").write_text("")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads_only_what_it_needs(folder, command):
    code, told, allowed = COMMANDS[command]
    printed, loaded = run(folder, "shoal", *command.split(), code=code)
    assert told in printed
    assert loaded <= allowed


def test_a_cluster_is_asked_without_what_reads_data(tmp_path):
    config = tmp_path / "config"
    config.write_text("{}")  # there, and without a context
    printed, loaded = run(tmp_path, "shoal", "status", "other", code=2, KUBECONFIG=str(config))
    assert "no Kubernetes cluster is set up: " in printed
    assert "kubernetes" in loaded
    assert not loaded & {"tensorflow", "keras", "pyarrow", "fsspec", "sqlalchemy", "shoal.data"}
    assert not loaded & {"shoal.native", "shoal.worker", "shoal.master", "shoal.ps"}


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
def test_the_help_of_a_role_loads_only_what_the_role_needs(tmp_path, role):
    printed, loaded = run(tmp_path, role, "--help")
    assert "Usage: " in printed
    assert loaded <= ROLES[role]


@pytest.fixture
def listening(folder):
    """Starts a role of the job of `folder`, which then listens; the process, and its output."""
    started = []
    config = folder / "shoal-jobs" / "over" / "job.json"

    def start(role, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", role, "--config", str(config), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "listening on" in line or "serving on" in line:
                return process, "".join(lines)
        raise AssertionError("".join(lines))

    yield start
    for process in started:
        with process:
            process.kill()
    kill_job(config)


@pytest.mark.slow
def test_a_master_loads_only_what_it_needs_before_it_listens(listening):
    _, printed = listening("shoal.master")
    assert packages(printed) <= MASTER


@pytest.mark.slow
def test_a_server_loads_nothing_more_up_to_its_first_push(folder, listening):
    process, printed = listening("shoal.ps", "--index", "0")
    token = JobConfig.load(folder / "shoal-jobs" / "over" / "job.json").token
    address = re.search(r"listening on (\S+)", printed)[1]
    connection = rpc.Connection(address, peer=transport.peer_name(token, "ps", 0))
    caller = Caller(connection)
    caller.register()
    caller.initialize(range(5), range(2))
    caller.pull([1, 2])
    caller.push([1, 2], [[1, 2, 3], [4, 5, 6]])
    connection.close()
    process.kill()
    assert packages(printed + process.stdout.read()) <= SERVER
