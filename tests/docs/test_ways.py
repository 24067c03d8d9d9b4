"""The ways of a gradient and of a task in docs/architecture.md are those of the code."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shoal.master
from shoal.master.job.members.members import ProcessState
from shoal.master.journal.journal import Journal
from shoal.master.journal.witnesses import Witnesses
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import config, register, w

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\w+/[\w/.]+) \| `(\w+)` \| ", re.MULTILINE)

# tox tests the wheel, beside which there are no pages.
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests"
)

Stops = list[tuple[str, str]]


def tables(title: str) -> list[Stops]:
    """The (module, entry) pairs of each table under a heading."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    _, _, section = page.partition(f"\n## {title}\n")
    parts = section.partition("\n## ")[0].split("| --- | --- | --- |")
    return [ROW.findall(part) for part in parts[1:]]


def check_that_they_are_there(stops: Stops) -> None:
    for module, name in stops:
        text = (ROOT / module).read_text()
        assert re.search(rf"\bdef {name}\(|\b{name}\)?\(", text), f"{module} has no {name}"


def test_every_stop_of_a_gradient_is_there_and_its_way_never_comes_back():
    stops = [stop for table in tables("The way of a gradient") for stop in table]
    assert 20 <= len(stops) <= 35
    check_that_they_are_there(stops)
    for module, _ in stops:
        visits = [each for each, _ in stops].count(module)
        assert visits == 1 or module == "worker/training/steps.py", f"back in {module}"


def test_every_stop_of_a_task_is_there_and_neither_way_comes_back():
    asked, reported = tables("The way of a task")
    assert 20 <= len(asked) + len(reported) <= 25
    for stops in (asked, reported):
        check_that_they_are_there(stops)
        assert len({module for module, _ in stops}) == len(stops)


@contextmanager
def traced(calls: Stops) -> Iterator[None]:
    """Add to `calls` the functions of the master that this thread enters."""
    root = Path(shoal.master.__file__).parent

    def enter(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            calls.append((f"master/{path.relative_to(root)}", frame.f_code.co_name))

    sys.setprofile(enter)
    try:
        yield
    finally:
        sys.setprofile(None)


def check_that_it_is_gone(stops: Stops, question: Callable[[], object]) -> None:
    """That a call of the master enters these stops in their order."""
    calls: Stops = []
    with traced(calls):
        question()
    left = iter(calls)
    for stop in stops:
        if stop[0].startswith("master/"):
            assert stop in left, f"{stop} is not entered, or not in its place"


def test_a_task_goes_its_way_as_the_page_says(tmp_path):
    journal = Journal(tmp_path / "journal", config())
    job = SharedJob(
        restored := journal.restore(), commit=journal.commit, witnesses=Witnesses(journal)
    )
    handlers = MasterService(job).handlers()
    job.apply(lambda job, _: register(job, DataDescribed(training=(Source("t", 20),))))
    assert restored.members.workers[w(0)].state == ProcessState.ALIVE
    asked, reported = tables("The way of a task")
    replies = []
    request = pb.GetTaskRequest(worker=0)
    check_that_it_is_gone(asked, lambda: replies.append(handlers[methods.GET_TASK](request)))
    task = replies[0].task
    assert task.kind == pb.TRAIN
    report = pb.ReportTaskRequest(worker=0, task=task.id, done=True, version=1)
    check_that_it_is_gone(reported, lambda: handlers[methods.REPORT_TASK](report))
    assert restored.work.ledger.trained_once == task.range.end
    journal.close()
