"""What is drawn for a status and reported for a result."""

import io

import pytest
from rich.console import Console

from shoal import display
from shoal.config import JobConfig
from shoal.display import LineDisplay, LiveDisplay, ledger_text, new_messages, status_text
from shoal.job_folder import JobFolder
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult


def status(**fields):
    values = {
        "job_name": "swim",
        "state": "training",
        "epoch": 1,
        "num_epochs": 3,
        "tasks_done": 5,
        "tasks_total": 12,
        "samples_per_second": 12345.6,
        "loss": 0.512345,
        "has_loss": True,
        "workers_alive": 1,
        "workers_wanted": 2,
        "servers_alive": 2,
        "servers_wanted": 2,
        "mean_staleness": 0.5,
        "ledger": pb.Ledger(total=10),
    }
    return pb.JobStatus(**(values | fields))


def test_a_training_status_in_one_line():
    assert status_text(status()) == (
        "training: tasks 5/12, epoch 2/3, samples/s 12,346, loss 0.5123, workers 1/2, "
        "servers 2/2, staleness 0.50"
    )


def test_a_prediction_counts_records():
    text = status_text(
        status(tasks_total=0, records_done=1000, records_total=2000, ledger=pb.Ledger())
    )
    assert text.startswith("training: records 1,000/2,000, samples/s")
    assert "epoch" not in text


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], ["a"], ["a"]),
        (["a"], ["a"], []),
        (["a", "b"], ["b", "c"], ["c"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
        (["a"], ["x", "y"], ["x", "y"]),
    ],
)
def test_only_new_messages_are_told(before, now, new):
    assert new_messages(before, now) == new


def test_lines_come_on_changes_and_then_every_few_seconds(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = LineDisplay(stream)

    def lines_of(update):
        before = len(stream.getvalue().splitlines())
        shown.update(update)
        return [line[9:] for line in stream.getvalue().splitlines()[before:]]

    assert len(lines_of(status())) == 1
    assert lines_of(status()) == []
    assert lines_of(status(messages=["worker-0 died"])) == ["worker-0 died"]
    assert lines_of(status(messages=["worker-0 died"], state="evaluating"))[0][:10] == "evaluating"
    evaluation = pb.EvaluationResult(version=7, metrics={"b": 1, "a": 0.5}, records=1000)
    evaluated = status(messages=["worker-0 died"], state="evaluating", last_evaluation=evaluation)
    told = ["evaluation at version 7: a 0.5000, b 1.0000 (1,000 records)"]
    assert lines_of(evaluated) == told
    assert lines_of(evaluated) == []
    clock[0] += display.LINE_SECONDS
    assert len(lines_of(evaluated)) == 1


def test_an_evaluation_without_training_has_no_version():
    stream = io.StringIO()
    evaluation = pb.EvaluationResult(metrics={"auc": 0.5}, records=10)
    LineDisplay(stream).update(status(last_evaluation=evaluation))
    assert "evaluation: auc 0.5000 (10 records)" in stream.getvalue()


def test_the_live_display_draws_the_status_and_lets_events_scroll():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120, color_system=None)
    evaluation = pb.EvaluationResult(version=7, metrics={"auc": 0.78123}, records=10)
    with LiveDisplay(console) as shown:
        shown.update(status(messages=["worker-0 [bold]died"], last_evaluation=evaluation))
    text = stream.getvalue()
    for part in ("swim", "5/12 tasks", "2/3", "12,346", "auc 0.7812", "worker-0 [bold]died"):
        assert part in text


def test_the_ledger_is_a_sum_that_holds():
    ledger = {"total": 10, "trained_once": 6, "repeated": 1, "failed": 1, "pending": 2}
    assert ledger_text(ledger) == "10 = 6 trained once + 1 repeated + 1 failed + 2 not reached"
    assert ledger_text({"total": 3, "trained_once": 3}).endswith("0 failed")


def test_a_report_names_the_job_folder_where_there_is_one(tmp_path):
    stream = io.StringIO()
    console = Console(file=stream, width=200)
    text = '{"job_name": "swim", "command": "train", "state": "stopped"}'
    console.print(display.report(JobResult.from_json(text, tmp_path)))
    assert str(tmp_path) in stream.getvalue()
    gone = JobResult("swim", "train", "stopped", tmp_path / "elsewhere")
    console.print(display.report(gone))
    assert "elsewhere" not in stream.getvalue()


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_the_report_of_a_job_with_progress_says_how_to_go_on(tmp_path, state):
    given = {"model_def": "m.f", "training_data": "/data", "job_dir": str(tmp_path / "swim")}
    folder = JobFolder(tmp_path / "swim")
    folder.path.mkdir()
    folder.config.write_text(JobConfig(**given).resolved().to_json())
    folder.journal.touch()
    stream = io.StringIO()
    result = JobResult("swim", "train", state, folder.path)
    Console(file=stream, width=200).print(display.report(result))
    assert f"shoal train --resume {folder.path}" in stream.getvalue()


def test_the_stages_are_shown_with_the_largest_first(tmp_path):
    seconds = {"read": 1.0, "step": 6.0, "pull": 4.0, "training": 10.0}
    text = "step 60%, pull 40%, read 10%"
    stream = io.StringIO()
    console = Console(file=stream, width=120)
    console.print(display.block(status(stage_seconds=seconds)))
    result = JobResult("swim", "train", "succeeded", tmp_path, stage_seconds=seconds)
    console.print(display.report(result))
    assert stream.getvalue().count(text) == 2
    assert display.stages_text({}) == ""
    assert display.stages_text({"pull": 3.0, "ids": 1.0}) == "pull 75%, ids 25%"
