"""The gate of a series: --evaluate-first, and the link that moves only if metrics hold."""

import json
import os
import random

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.proto import faults
from tests.jobs.running import ENGINE, RunningJob, resume, run

pytestmark = pytest.mark.job

MODEL = {"model_def": "small.custom_model", "batch_size": 25, "num_minibatches_per_task": 2}


def day(folder, seed, records=400, turned=False):
    """Clicks of a day, of users who like the same items every day. turned: labels are inverted."""
    chance = random.Random(seed)
    lines = []
    for _ in range(records):
        user, item = chance.randrange(30), chance.randrange(12)
        likes = (user % 3 == item % 3) != turned
        lines.append(f"{user},{item},{chance.random() < (0.9 if likes else 0.1):d}.0\n")
    path = folder / f"day{seed}.csv"
    path.write_text("user,item,label\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def monday(tmp_path_factory):
    """The folder of a series whose first job has ended, and its result."""
    folder = tmp_path_factory.mktemp("series")
    return folder, run(
        "train",
        folder,
        "monday",
        training_data=day(folder, 1, records=2000),
        latest="latest",
        evaluate_first=True,
        publish_if="first.auc>=0.7",
        epochs=5,
        servers="2",
        output=folder / "monday-out",
        **MODEL,
    )


def numbers(metrics):
    return {name: pytest.approx(value, rel=1e-5) for name, value in metrics.items()}


def test_the_first_job_of_a_series_has_nothing_to_evaluate_first(monday):
    folder, ended = monday
    assert ended.succeeded().result["first_evaluation"] is None
    assert ended.result["held_back"] == []
    assert os.readlink(folder / "latest") == "monday"


def test_the_earlier_model_is_evaluated_on_records_that_are_new_to_it(monday):
    """As `shoal evaluate` says of that model and these records, by any number of workers."""
    folder, _ = monday
    tuesday = day(folder, 2)
    alone = run(
        "evaluate",
        folder,
        "alone",
        validation_data=tuesday,
        restore_from=folder / "monday-out",
        **MODEL,
    )
    ended = run(
        "train",
        folder,
        "tuesday",
        training_data=tuesday,
        validation_data=tuesday,
        continue_from=folder / "monday",
        evaluate_first=True,
        epochs=2,
        workers="2",
        servers="2",
        **MODEL,
    ).succeeded()
    first = ended.result["first_evaluation"]
    assert first["metrics"] == numbers(alone.result["metrics"])
    assert first["metrics"]["auc"] > 0.75
    assert (first["records"], first["loss"], first["epoch"]) == (400, None, 0)
    # It is none of those of this job's training, which begins at the model's next version.
    evaluations = ended.result["evaluations"]
    assert len(evaluations) == 2
    assert first["version"] < evaluations[0]["version"]
    assert ended.result["metrics"] == evaluations[-1]["metrics"]
    assert "  first.auc" in ended.out
    assert "the earlier model on the 400 new records" in ended.out


@pytest.mark.parametrize("engine", ["torch", "jax"])
def test_it_is_evaluated_by_any_engine_and_from_values_alone(tmp_path, monkeypatch, engine):
    monkeypatch.setenv(ENGINE, engine)
    first, second = day(tmp_path, 1), day(tmp_path, 2)
    run("train", tmp_path, "a", training_data=first, epochs=4, output=tmp_path / "out", **MODEL)
    alone = run(
        "evaluate",
        tmp_path,
        "alone",
        validation_data=second,
        restore_from=tmp_path / "out",
        **MODEL,
    )
    ended = run(
        "train",
        tmp_path,
        "b",
        training_data=second,
        restore_from=tmp_path / "out",
        evaluate_first=True,
        workers="2",
        **MODEL,
    ).succeeded()
    assert ended.result["first_evaluation"]["metrics"] == numbers(alone.result["metrics"])
    assert ended.result["metrics"] is None


def test_who_is_killed_in_it_changes_nothing(monday, monkeypatch, tmp_path):
    """Workers and a server die, and then all of the job: no record is trained before its end."""
    folder, _ = monday
    fields = {
        "training_data": day(folder, 3),
        "continue_from": folder / "monday",
        "evaluate_first": True,
        "workers": "2",
        "servers": "2",
        **MODEL,
    }
    alone = run("train", folder, "whole", **fields).succeeded()
    monkeypatch.setenv(faults.VARIABLE, str(tmp_path))
    (tmp_path / "batch-evaluated").write_text(faults.HANG)
    with RunningJob("train", folder, "killed", **fields) as job:
        job.wait_status("the first evaluation", lambda status: status.state == "evaluating")
        job.kill("ps", 1)
        job.kill_whole()
    armed = [faults.arm(tmp_path, name) for name in ("batch-evaluated", "metrics-computed")]
    ended = resume(JobFolder(folder / "killed"))
    assert ended.returncode == 0, ended.stderr
    assert not any(file.exists() for file in armed)
    result = json.loads((folder / "killed" / "result.json").read_text())
    first = result["first_evaluation"]
    assert first["metrics"] == numbers(alone.result["first_evaluation"]["metrics"])
    assert first["records"] == result["ledger"]["total"] == 400
    assert result["workers"]["deaths"] >= 2


def test_without_a_new_record_nothing_is_evaluated_first_and_nothing_held_back(tmp_path):
    data = tmp_path / "days"
    data.mkdir()
    day(data, 1, 100)
    fields = {
        "training_data": data,
        "latest": "latest",
        "only_new": True,
        "evaluate_first": True,
        "publish_if": "first.auc>=0.99",
        **MODEL,
    }
    run("train", tmp_path, "monday", **fields).succeeded()
    ended = run("train", tmp_path, "tuesday", **fields).succeeded()
    assert ended.result["first_evaluation"] is None
    assert ended.ledger["total"] == 0
    assert os.readlink(tmp_path / "latest") == "tuesday"


def test_the_link_stays_where_metrics_do_not_hold(monday, tmp_path):
    """And the next job of the series begins where this one began."""
    folder, _ = monday
    (tmp_path / "latest").symlink_to(folder / "monday")
    fields = {"latest": "latest", "evaluate_first": True, **MODEL}
    turned = day(tmp_path, 4, turned=True)
    held = run(
        "train",
        tmp_path,
        "tuesday",
        training_data=turned,
        publish_if="first.auc>=0.6",
        **fields,
    )
    assert held.code == 3, held.err
    assert held.result["state"] == "succeeded"
    auc = held.result["first_evaluation"]["metrics"]["auc"]
    assert held.result["held_back"] == [f"--publish-if first.auc>=0.6: first.auc is {auc:.6g}"]
    assert "held back" in held.out
    assert f"latest still leads to {folder / 'monday'}: --publish-if first.auc>=0.6" in held.out
    assert os.readlink(tmp_path / "latest") == str(folder / "monday")
    good = day(tmp_path, 5)
    ended = run(
        "train",
        tmp_path,
        "wednesday",
        training_data=good,
        validation_data=good,
        publish_if="first.auc>=0.6, auc>=0.6, loss<=1",
        **fields,
    ).succeeded()
    assert ended.result["continued_from"].startswith(str(folder / "monday"))
    assert os.readlink(tmp_path / "latest") == "wednesday"


def test_a_metric_that_the_model_does_not_have_is_refused_before_it_trains(tmp_path):
    data = day(tmp_path, 1, 50)
    ended = run(
        "train",
        tmp_path,
        "monday",
        training_data=data,
        validation_data=data,
        latest="latest",
        publish_if="loss<=1,aucc>=0.6",
        **MODEL,
    )
    assert ended.code == 2
    assert (
        "--publish-if aucc>=0.6: the model has no metric 'aucc' (did you mean auc?); its metrics "
        "are auc, loss"
    ) in ended.err
    assert ended.ledger["total"] == ended.ledger["pending"]
