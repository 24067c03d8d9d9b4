"""--events of a whole job, one of whose workers is killed."""

import json

import pytest

from tests.jobs.results import SERIAL
from tests.jobs.running import RunningJob

pytestmark = pytest.mark.job


def test_the_events_of_a_job_with_a_killed_worker(numbered, tmp_path):
    training, validation = numbered
    path = tmp_path / "events.jsonl"
    with RunningJob(
        "train",
        tmp_path,
        "told",
        environment={"GATES": "step-20"},
        training_data=training,
        validation_data=validation,
        num_minibatches_per_task=4,
        events=path,
        **SERIAL,
    ) as job:
        job.at_gate("step-20")
        job.kill("worker")
        job.open("step-20")
        ended = job.ended().succeeded()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("begin", "end")
    assert kinds.count("death") == 1
    death, restart = kinds.index("death"), kinds.index("restart")
    assert death < restart
    assert events[death]["process"] == events[restart]["process"] == "worker-0"
    (evaluation,) = (event for event in events if event["event"] == "evaluation")
    assert evaluation["metrics"] == ended.result["metrics"]
    assert "training" in [event.get("state") for event in events]
    assert events[-1]["ledger"] == ended.ledger
    assert [event["seconds"] for event in events[1:]] == sorted(e["seconds"] for e in events[1:])
