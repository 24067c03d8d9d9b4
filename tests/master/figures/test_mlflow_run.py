"""A job as a run of MLflow: by the package itself where it is there, and always by a stand-in."""

import json
import queue
import sys

import pytest

from shoal.master.figures.mlflow_run import MISSING, MlflowRun
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.master.work.evaluation.rules import Mlflow
from shoal.master.work.phases import Phase
from tests.master import fake_mlflow
from tests.master.strategies import config

# Of the package's own libraries.
pytestmark = pytest.mark.filterwarnings("ignore")

PATIENCE = 60.0
SAMPLE = {"version": 3, "loss": 0.5, "learning_rate": None, "workers": 2, "state": "training"}


@pytest.fixture(params=["package", "stand-in"])
def package(request, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    if request.param == "package":
        reason = "mlflow is not installed: pip install mlflow-skinny sqlalchemy alembic"
        pytest.importorskip("mlflow", reason=reason)
        pytest.importorskip("alembic", reason=reason)
    else:
        for name, module in fake_mlflow.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    return request.param


@pytest.fixture
def store(package, tmp_path):
    """The address of a store of its own."""
    return f"sqlite:///{tmp_path}/mlflow.db"


@pytest.fixture
def record(store, tmp_path):
    """Begins a run, or goes on with it; `told` has what was told."""
    told = queue.Queue()

    def begin(experiment="ads", tags=(), **changes):
        target = Mlflow(store, experiment, "", dict(tags))
        return MlflowRun(target, config(**changes), tmp_path / "mlflow.json", told.put)

    begin.told, begin.file = told, tmp_path / "mlflow.json"
    return begin


def closed(run, phase, output):
    run.close(phase, output)
    run.wait()


def client(store):
    from mlflow import MlflowClient

    return MlflowClient(store)


def runs(store, experiment="ads"):
    found = client(store).get_experiment_by_name(experiment)
    return client(store).search_runs([found.experiment_id])


def history(store, run, name):
    found = client(store).get_metric_history(run.info.run_id, name)
    return [(each.step, each.timestamp, each.value) for each in found]


def test_a_run_has_flags_figures_evaluations_and_the_end(record, store):
    run = record(tags={"team": "a"}, workers="3", model_params="dim=16,kind=deep")
    run.add(7.0, SAMPLE)
    evaluation = EvaluationResult(5, 0, {"auc": 0.25, "top@10": 0.5, "bad": float("nan")}, 9)
    run.add(8.0, SAMPLE | {"version": 9, "loss": float("inf")}, evaluation)
    closed(run, Phase.SUCCEEDED, "/models/clicks")
    (made,) = runs(store)
    assert (made.info.run_name, made.info.status) == ("test", "FINISHED")
    params = made.data.params
    assert (params["workers"], params["model_params.dim"]) == ("3", "16")
    assert params["model_params.kind"] == "deep"
    assert "output" not in params  # it has no value
    assert history(store, made, "training/loss") == [(3, 7000, 0.5)]
    assert history(store, made, "job/workers") == [(3, 7000, 2.0), (9, 8000, 2.0)]
    assert history(store, made, "evaluation/auc") == [(5, 8000, 0.25)]
    assert history(store, made, "evaluation/top_10") == [(5, 8000, 0.5)]
    tags = made.data.tags
    assert (tags["team"], tags["shoal.job"], tags["shoal.state"]) == ("a", "test", "succeeded")
    assert tags["shoal.output"] == "/models/clicks"
    assert record.told.empty()


@pytest.mark.parametrize(
    ("phase", "status"),
    [(Phase.FAILED, "FAILED"), (Phase.DEGRADED, "FAILED"), (Phase.STOPPED, "KILLED")],
)
def test_the_end_of_a_job_is_the_end_of_its_run(record, store, phase, status):
    closed(record(), phase, "")
    (made,) = runs(store)
    assert made.info.status == status
    assert made.data.tags["shoal.state"] == phase.state


def test_the_next_master_goes_on_with_the_run(record, store):
    first = record()
    first.add(7.0, SAMPLE)
    closed(first, Phase.TRAINING, "")  # the master ends, and the job does not
    (made,) = runs(store)
    assert made.info.status == "RUNNING"
    assert "shoal.state" not in made.data.tags
    second = record(workers="9")
    second.add(8.0, SAMPLE | {"version": 4})
    closed(second, Phase.SUCCEEDED, "")
    (made,) = runs(store)
    assert [step for step, _, _ in history(store, made, "training/loss")] == [3, 4]
    # A parameter of a run cannot change.
    assert made.data.params["workers"] == "1"


def test_a_run_that_is_gone_is_begun_anew(record, store):
    record.file.write_text(json.dumps({"run_id": "0" * 32}))
    closed(record(), Phase.SUCCEEDED, "")
    (made,) = runs(store)
    assert json.loads(record.file.read_text())["run_id"] == made.info.run_id


def test_without_a_name_the_experiment_is_that_of_the_environment(record, store, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    closed(record(experiment=""), Phase.SUCCEEDED, "")
    assert len(runs(store, "theirs")) == 1


@pytest.mark.parametrize("package", ["stand-in"], indirect=True)
def test_trouble_is_told_once_and_nothing_is_lost_when_it_passes(record, store, monkeypatch):
    monkeypatch.setattr(MlflowRun, "SECONDS", 0.01)
    asked = queue.Queue()

    class Trouble(fake_mlflow.MlflowException):
        def __str__(self):
            asked.put(1)
            return "http://me:secret@tracker does not answer\nTraceback"

    fake_mlflow.Client.trouble = Trouble("away")
    run = record()
    for step in range(120):
        run.add(float(step), SAMPLE | {"version": step})
    for _ in range(3):
        asked.get(timeout=PATIENCE)
    fake_mlflow.Client.trouble = None
    closed(run, Phase.SUCCEEDED, "")
    said = record.told.get_nowait()
    assert said.startswith("MLflow does not take the job's figures: http://")
    assert "secret" not in said
    assert "Traceback" not in said
    assert record.told.empty()
    (made,) = runs(store)
    assert [step for step, _, _ in history(store, made, "training/loss")] == list(range(120))


def test_a_master_without_the_package_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # the import fails
    told = queue.Queue()
    run = MlflowRun(Mlflow("", "", "", {}), config(), tmp_path / "mlflow.json", told.put)
    assert told.get(timeout=PATIENCE) == f"MLflow does not take the job's figures: {MISSING}"
    run.add(1.0, SAMPLE)
    closed(run, Phase.SUCCEEDED, "")
    assert told.empty()
    assert not (tmp_path / "mlflow.json").exists()
