"""Records at which the user's code fails, in whole jobs: found, named, and left out."""

import json

import pyarrow.parquet as pq
import pytest

from tests.jobs.results import applied
from tests.jobs.running import RunningJob, audited

pytestmark = pytest.mark.job

CURSED = {"model_def": "cursed.custom_model"}


def test_bad_records_are_left_out_and_all_others_are_trained_once(cursed, session_folder):
    job, ended = cursed
    assert ended.ledger == {
        "total": 960,
        "trained_once": 954,
        "repeated": 0,
        "failed": 6,
        "pending": 0,
    }
    total, counts = applied(session_folder / "cursed-out")
    assert counts == {i: 2 for i in range(480) if i not in (37, 38, 305)}
    assert total == [954, 954]
    assert ended.result["metrics"]["seen"] == 159
    assert ended.result["metrics"]["ids"] == sum(range(1000, 1160)) - 1111
    assert ended.result["workers"] == {"starts": 2, "deaths": 0}
    bad = {each["record"]: each for each in ended.result["bad_records"]}
    assert set(bad) == {37, 38, 305, 111}
    # "id\n" is three bytes, ids below 10 take two, those below 37 three.
    assert bad[37]["place"] == "record 37 (row 38, at byte 104)"
    assert "37 is cursed in feed" in bad[37]["error"]
    assert "38 is cursed in loss" in bad[38]["error"]
    assert "the loss is nan" in bad[305]["error"]
    assert (bad[111]["data"], bad[37]["data"]) == ("validation", "training")
    report = audited(job.folder)
    assert report["records"]["failed"] == 6
    assert report["bad_records"] == ended.result["bad_records"]
    assert any("bad record: training data" in message for message in ended.result["messages"])
    (line,) = (line for line in ended.out.splitlines() if "bad records" in line and "given" in line)
    assert "4 given up" in line


def test_predictions_do_without_records_that_raise_or_end_the_process(
    cursed, session_folder, tmp_path
):
    data = tmp_path / "numbers.csv"
    data.write_text("id\n" + "".join(f"{i}\n" for i in range(12)))
    with RunningJob(
        "predict",
        tmp_path,
        "predicted",
        environment={"CURSED": "feed-4 abort-11"},
        prediction_data=data,
        restore_from=session_folder / "cursed-out",
        output=tmp_path / "out",
        in_order=True,
        batch_size=1,
        num_minibatches_per_task=1,
        relaunch_limit=1,
        max_bad_records=2,
        **CURSED,
    ) as job:
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    predictions = pq.read_table(tmp_path / "out" / "predictions.parquet").to_pydict()
    assert predictions["record"] == [i for i in range(12) if i not in (4, 11)]
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert (manifest["records"], manifest["skipped"]) == (10, [4, 11])
    errors = {each["record"]: each["error"] for each in ended.result["bad_records"]}
    assert "4 is cursed in feed" in errors[4]
    assert "signal 6, SIGABRT" in errors[11]
    # Three ends of the process at one record, of which --relaunch-limit counts the first.
    assert ended.result["workers"] == {"starts": 4, "deaths": 3}
    assert audited(job.folder)["bad_records"] == ended.result["bad_records"]


def test_a_record_whose_id_is_no_integer_is_named(tmp_path, clicks):
    lines = clicks.read_text().splitlines()
    assert lines[138].startswith("137,")
    lines[138] = lines[138].replace("137,", "137.5,", 1)
    data = tmp_path / "broken.csv"
    data.write_text("\n".join(lines) + "\n")
    with RunningJob(
        "train",
        tmp_path,
        "broken",
        model_def="small.custom_model",
        training_data=data,
        batch_size=50,
        num_minibatches_per_task=4,
        max_bad_records=1,
    ) as job:
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    (bad,) = ended.result["bad_records"]
    assert bad["record"] == 137
    assert "feature 'user' is 137.5" in bad["error"]
    assert ended.result["ledger"]["trained_once"] == 599
