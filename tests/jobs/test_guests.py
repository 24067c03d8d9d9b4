"""A whole job that tells others of itself: Kubeflow Trainer, and MLflow where it is installed."""

import json
import queue
from http.server import BaseHTTPRequestHandler

import pytest

from shoal.master.figures.kubeflow import URL
from tests.jobs.running import ZOO, run
from tests.master.api_server import Answers, served

pytestmark = [pytest.mark.job, pytest.mark.filterwarnings("ignore")]


def test_the_master_of_a_job_in_a_trainjob_reports_its_end(tmp_path, clicks, monkeypatch):
    reports = queue.Queue()

    class Handler(Answers, BaseHTTPRequestHandler):
        def do_POST(self):
            reports.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(200, {})

    with served(Handler) as address:
        monkeypatch.setenv(URL, f"{address}/status")
        fields = {"model_def": "small.custom_model", "training_data": clicks}
        run("train", tmp_path, "told", validation_data=clicks, **fields).succeeded()
    while not reports.empty():
        status = reports.get()["trainerStatus"]
    assert status["progressPercentage"] == 100
    assert "eval_auc" in {each["name"] for each in status["metrics"]}


def test_a_job_is_a_run_of_mlflow(tmp_path, clicks, monkeypatch):
    for package in ("mlflow", "alembic"):
        reason = "mlflow is not installed: pip install mlflow-skinny sqlalchemy alembic"
        pytest.importorskip(package, reason=reason)
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    more = (
        f"\nfrom shoal.callbacks import MLflow\ndef callbacks():\n    return [MLflow({store!r})]\n"
    )
    (zoo / "small.py").write_text((ZOO / "small.py").read_text() + more)
    fields = {"model_zoo": zoo, "model_def": "small.custom_model", "training_data": clicks}
    ended = run("train", tmp_path, "run", validation_data=clicks, **fields).succeeded()
    (made,) = MlflowClient(store).search_runs(["0"])
    assert (made.info.run_name, made.info.status) == ("run", "FINISHED")
    (evaluation,) = ended.result["evaluations"]
    assert made.data.metrics["evaluation/auc"] == pytest.approx(evaluation["metrics"]["auc"])
