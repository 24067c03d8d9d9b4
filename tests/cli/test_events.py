"""--events tells each thing that happens to a job once, as a line of JSON."""

import io
import json
import os
from pathlib import Path

from click.testing import CliRunner

from shoal.base.disk.job_folder import JobFolder
from shoal.cli.main import main
from shoal.client.show.display import LineDisplay
from shoal.client.show.events import EventLines
from shoal.config.job import JobConfig
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult


def lines():
    """Events of a job that has begun, and a function that gives those told since the last call."""
    stream, shown = io.StringIO(), io.StringIO()
    found = EventLines(LineDisplay(shown), stream)
    config = JobConfig(model_def="m.f", training_data="t.csv", job_name="job")
    place = 0

    def told():
        nonlocal place
        new, place = stream.getvalue()[place:], len(stream.getvalue())
        each = [json.loads(line) for line in new.splitlines()]
        assert all(event.pop("job") == "job" and event.pop("time") for event in each)
        return [(event.pop("event"), event.pop("seconds"), event) for event in each]

    found.started(config, JobFolder(Path("job")))
    assert [kind for kind, _, _ in told()] == ["begin"]
    return found, told, shown


def status(**values):
    worker = {"worker": 0, "state": "alive", "starts": 1} | values.pop("worker", {})
    server = {"server": 0, "state": "alive", "starts": 1}
    views = {"workers": [pb.WorkerView(**worker)], "servers": [pb.ServerView(**server)]}
    return pb.JobStatus(**({"state": "training", "seconds": 5.0, **views} | values))


def test_a_status_is_told_once_and_shown(tmp_path):
    found, told, shown = lines()
    for _ in range(2):
        found.update(status(messages=["1.0 s: it began"], waits_for="data"))
    assert told() == [
        ("message", 5.0, {"text": "1.0 s: it began"}),
        ("start", 5.0, {"process": "worker-0", "starts": 1}),
        ("ready", 5.0, {"process": "worker-0"}),
        ("start", 5.0, {"process": "ps-0", "starts": 1}),
        ("ready", 5.0, {"process": "ps-0"}),
        ("state", 5.0, {"state": "training", "before": None}),
        ("waiting", 5.0, {"waits_for": "data"}),
    ]
    assert "it began" in shown.getvalue()
    found.update(status(state="evaluating", messages=["1.0 s: it began"]))
    assert told() == [
        ("state", 5.0, {"state": "evaluating", "before": "training"}),
        ("waiting", 5.0, {"waits_for": None}),
    ]


def test_deaths_and_restarts_between_two_statuses_are_all_told():
    found, told, _ = lines()
    found.update(status())
    told()
    found.update(status(worker={"state": "alive", "starts": 3, "deaths": 2}))
    assert [(kind, event) for kind, _, event in told()] == [
        ("death", {"process": "worker-0", "deaths": 1}),
        ("death", {"process": "worker-0", "deaths": 2}),
        ("restart", {"process": "worker-0", "starts": 2}),
        ("restart", {"process": "worker-0", "starts": 3}),
        ("ready", {"process": "worker-0"}),
    ]


def test_checkpoints_and_evaluations_are_told_but_not_those_of_before_a_resumption():
    found, told, _ = lines()
    first = pb.EvaluationResult(version=3, epoch=0, records=9, metrics={"auc": 0.5})
    found.update(status(checkpoint_seconds=2.0, last_evaluation=first))
    assert {kind for kind, _, _ in told()} == {"start", "ready", "state"}
    found.update(status(seconds=6.0, checkpoint_seconds=3.01, last_evaluation=first))
    assert told() == []
    second = pb.EvaluationResult(version=7, epoch=1, records=9, metrics={"auc": float("nan")})
    found.update(status(seconds=7.0, checkpoint_seconds=1.0, version=8, last_evaluation=second))
    evaluated = {"version": 7, "epoch": 1, "records": 9, "metrics": {"auc": None}}
    assert told() == [("checkpoint", 7.0, {"version": 8}), ("evaluation", 7.0, evaluated)]
    third = {"version": 9, "epoch": 1, "records": 9, "metrics": {"auc": 0.75}}
    before = {"version": 3, "epoch": 0, "records": 9, "metrics": {"auc": 0.5}}
    result = {
        "job_name": "job",
        "command": "train",
        "state": "succeeded",
        "seconds": 8.0,
        "metrics": {"auc": 0.75},
        "evaluations": [before, evaluated, third],
    }
    found.ended(JobResult.from_json(json.dumps(result), Path("job")))
    evaluation, end = told()
    assert evaluation[::2] == ("evaluation", third)
    assert (end[0], end[1]) == ("end", 8.0)
    assert (end[2]["state"], end[2]["exit_code"], end[2]["metrics"]) == (
        "succeeded",
        0,
        {"auc": 0.75},
    )


def test_a_reader_that_has_gone_does_not_end_the_job():
    shown = io.StringIO()
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        found = EventLines(LineDisplay(shown), stream)
        found.update(status())
        found.update(status(state="evaluating"))
        assert shown.getvalue().count("--events cannot be written any more: Broken pipe") == 1


ARGUMENTS = ["train", "--model-def", "model.custom_model", "--training-data", "train.csv"]


def test_events_on_standard_output_are_alone_there(project, scripted):
    scripted("succeed")
    done = CliRunner().invoke(main, [*ARGUMENTS, "--events", "-"], prog_name="shoal")
    assert done.exit_code == 0, done.output
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["begin", "end"]
    assert events[-1]["ledger"]["trained_once"] == 90
    assert "100 = 90 trained once" in done.stderr


def test_a_full_disk_changes_nothing_for_the_job(project, scripted):
    scripted("succeed")
    done = CliRunner().invoke(main, [*ARGUMENTS, "--events", "/dev/full"], prog_name="shoal")
    assert done.exit_code == 0, done.output
    assert "--events cannot be written any more: No space left on device" in done.output


def test_a_file_is_added_to_and_has_the_end_of_a_master_that_died(project, scripted):
    (project / "events.jsonl").write_text("{}\n")
    scripted("orphan")
    done = CliRunner().invoke(main, [*ARGUMENTS, "--events", "events.jsonl"], prog_name="shoal")
    assert done.exit_code == 1
    first, *_, end = [
        json.loads(each) for each in (project / "events.jsonl").read_text().splitlines()
    ]
    assert first == {}
    assert (end["event"], end["exit_code"]) == ("end", 1)
    assert "the last words" in end["failure"]


def test_where_events_cannot_go_is_one_line(project):
    for more, words in (
        (["--events", "no/such/file"], "Error: --events: no/such/file cannot be written: No such"),
        (
            ["--events", "-", "--detach"],
            "Error: --events cannot be combined with --detach or --yaml",
        ),
    ):
        done = CliRunner().invoke(main, [*ARGUMENTS, *more], prog_name="shoal")
        assert done.exit_code == 2
        assert done.stderr.startswith(words)
        assert done.stderr.count("\n") == 1
