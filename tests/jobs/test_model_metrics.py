"""The metrics of shoal.metrics in whole jobs: of all records, by however many workers."""

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.jobs.running import run

pytestmark = pytest.mark.job


def test_group_auc_calibration_and_log_loss_are_those_of_all_records(
    trained, session_folder, clicks, tmp_path
):
    fields = {"restore_from": session_folder / "trained-out", "batch_size": 32, "servers": "1"}
    judged = {"model_def": "judged.custom_model", "validation_data": clicks, **fields}
    one = run("evaluate", tmp_path, "one", **judged).result["metrics"]
    more = {"workers": "2", "num_minibatches_per_task": 2}
    two = run("evaluate", tmp_path, "two", **judged, **more).result["metrics"]
    assert two == pytest.approx(one, rel=1e-6)
    run(
        "predict", tmp_path, "predicted",
        model_def="small.custom_model", prediction_data=clicks, in_order=True,
        output=tmp_path / "out", **fields,
    )  # fmt: skip
    table = pyarrow.csv.read_csv(clicks)
    items, labels = table["item"].to_numpy(), table["label"].to_numpy()
    predicted = pq.read_table(tmp_path / "out" / "predictions.parquet")["prediction"].to_numpy()
    assert one["calibration"] == pytest.approx(predicted.sum() / labels.sum(), rel=1e-5)
    losses = -np.where(labels == 1, np.log(predicted), np.log1p(-predicted))
    assert one["log_loss"] == pytest.approx(losses.mean(), rel=1e-5)
    areas, sizes = [], []
    for item in np.unique(items):
        positive = predicted[(items == item) & (labels == 1)]
        negative = predicted[(items == item) & (labels == 0)]
        if positive.size and negative.size:
            above = positive[:, None] > negative
            ties = positive[:, None] == negative
            areas.append((above + ties / 2).mean())
            sizes.append(positive.size + negative.size)
    assert len(areas) > 20
    assert one["by_item"] == pytest.approx(np.average(areas, weights=sizes), rel=1e-5)
    assert trained.result["metrics"]["auc"] != one["by_item"]
