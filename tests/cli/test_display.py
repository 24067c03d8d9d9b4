"""What is drawn for a status and reported for a result."""

import io
import json
import os
import sys

import pytest
from rich.console import Console

from shoal.base.disk.job_folder import JobFolder
from shoal.base.words import counted
from shoal.client.show import display, notebook
from shoal.client.show.console import PlainConsole
from shoal.client.show.course import Best, Course
from shoal.client.show.display import LineDisplay, LiveDisplay, new_messages
from shoal.client.show.drawn import block, status_text
from shoal.client.show.report import (
    COLUMNS,
    bad_records_text,
    ledger_text,
    print_report,
    report,
    report_text,
)
from shoal.client.show.stages import bottleneck, stages_text
from shoal.config.job import JobConfig
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult


def status(**fields):
    values = {
        "job_name": "swim",
        "state": "training",
        "epoch": 1,
        "epochs": 3,
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


def line(given):
    course = Course()
    course.update(given, 0.0)
    return status_text(given, course)


def test_a_training_status_in_one_line():
    assert line(status()) == (
        "training: tasks 5/12, epoch 2/3, samples/s 12,346, loss 0.5123, workers 1/2, "
        "servers 2/2, staleness 0.50"
    )


def test_workers_that_are_given_back_count_no_more():
    assert "workers 2/2" in line(status(workers_alive=3, workers_wanted=2))


def test_a_prediction_counts_records():
    given = status(
        state="predicting",
        tasks_total=0,
        records_done=1000,
        records_total=2000,
        ledger=pb.Ledger(),
    )
    text = line(given)
    assert text.startswith("predicting: records 1,000/2,000, samples/s")
    assert "epoch" not in text


def test_a_start_says_what_it_waits_for():
    given = status(state="starting", tasks_done=0, tasks_total=1)
    assert line(given) == "starting"
    given.waits_for = "TensorFlow to start in worker-0"
    assert line(given) == "starting: waiting for TensorFlow to start in worker-0"
    assert "0/1" not in drawn(given)
    assert "waiting for TensorFlow to start in worker-0" in drawn(given)


@pytest.mark.parametrize("state", ["saving", "evaluating", "exporting", "succeeded"])
def test_no_rate_is_told_once_training_is_over(state):
    given = status(state=state, samples_per_second=0.0)
    assert "samples/s" not in line(given)
    assert "samples/s" not in drawn(given)


def test_the_loss_stands_still_after_the_last_step():
    course = Course()
    for state, loss in (("training", 0.7), ("training", 0.5), ("saving", 0.4), ("succeeded", 0.3)):
        given = status(state=state, loss=loss)
        course.update(given, 0.0)
    assert "loss 0.5000" in status_text(given, course)


def test_the_time_that_is_left_follows_the_pace():
    course, ledger = Course(), pb.Ledger(total=1000, pending=1000)
    for now, pending in ((0.0, 1000), (1.0, 999), (100.0, 400)):
        ledger.pending = pending
        course.update(status(ledger=ledger), now)
    assert course.time_left == "about 1 min"  # 600 records took 100 s, and 400 are left
    assert "about 1 min left" in status_text(status(), course)
    course.update(status(state="exporting", ledger=ledger), 101.0)
    assert course.time_left == ""


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], ["a"], ["a"]),
        (["a"], ["a"], []),
        (["a", "b"], ["b", "c"], ["c"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
        (["a"], ["x", "y"], ["x", "y"]),
        # A new master, that did not hear of "b".
        (["a", "b", "c"], ["a", "c", "d"], ["d"]),
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
    assert lines_of(status(tasks_done=6)) == []
    assert lines_of(status(messages=["worker-0 died"])) == ["worker-0 died"]
    assert lines_of(status(messages=["worker-0 died"], state="evaluating"))[0][:10] == "evaluating"
    evaluation = pb.EvaluationResult(version=7, metrics={"b": 1, "a": 0.5}, records=1000)
    evaluated = status(messages=["worker-0 died"], state="evaluating", last_evaluation=evaluation)
    told = ["evaluation at version 7: a 0.5000, b 1.0000 (1,000 records)"]
    assert lines_of(evaluated) == told
    assert lines_of(evaluated) == []
    clock[0] += display.LINE_SECONDS
    evaluated.tasks_done += 1
    assert len(lines_of(evaluated)) == 1


def test_a_log_has_no_equal_lines(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = LineDisplay(stream)
    waiting = status(state="starting", waits_for="worker-0 to start")
    for _ in range(4 * 90):  # four looks a second
        shown.update(waiting)
        clock[0] += 0.25
    shown.event("the API server is away")
    shown.event("the API server is away")
    lines = [each[9:] for each in stream.getvalue().splitlines()]
    assert lines == [
        "starting: waiting for worker-0 to start",
        "starting: waiting for worker-0 to start (for 60 s)",
        "the API server is away",
    ]


def test_progress_while_the_job_waits_is_told_every_few_seconds(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = LineDisplay(stream)
    waiting = status(state="starting", waits_for="ps-0, which restores checkpoint 12")
    for step in range(4 * 11):  # four looks a second
        waiting.waits_progress = f"{step / 10} of 9.8 GB"
        shown.update(waiting)
        clock[0] += 0.25
    lines = [each[9:] for each in stream.getvalue().splitlines()]
    doing = "starting: waiting for ps-0, which restores checkpoint 12:"
    assert lines == [
        f"{doing} 0.0 of 9.8 GB",
        f"{doing} 2.0 of 9.8 GB",
        f"{doing} 4.0 of 9.8 GB",
    ]


def test_why_a_job_failed_is_told_at_its_end_only():
    stream = io.StringIO()
    failure = pb.Failure(kind=pb.USER_ERROR, message="no such column")
    messages = ["1.0 s: worker-0 died", "2.0 s: the job failed: no such column"]
    LineDisplay(stream).update(status(state="failed", messages=messages, failure=failure))
    assert "worker-0 died" in stream.getvalue()
    assert "no such column" not in stream.getvalue()


def test_the_best_evaluation_is_told_beside_the_last():
    stream = io.StringIO()
    shown = LineDisplay(stream)
    for version, auc, loss in ((100, 0.75, 0.6), (200, 0.79, 0.5), (300, 0.78, 0.4)):
        metrics = {"auc": auc, "loss": loss, "spread": auc}
        shown.update(status(last_evaluation=pb.EvaluationResult(version=version, metrics=metrics)))
    *_, last = stream.getvalue().splitlines()
    told = "auc 0.7800 (best 0.7900 at version 200), loss 0.4000, spread 0.7800 (0 records)"
    assert last.endswith(f"evaluation at version 300: {told}")
    assert Best([(1, {"auc": 0.50001})]).better("auc", 0.5) == "", "nobody sees a difference"
    assert Best([(1, {"auc": None, "out_auc": float("nan")})]).better("out_auc", 0.5) == ""


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
    console.print(report(JobResult.from_json(text, tmp_path)))
    assert str(tmp_path) in stream.getvalue()
    gone = JobResult("swim", "train", "stopped", tmp_path / "elsewhere")
    console.print(report(gone))
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
    Console(file=stream, width=200).print(report(result))
    assert f"shoal train --resume {folder.path}" in stream.getvalue()


def drawn(given, width=80):
    stream = io.StringIO()
    Console(file=stream, width=width).print(block(given))
    return stream.getvalue()


STAGES = {
    "wait for data": 1.0,
    "read": 1.0,
    "feed": 2.0,
    "ids": 1.5,
    "pull": 4.0,
    "wait for pull": 3.0,
    "step": 6.0,
    "push": 2.0,
    "wait for push": 1.0,
    "training": 10.0,
}


def test_the_block_fits_a_narrow_terminal_and_its_lines_keep_their_places():
    metrics = {f"{name}_auc": 0.5 for name in ("click", "buy", "follow", "share", "comment")}
    evaluation = pb.EvaluationResult(version=1, metrics=metrics, records=1)
    given = status(
        job_name="a-job-with-a-rather-long-name-of-its-own",
        stage_seconds=STAGES,
        left_out=3,
        bad_records=1,
        last_evaluation=evaluation,
        waits_for="ps-0, ps-1, ps-2 and 5 more to be started again",
    )
    text = drawn(given)
    assert all(len(each) <= 80 for each in text.splitlines())
    assert len(text.splitlines()) == 7
    later = {name: seconds * (2 if name == "pull" else 1) for name, seconds in STAGES.items()}
    given.stage_seconds.update(later)
    assert len(drawn(given).splitlines()) == 7
    assert "3 minibatches left out, 1 bad record" in text


def test_the_stages_have_one_order_and_a_sentence_names_the_bottleneck(tmp_path):
    text = (
        "read 10%, feed 20%, wait for data 10%, ids 15%, pull 40%, wait for pull 30%, "
        "step 60%, push 20%, wait for push 10%"
    )
    assert stages_text(STAGES) == text
    sentence = "most of the workers' time goes into the model's step (60%)"
    assert bottleneck(STAGES) == sentence
    slow = STAGES | {"feed": 9.0}
    assert bottleneck(slow) == "most of the workers' time goes into reading and feed (100%)"
    evaluated = {"ids": 0.1, "pull": 2.0}  # of which the model's step is no stage
    for nothing in ({}, evaluated):
        assert stages_text(nothing) == bottleneck(nothing) == ""
    assert sentence in drawn(status(stage_seconds=STAGES))
    result = JobResult("swim", "train", "succeeded", tmp_path, stage_seconds=STAGES)
    stream = io.StringIO()
    Console(file=stream, width=200).print(report(result))
    assert text in stream.getvalue()
    assert sentence in stream.getvalue()


def test_a_report_that_is_redirected_has_short_lines_and_whole_paths(tmp_path):
    place = tmp_path / ("long" * 30)
    place.mkdir()
    ledger = {"total": 10**12, "trained_once": 10**12, "repeated": 10**11, "failed": 10**10}
    result = JobResult(
        *("swim", "train", "succeeded", place),
        ledger=ledger,
        stage_seconds=STAGES,
        output=str(place),
        workers={"starts": 2, "deaths": 1},
    )
    text = report_text(result)
    assert all(len(each) <= COLUMNS or str(place) in each for each in text.splitlines())
    assert str(place) in text
    assert "worker starts" in text


def test_a_bad_record_is_told_in_a_line_or_two():
    bad = {"data": "training", "source": "a.csv", "place": "row 2", "error": "wrong " * 100}
    text = bad_records_text([bad])
    assert len(text) < 300
    assert text.endswith("...")


TRACEBACK = """Traceback (most recent call last):
  File "/x/lib/python3.11/site-packages/shoal/worker/module.py", line 44, in user_code
    yield
  File "/home/me/model.py", line 9, in feed
    return dataset.map(parse)
           ^^^^^^^^^^^^^^^^^^
  File "/x/lib/python3.11/site-packages/tensorflow/python/data/ops/dataset_ops.py", line 2, in map
    return map_op._map_v2(
           ^^^^^^^^^^^^^^^
  File "/tmp/__autograph_generated_filerf8d6gdo.py", line 10, in tf__parse
    label = ag__.converted_call(ag__.ld(helper), (ag__.ld(record),), None, fscope)
AttributeError: in user code:

    File "/home/me/model.py", line 7, in parse  *
        label = helper(record)

    AttributeError: no "such" thing
"""


@pytest.mark.parametrize("form", [str, json.dumps])
def test_a_failure_is_told_once_with_the_user_s_lines_and_the_log(
    tmp_path, capsys, monkeypatch, form
):
    monkeypatch.chdir(tmp_path)
    logs = tmp_path / "swim" / "logs"
    logs.mkdir(parents=True)
    (logs / "worker-0.1.log").write_text("well")
    (logs / "worker-1.1.log").write_text(form(TRACEBACK))
    message = 'feed() of model.py raised AttributeError: no "such" thing'
    failure = {"kind": "USER_CODE", "message": message, "traceback": TRACEBACK}
    print_report(JobResult("swim", "train", "failed", tmp_path / "swim", failure=failure))
    assert capsys.readouterr().err.splitlines() == [
        "Your code, the last call last:",
        '  File "/home/me/model.py", line 9, in feed',
        "    return dataset.map(parse)",
        "    ... calls of libraries: 2",
        '  File "/home/me/model.py", line 7, in parse',
        "    label = helper(record)",
        "The whole traceback: swim/logs/worker-1.1.log",
        f"Error: {message}",
    ]
    ours = failure | {"kind": "INTERNAL"}
    print_report(JobResult("swim", "train", "failed", tmp_path / "swim", failure=ours))
    assert TRACEBACK in capsys.readouterr().err


def test_one_of_a_kind_is_singular(tmp_path):
    assert [counted(1, "server"), counted(2, "server")] == ["1 server", "2 servers"]
    stream = io.StringIO()
    config = JobConfig(model_def="m.f", training_data="/data", servers="1", workers="2").resolved()
    LineDisplay(stream).started(config, JobFolder(tmp_path))
    assert "1 server, 2 workers;" in stream.getvalue()


def test_a_notebook_has_one_display_that_is_updated_and_keeps_its_newest_lines(tmp_path):
    first, updates = [], []

    def show(bundle):
        first.append(bundle)
        return updates.append

    shown = notebook.NotebookDisplay(show)
    with shown:
        shown.event("<b>began\x1b</b>")
        shown.event("<b>began\x1b</b>")
        shown.update(status())
        assert "&lt;b&gt;began&lt;/b&gt;" in updates[-1]["text/html"]
        assert "12,346" in updates[-1]["text/plain"]
        before = len(updates)
        shown.draw(status())
        assert len(updates) == before  # nothing has changed
        for number in range(notebook.SHOWN_EVENTS):
            shown.event(f"event {number}.")
        assert "(1 line before)" in updates[-1]["text/plain"]
    assert len(first) == 1
    assert "began" in first[0]["text/plain"]
    # After the end there are the lines only, as on a terminal.
    last = updates[-1]["text/plain"]
    assert "12,346" not in last
    assert "began" not in last
    assert "event 0." in last
    assert f"event {notebook.SHOWN_EVENTS - 1}." in last


def test_no_terminal_and_no_notebook_has_lines(monkeypatch):
    monkeypatch.setattr(notebook.sys, "stdout", io.StringIO())
    assert not notebook.in_notebook()
    assert isinstance(notebook.default_display(), LineDisplay)


def test_a_narrow_terminal_has_two_whole_lines_of_what_matters():
    given = status(tasks_done=40, tasks_total=60, epoch=4, epochs=60)
    course = Course()
    for now, pending in ((0.0, 1000), (100.0, 400)):
        given.ledger.CopyFrom(pb.Ledger(total=1000, pending=pending))
        course.update(given, now)
    stream = io.StringIO()
    Console(file=stream, width=40).print(block(given, course))
    assert stream.getvalue().splitlines() == [
        "training, 40/60 tasks, epoch 5/60",
        "loss 0.5123, about 1 min left",
    ]


def live_display(stream):
    return LiveDisplay(PlainConsole(file=stream, force_terminal=True, width=120))


@pytest.mark.parametrize("shown", [LineDisplay, live_display])
def test_a_display_that_nobody_sees_any_more_is_gone_and_fails_at_nothing(shown, monkeypatch):
    read, write = os.pipe()
    with open(write, "w") as stream, shown(stream) as display:
        monkeypatch.setattr(sys, "stdout", stream)
        display.event("one")
        assert not display.gone
        os.close(read)  # as the end of `head` does
        display.event("two")
        assert display.gone
        display.update(status(messages=["three"]))
        print("what else is printed goes nowhere", flush=True)
        monkeypatch.undo()
