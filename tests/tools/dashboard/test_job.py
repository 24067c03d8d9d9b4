"""The facts of the page while a real job runs, is disturbed, and ends."""

import subprocess

import pytest

from tests.jobs.running import RunningJob, until
from tests.tools.dashboard.dashboards import Dashboard

pytest.importorskip("starlette", reason="the extra shoal[dashboard] is not installed")
pytest.importorskip("uvicorn", reason="the extra shoal[dashboard] is not installed")

pytestmark = pytest.mark.job


def lane_of(course, name):
    return next(lane for lane in course["lanes"] if lane["name"] == name)


def kinds_of(course):
    """What worker-0 was at."""
    return [span[2] for span in lane_of(course, "worker-0")["spans"]] if course["lanes"] else []


def tellers(folder):
    """Processes that read the journal of a job."""
    line = f"told_course --follow {folder.path}"
    found = subprocess.run(["pgrep", "-f", line], capture_output=True, text=True, check=False)
    return found.stdout.split()


def test_a_job_is_watched_through_a_death_to_its_end(tmp_path, numbers):
    with RunningJob(
        "train",
        tmp_path,
        "watched",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbers,
        batch_size=10,
        num_minibatches_per_task=4,
        workers="1",
        servers="2",
    ) as job:
        job.at_gate("step-3")
        with Dashboard(job.folder.path, tmp_path) as page:
            facts = page.wait("training", "/facts", lambda facts: facts["state"] == "training")
            assert not facts["ended"]
            assert facts["ledger"]["total"] == 480
            (worker,) = facts["workers"]
            assert (worker["name"], worker["state"], worker["deaths"]) == ("worker-0", "alive", 0)
            assert worker["task"]["kind"] == "TRAIN"
            assert worker["task"]["source"] == str(numbers)
            assert worker["bytes"] > 0
            machine = facts["machine"]
            assert 0 < machine["bytes"] < machine["of_bytes"]
            assert [each["name"] for each in facts["servers"]] == ["ps-0", "ps-1"]
            # What was before the page was there is known by the journal.
            course = page.wait(
                "the journal", "/course", lambda course: kinds_of(course)[:1] == ["starting"]
            )
            assert kinds_of(course)[-1] == "TRAIN"
            assert "DESCRIBE_DATA" in kinds_of(course)
            assert tellers(job.folder)

            job.kill("worker")

            def died(course):
                return [kind for _, kind in lane_of(course, "worker-0")["marks"]]

            course = page.wait("the restart", "/course", lambda course: "restart" in died(course))
            assert died(course) == ["death", "restart"]
            # The facts are of the last answer of the master, the course also of its journal.
            facts = page.wait(
                "the death", "/facts", lambda facts: facts["workers"][0]["deaths"] == 1
            )
            assert any("worker-0 died" in each["text"] for each in facts["messages"])
            job.open("step-3")
            rows = page.wait(
                "rows",
                "/facts",
                lambda facts: facts["ended"] or sum(each["rows"] for each in facts["tables"]),
            )
            assert rows["state"] != "failed"
            job.ended().succeeded()

            facts = page.wait("the end", "/facts", lambda facts: facts["state"] == "succeeded")
            assert facts["ended"]
            ledger = facts["ledger"]
            assert ledger["trained_once"] + ledger["repeated"] == ledger["total"] == 480
            course = page.wait(
                "the last record", "/course", lambda course: course["ledger"][-1][-1] == 0
            )
            assert course["throughput"][0]
            assert page.json("/logs")["lines"][:2] == ["master.log", "worker-0.1.log"]
        until("the end of what read the journal", lambda: not tellers(job.folder))

        # Opened only now, the page tells the same course.
        with Dashboard(job.folder.path, tmp_path) as page:
            course = page.wait(
                "the course", "/course", lambda course: course["ledger"][-1][-1:] == [0]
            )
            marks = [kind for _, kind in lane_of(course, "worker-0")["marks"]]
            assert marks == ["death", "restart"]
            facts = page.json("/facts")
            assert facts["state"] == "succeeded"
            assert sum(each["rows"] for each in facts["tables"]) > 0

            def to_the_end(course):
                spans = [lane_of(course, name)["spans"][-1] for name in ("ps-0", "ps-1")]
                return all(span[1:3] == [round(facts["seconds"], 2), "alive"] for span in spans)

            page.wait("the servers' lanes to the end", "/course", to_the_end)


def test_a_job_that_does_not_answer_and_then_is_killed_is_told_so(tmp_path, numbers):
    with RunningJob(
        "train",
        tmp_path,
        "silent",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbers,
        batch_size=10,
    ) as job:
        job.at_gate("step-3")
        with Dashboard(job.folder.path, tmp_path) as page:
            page.wait("training", "/facts", lambda facts: facts["state"] == "training")
            job.kill_whole()
            facts = page.wait("its end", "/facts", lambda facts: facts["ended"])
            assert facts["state"] == "killed"
            assert facts["ledger"]["total"] == 480
            assert facts["seconds"] > 0
            assert "to go on with it: shoal train --resume" in facts["failure"]
            assert facts["ledger"]["total"] == 480  # what it was last
