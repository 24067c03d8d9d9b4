"""`shoal compare` shows in what jobs differ, whether they run, have ended or were killed."""

import dataclasses
import json
import os
from http.server import BaseHTTPRequestHandler

import pandas as pd
import pytest
from click.testing import CliRunner

import shoal
from shoal.base.disk.job_folder import JobFolder
from shoal.cli.main import main
from shoal.cluster.manifests import RESULT_FILE, labels
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.master.figures.metrics_file import MetricsFile
from shoal.master.work.evaluation.evaluation import EvaluationResult
from tests.master.api_server import Answers, served


def compare(*arguments, code=0):
    done = CliRunner().invoke(main, ["compare", *arguments], prog_name="shoal")
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Begin a job in shoal-jobs, with metrics of two evaluations: begun(name, flags, aucs)."""
    monkeypatch.chdir(tmp_path)

    def begin(name, aucs, **flags):
        config = JobConfig(
            model_def="clicks.custom_model", training_data="/t.csv", job_name=name, **flags
        ).resolved()
        folder = JobFolder(tmp_path / "shoal-jobs" / name)
        folder.path.mkdir(parents=True)
        folder.config.write_text(config.to_json())
        file = MetricsFile(folder.metrics)
        for number, auc in enumerate(aucs, 1):
            sample = {
                "seconds": 10.0 * number,
                "state": "training",
                "records": 100 * number,
                "samples_per_second": 123.0,
                "loss": 1 / number,
                "worker_deaths": 1,
                "rows": 40,
            }
            evaluation = EvaluationResult(number, 0, {"auc": auc, "odd": 2.0}, 10)
            file.add(float(number), sample, evaluation)
        return folder

    return begin


def end(folder):
    result = {
        "job_name": "slow",
        "command": "train",
        "state": "succeeded",
        "seconds": 61.0,
        "samples_per_second": 1000.0,
        "ledger": {"total": 500, "trained_once": 490, "repeated": 10, "failed": 0, "pending": 0},
        "evaluations": [{"version": 7, "epoch": 0, "metrics": {"auc": 0.75}, "records": 10}],
        "workers": {"starts": 3, "deaths": 2},
        "servers": {"starts": 1, "deaths": 0},
        "staleness": {"mean": 1.5},
        "checkpoints": {"taken": 4},
    }
    folder.result.write_text(json.dumps(result))


def test_flags_that_differ_and_figures_are_side_by_side(begun):
    begun("fast", [0.75, 0.5], workers="2", log_mb=64)
    slow = begun("slow", [0.25])
    end(slow)
    shown = json.loads(compare("fast", str(slow.path), "--json"))
    assert shown["flags"] == {
        "workers": {"fast": "2", "slow": "1"},
        "log_mb": {"fast": 64, "slow": 0},
    }
    fast, slow = shown["jobs"]
    assert (fast["state"], slow["state"]) == ("killed", "succeeded")
    assert fast["metrics"]["auc"] == {"last": 0.5, "best": 0.75, "best_version": 1}
    assert fast["metrics"]["odd"] == {"last": 2.0, "best": None, "best_version": None}
    assert slow["metrics"] == {"auc": {"last": 0.75, "best": 0.75, "best_version": 7}}
    assert fast["figures"]["seconds"] == 20.0
    assert fast["figures"]["samples_per_second"] == 123.0
    assert fast["figures"]["worker_deaths"] == 1
    assert slow["figures"]["samples_per_second"] == 1000.0
    assert (slow["figures"]["trained_once"], slow["figures"]["repeated"]) == (490, 10)
    assert slow["figures"]["worker_deaths"] == 2


def test_a_program_has_the_same_as_a_data_frame(begun):
    fast = begun("fast", [0.75, 0.5], workers="2")
    slow = begun("slow", [0.25])
    end(slow)
    shown = shoal.compare(fast.path, shoal.attach("slow"))
    assert [*shown.columns[:5]] == [
        *("state", "workers", "val_auc", "best_val_auc", "val_odd"),
    ]
    assert [*shown.index] == ["fast", "slow"]
    assert [*shown["state"]] == ["killed", "succeeded"]
    assert [*shown["workers"]] == ["2", "1"]
    assert [*shown["val_auc"], *shown["best_val_auc"]] == [0.5, 0.75, 0.75, 0.75]
    assert shown["val_odd"]["fast"] == 2.0
    assert pd.isna(shown["val_odd"]["slow"])
    assert [*shown["seconds"], *shown["loss"]] == [20.0, 61.0, 0.5, 1.0]
    with pytest.raises(UserError, match=r"^there is no job slwo .* \(did you mean slow\?\)$"):
        shoal.compare("fast", "slwo")


def test_a_program_lists_the_jobs_of_a_folder(begun, tmp_path):
    assert shoal.jobs().empty
    end(begun("slow", [0.25]))
    fast = begun("fast", [])
    os.utime(fast.config, (0, 0))
    begun("far", [], image="shoal:1").templates.write_text("{}")
    shown = shoal.jobs()
    assert [*shown.index] == ["slow", "fast"]
    assert [*shown["state"]] == ["succeeded", "killed"]
    assert [*shown["records"], *shown["seconds"]] == [100, 0, 61.0, 0.0]
    assert shown["began"]["fast"] == pd.Timestamp(0, tz="UTC")
    assert shoal.jobs(tmp_path / "shoal-jobs").equals(shown)
    assert shoal.jobs(tmp_path).dtypes.equals(shown.dtypes)


def test_a_job_that_has_ended_is_attached_to_by_its_result(begun, cluster):
    slow = begun("slow", [0.25])
    with pytest.raises(UserError, match=r"^job slow was killed"):
        shoal.attach("slow")
    end(slow)
    assert shoal.attach("slow") == shoal.attach(slow.path)
    assert shoal.attach("slow").metrics_over_time["val_auc"][0] == 0.25
    with pytest.raises(UserError):  # it is looked for on Kubernetes then
        shoal.attach("slwo")
    # What was kept of a job on Kubernetes, and one of which nothing was.
    kept = begun("kept", [], image="shoal:1", namespace="space")
    kept.templates.write_text("{}")
    result = {"job_name": "kept", "command": "train", "state": "stopped"}
    cluster += [("kept", "Succeeded", result), ("other", "Succeeded", result)]
    assert shoal.attach("kept").state == "stopped"
    assert shoal.attach("other", namespace="space").state == "stopped"
    kept.result.write_text(json.dumps(result | {"state": "failed"}))
    assert shoal.attach("kept").state == "failed"


def test_the_table_names_flags_and_the_best_values(begun):
    begun("fast", [0.75, 0.5], sync=True, durability="checkpoint")
    begun("slow", [0.25])
    words = [
        line.replace("│", " ").replace("┃", " ").split()
        for line in compare("fast", "slow").splitlines()
    ]
    assert ["fast", "slow"] in words
    assert ["--sync", "yes", "no"] in words
    assert ["--durability", "checkpoint", "log"] in words
    assert ["auc", "0.5000", "0.2500"] in words
    assert ["auc,", "best", "0.7500", "0.2500"] in words
    assert ["rows", "of", "tables", "40", "40"] in words
    assert ["training", "loss", "0.5000", "1.0000"] in words
    assert not [line for line in words if "--job-dir" in line or "--checkpoint-dir" in line]


def test_brackets_of_a_value_are_shown_as_they_are(begun):
    begun("fast", [0.75], model_params="kinds=[relu]")
    begun("slow", [0.25], model_params="kinds=[/x]")
    shown = compare("fast", "slow")
    assert "kinds=[relu]" in shown
    assert "kinds=[/x]" in shown


def test_a_job_that_has_written_nothing_yet_and_one_of_the_same_name(begun, tmp_path):
    begun("fast", [])
    other = JobFolder(tmp_path / "other" / "fast")
    other.path.mkdir(parents=True)
    config = JobConfig.load(tmp_path / "shoal-jobs" / "fast" / "job.json")
    other.config.write_text(dataclasses.replace(config, job_dir=str(other.path), seed=3).to_json())
    shown = json.loads(compare("fast", "other/fast", "--json"))
    # Of the first, the checkpoints' folder is its own.
    assert shown["flags"]["seed"] == {"shoal-jobs/fast": 0, "other/fast": 3}
    assert [job["metrics"] for job in shown["jobs"]] == [{}, {}]


def test_what_cannot_be_compared_is_one_message(begun, tmp_path):
    begun("fast", [])
    begun("slow", [])
    assert compare("fast", code=2) == (
        "Error: give two jobs or more to compare: shoal compare JOB JOB ...\n"
    )
    assert "Error: there is no job slwo in ./shoal-jobs or at this path (did you mean slow?)" in (
        compare("fast", "slwo", code=2)
    )
    assert "job shoal-jobs/fast is given twice" in compare("shoal-jobs/fast", "fast", code=2)
    metrics = tmp_path / "shoal-jobs" / "slow" / "metrics.csv"
    for content in (b"loss\nlow\n", b"loss\n\xff\n", b"evaluated_version\n1,2\n"):
        metrics.write_bytes(content)
        assert f"Error: {metrics} is not a job's metrics: " in compare("fast", "slow", code=2)
    broken = tmp_path / "shoal-jobs" / "slow" / "job.json"
    broken.write_text("[]")
    assert f"Error: {broken} is not a job's configuration" in compare("fast", "slow", code=2)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Has a cluster know the jobs in this list: (name, phase of its master's pod, result)."""
    known = []

    class Api(Answers, BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            for name, phase, result in known:
                made = {"name": f"{name}-master", "labels": labels(name, "master")}
                if path.endswith(f"/jobs/{name}-master"):
                    return self.answer(
                        200, {"metadata": made, "spec": {"template": {}}, "status": {}}
                    )
                if path.endswith(f"/configmaps/{name}"):
                    data = {RESULT_FILE: json.dumps(result)} if result else {}
                    return self.answer(200, {"metadata": {"name": name}, "data": data})
                if path.endswith("/namespaces/space/pods") and name in self.path:
                    pod = {"metadata": made, "status": {"phase": phase}}
                    return self.answer(200, {"metadata": {}, "items": [pod]})
            return self.answer(404, {"kind": "Status", "message": "not found", "code": 404})

    with served(Api) as address:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": address}}],
            "users": [{"name": "ann", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "ann"}}],
            "current-context": "here",
        }
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        yield known


def test_of_a_job_on_kubernetes_the_cluster_knows_the_state(begun, cluster, monkeypatch):
    begun("fast", [0.5])
    for name in ("slow", "kept", "swims", "waits", "gone"):
        folder = begun(name, [0.25], image="shoal:1", namespace="space")
        folder.templates.write_text("{}")
    result = {"job_name": "slow", "command": "train", "state": "stopped", "seconds": 61.0}
    JobFolder(folder.path.parent / "kept").result.write_text(json.dumps(result))
    cluster += [
        ("slow", "Succeeded", result),
        ("swims", "Running", None),
        ("waits", "Pending", None),
    ]
    names = ("fast", "slow", "kept", "swims", "waits", "gone")

    def places():
        return [
            (each["place"], each["state"]) for each in json.loads(compare(*names, "--json"))["jobs"]
        ]

    there = "on Kubernetes"
    assert places() == [
        ("on this machine", "killed"),
        (there, "stopped"),
        (there, "stopped"),
        (there, "running"),
        (there, "waiting"),
        (there, "deleted"),
    ]
    shown = json.loads(compare("slow", "swims", "--json"))["jobs"]
    assert [each["figures"]["seconds"] for each in shown] == [61.0, 10.0]
    rows = [line.replace("│", " ").split() for line in compare("swims", "waits").splitlines()]
    assert ["place", *there.split(), *there.split()] in rows
    assert ["state", "running", "waiting"] in rows
    begun("faster", [0.5])
    assert "place" not in compare("fast", "faster")

    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    place, state = places()[3]
    assert place == there
    assert state.startswith("not known: no Kubernetes cluster is set up: there is no file /nowhere")
