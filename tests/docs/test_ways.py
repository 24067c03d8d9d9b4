"""The ways of a gradient and of a task in docs/architecture.md are those of the code."""

import re
import threading
from collections import defaultdict

import pytest

from shoal.master.job.members.members import ProcessState
from shoal.master.journal.journal import Journal
from shoal.master.journal.witnesses import Witnesses
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from tests.docs.walks import ROOT, Stops, beside, tables, traced
from tests.master.strategies import config, register, w

# tox tests the wheel, beside which there are no pages.
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests"
)


BESIDE_A_QUESTION = [
    "master/job/clocks.py",
    "master/job/moves/moves.py",
    "master/job/phase_machine.py",
    "master/job/updates.py",
    "master/journal/records.py",
    "master/journal/witnesses.py",
    "master/work/accounts/known_pushes.py",
    "master/work/accounts/lease_book.py",
    "master/work/accounts/lease_copies.py",
    "master/work/description.py",
    "master/work/evaluation/evaluation.py",
    "master/work/evaluation/followups.py",
    "master/work/ids.py",
    "master/work/phases.py",
    "master/work/tasks/cutting.py",
    "master/work/tasks/epochs.py",
    "master/work/tasks/training_queue.py",
    "master/work/tasks/windows.py",
    "master/work/units.py",
    "proto/faults.py",
]
"""Modules that the question for a task enters, and that a reader of its way may pass by."""

BESIDE_A_REPORT = [
    "master/job/checkpoints/checkpoints.py",
    "master/job/checkpoints/drains.py",
    "master/job/members/members.py",
    "master/job/moves/departures.py",
    "master/job/moves/moves.py",
    "master/job/updates.py",
    "master/journal/records.py",
    "master/journal/witnesses.py",
    "master/work/accounts/known_pushes.py",
    "master/work/accounts/lease_book.py",
    "master/work/accounts/lease_copies.py",
    "master/work/accounts/ledger.py",
    "master/work/evaluation/evaluation.py",
    "master/work/ids.py",
    "master/work/outcomes.py",
    "master/work/phases.py",
    "master/work/tasks/epochs.py",
    "master/work/tasks/training_queue.py",
    "master/work/units.py",
    "proto/faults.py",
]


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


def test_a_task_goes_its_way_as_the_page_says(tmp_path):
    journal = Journal(tmp_path / "journal", config())
    job = SharedJob(
        restored := journal.restore(), commit=journal.commit, witnesses=Witnesses(journal)
    )
    handlers = MasterService(job).handlers()
    job.apply(lambda job, _: register(job, DataDescribed(training=(Source("t", 20),))))
    assert restored.members.workers[w(0)].state == ProcessState.ALIVE
    asked, reported = (
        [stop for stop in way if stop[0].startswith("master/")]
        for way in tables("The way of a task")
    )
    own = threading.current_thread().name
    calls = defaultdict(list)
    with traced(calls):
        task = handlers[methods.GET_TASK](pb.GetTaskRequest(worker=0)).task
    assert beside(calls[own], asked) == BESIDE_A_QUESTION
    assert task.kind == pb.TRAIN
    report = pb.ReportTaskRequest(worker=0, task=task.id, done=True, version=1)
    calls.clear()
    with traced(calls):
        handlers[methods.REPORT_TASK](report)
    known = {module for module, _ in asked}
    assert [each for each in beside(calls[own], reported) if each not in known] == BESIDE_A_REPORT
    assert restored.work.ledger.trained_once == task.range.end
    journal.close()
