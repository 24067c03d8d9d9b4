"""Whole jobs whose model is a torch.nn.Module."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.model_zoo.criteo import prepare
from tests.jobs.running import ZOO, RunningJob, arguments_of, completed, resume, run

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.job

RECORDS, VALIDATION = 10240, 2048


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A folder with click records, train.parquet and validation.parquet."""
    folder = tmp_path_factory.mktemp("clicks")
    prepare.prepared(folder, 2000, RECORDS, VALIDATION)
    return folder


def fields(clicks, **more):
    return {
        "model_def": "clicks_torch.DLRM",
        "engine": "torch",  # which the module's own imports do not name
        "training_data": clicks / "train.parquet",
        "validation_data": clicks / "validation.parquet",
        "batch_size": 64,
        "workers": "2",
        "servers": "2",
    } | more


@pytest.fixture(scope="module")
def trained(clicks, tmp_path_factory):
    """A job's end and its folder, with its output below `out`."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "imported").mkdir()
    with RunningJob(
        *("train", folder, "clicks"),
        environment={"IMPORTED": str(folder / "imported")},
        **fields(clicks, output=folder / "out", export="auto"),
    ) as job:
        return job.ended().succeeded(), folder


def test_a_module_is_trained_and_evaluated_without_keras_and_tensorflow(trained):
    ended, folder = trained
    assert ended.ledger["trained_once"] == RECORDS
    assert ended.result["metrics"]["auc"] > 0.53
    notes = [path.read_text() for path in (folder / "imported").iterdir()]
    assert len(notes) >= 2
    assert set(notes) == {"torch"}


def features_of(file):
    from shoal.model_zoo.criteo.dlrm_torch import feed_batch

    columns = {name: each.to_numpy() for name, each in zip(*_columns(file), strict=True)}
    features = feed_batch(columns, "prediction", None)
    return {name: torch.from_numpy(each) for name, each in features.items()}


def _columns(file):
    table = pq.read_table(file)
    return table.column_names, table.columns


def test_an_export_predicts_as_the_job_does(trained, clicks, tmp_path):
    _, folder = trained
    fields = {
        "model_def": "clicks_torch.DLRM",
        "engine": "torch",
        "prediction_data": clicks / "validation.parquet",
        "restore_from": folder / "out",
        "output": tmp_path / "out",
        "batch_size": 100,
    }
    run("predict", tmp_path, "predicted", **fields).succeeded()
    predicted = pq.read_table(tmp_path / "out").sort_by("record")["prediction"].to_numpy()
    features = features_of(clicks / "validation.parquet")
    features["numbers"] = features["numbers"].float()
    program = torch.export.load(folder / "out" / "model.pt2").module()
    np.testing.assert_allclose(program(features).detach(), predicted, atol=1e-5)
    result = shoal.attach(folder / "clicks")
    np.testing.assert_allclose(result.load()(features).detach(), predicted, atol=1e-5)
    frame = {name: list(each.numpy()) for name, each in features.items()}
    np.testing.assert_allclose(result.predict(frame), predicted, atol=1e-5)
    with pytest.raises(shoal.UserError, match=r"no column 'ids' \(did you mean id\?\)"):
        result.predict({"numbers": frame["numbers"], "id": frame["ids"]})
    frame["ids"][3] = frame["ids"][3][:5]
    with pytest.raises(shoal.UserError, match="column 'ids' has lists of several lengths"):
        result.predict(frame)


def test_training_goes_on_from_an_export_by_names(trained, clicks, tmp_path):
    _, folder = trained
    ended = run(
        *("train", tmp_path, "more"),
        **fields(clicks, restore_from=folder / "out", output=tmp_path / "out"),
    ).succeeded()
    assert ended.result["metrics"]["auc"] > trained[0].result["metrics"]["auc"] - 0.01
    files = [pq.read_table(each / "out" / "dense.parquet") for each in (folder, tmp_path)]
    before, after = (file["name"].to_pylist() for file in files)
    assert before == after


def test_killed_workers_servers_and_a_resumption_cost_no_record(clicks, tmp_path):
    values = fields(clicks, epochs=3, durability="log")
    gates = {"GATES": "step-10 step-150"}
    with RunningJob("train", tmp_path, "killed", environment=gates, **values) as job:
        job.at_gate("step-10")
        job.kill("worker", 1)
        job.kill("ps", 0)
        job.open("step-10")
        job.at_gate("step-150")  # one process comes so far: there are 480 steps
        job.kill_whole()
        folder = job.folder
    done = resume(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = job.result()["ledger"]
    assert ledger["trained_once"] + ledger["repeated"] == ledger["total"] == 3 * RECORDS
    assert ledger["failed"] == 0


def test_another_engine_is_told_of_a_module_of_pytorch(clicks, tmp_path):
    ended = run("train", tmp_path, "wrong", **fields(clicks, engine="tensorflow"))
    assert ended.code == 2
    assert "DLRM is a torch.nn.Module, and the job computes with tensorflow" in ended.err
    assert "give --engine torch" in ended.err


def test_check_tries_the_step_and_the_export(clicks, tmp_path):
    values = fields(clicks, model_zoo=ZOO)
    del values["workers"]
    line = arguments_of("check", **values)
    done = completed(line, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vectors: Embedding of 16 values, any int64 id" in done.stdout
    assert "tried: model.pt2 predicts this batch as the model does" in done.stdout
    assert "Nothing unsupported was found." in done.stdout
