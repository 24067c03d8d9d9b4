"""What is told of processes that cannot run yet: a line for each reason, not for each process."""

from shoal.master.job.members.launcher import Waiting
from shoal.master.job.told_waits import LONGEST_SECONDS, QUIET_SECONDS, ToldWaits
from shoal.master.work.ids import ServerId, Start, WorkerId

ROOM, IMAGE = "Unschedulable: 0/1 nodes are available", "ErrImagePull: not found"


def came(waits, why, *processes, now=0.0):
    for process in processes:
        waits.add(Waiting(Start(process, 0), why), now)


def test_those_that_wait_for_the_same_are_told_together_and_once():
    waits = ToldWaits()
    came(waits, IMAGE, WorkerId(20))
    came(waits, ROOM, ServerId(1), *map(WorkerId, range(3, 20)), now=0.5)
    assert waits.due(QUIET_SECONDS) == []
    assert waits.due(0.5 + QUIET_SECONDS) == [
        f"1 server and 17 workers wait: {ROOM}",
        f"worker-20 waits: {IMAGE}",
    ]
    assert waits.due(100.0) == []


def test_what_has_passed_is_not_told_and_the_newest_reason_counts():
    waits = ToldWaits()
    came(waits, ROOM, WorkerId(0), WorkerId(1))
    waits.drop(Start(WorkerId(0), 0))
    came(waits, IMAGE, WorkerId(1))
    assert waits.due(QUIET_SECONDS) == [f"worker-1 waits: {IMAGE}"]


def test_those_that_come_without_end_are_told_after_a_while():
    waits = ToldWaits()
    seconds = int(LONGEST_SECONDS)
    for second in range(seconds):
        came(waits, ROOM, WorkerId(second), now=float(second))
        assert waits.due(second + QUIET_SECONDS / 2) == []
    assert waits.due(LONGEST_SECONDS) == [f"{seconds} workers wait: {ROOM}"]
