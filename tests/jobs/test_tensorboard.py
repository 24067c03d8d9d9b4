"""--tensorboard-dir of a whole job, whose module has Keras's callback."""

import pytest
import tensorflow as tf

from tests.jobs.running import ZOO, run

pytestmark = pytest.mark.job


def test_a_job_writes_what_its_result_says(tmp_path, clicks):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    more = "\ndef callbacks():\n    return [keras.callbacks.TensorBoard('not-read')]\n"
    (zoo / "small.py").write_text((ZOO / "small.py").read_text() + more)
    fields = {
        "model_zoo": zoo,
        "model_def": "small.custom_model",
        "training_data": clicks,
        "validation_data": clicks,
        "batch_size": 25,
    }
    without = run("train", tmp_path, "without", **fields)
    assert without.code == 2
    assert "callback's log_dir: give --tensorboard-dir FOLDER" in without.err
    ended = run("train", tmp_path, "drawn", tensorboard_dir=tmp_path / "logs", **fields).succeeded()
    (path,) = (tmp_path / "logs" / "drawn").iterdir()
    found = {
        value.tag: (event.step, value.simple_value)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    (evaluation,) = ended.result["evaluations"]
    version, auc = found["evaluation/auc"]
    assert version == evaluation["version"]
    assert auc == pytest.approx(evaluation["metrics"]["auc"])
    step, rate = found["training/learning_rate"]
    assert rate == pytest.approx(0.01 * 0.9 ** (step / 40), rel=0.01)
    assert found["tables/rows"][1] == 640  # 600 users and 40 items
    assert found["training/loss"][0] == ended.result["versions"]["ps-0"]
    assert "training/staleness" in found
    # Of both tables, of the pushes that were looked at.
    norms = {tag for tag in found if tag.startswith("tables/row_norm/")}
    assert norms == {"tables/row_norm/users", "tables/row_norm/items"}
    assert "_hparams_/session_start_info" in found
    assert not (tmp_path / "not-read").exists()
