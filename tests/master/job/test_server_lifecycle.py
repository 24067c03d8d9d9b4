"""What the end, the silence and the return of a parameter server lead to."""

from __future__ import annotations

import pytest

from shoal.master.calls.server_work import note_status
from shoal.master.job.events import (
    CheckpointRefused,
    CheckpointTaken,
    JobBegun,
    JobFailed,
    JobStopped,
    ProcessFailed,
    ProtectionChanged,
    Resumed,
    ServerHung,
    ServerRegistered,
    Taken,
    TaskReported,
    WorkerFenced,
    WorkerMet,
    WorkerRegistered,
)
from shoal.master.job.instructions import KillProcess, StartProcess
from shoal.master.job.job import Job
from shoal.master.journal.events import RecordedJob
from shoal.master.result import result_of
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed, Done
from shoal.master.work.phases import Phase
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.strategies import begun, config, exited, finish_next, heartbeat, register, take, w

TRAINING = DataDescribed(training=(Source("t", 20),))


def test_a_hung_server_is_killed_once_and_started_again():
    job = begun(TRAINING, servers="2", timeout_seconds=30.0)
    job.members.servers[ServerId(1)].answered = 40.0
    job.members.servers[ServerId(0)].answered = 100.0
    job.members.workers[w(0)].last_seen = 100.0
    job.tick(100.0)
    assert job.take_instructions() == []
    job.tick(100.1)
    job.tick(101.0)
    assert job.take_instructions() == [KillProcess(Start(ServerId(1), 0))]
    assert any("ps-1 has not answered for 60 s" in text for text in job.record.messages)
    job.on(exited(ServerId(1)), 102.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    job.on(ServerRegistered(ServerId(1), 1, "host:9"), 300.0)
    assert job.members.hung_servers(301.0) == [job.members.servers[ServerId(0)]]
    # One that was not registered again cannot answer.
    job.on(ServerHung(ServerId(1), 0), 302.0)
    assert job.take_instructions() == []


AWAY = Failure(pb.SERVER_AWAY, "parameter server 1 has been out of reach for 130 s", server=1)
KILLED = KillProcess(Start(ServerId(1), 0))


def misses_it(job, worker, incarnation, now):
    """A worker ends, as it does not reach ps-1, and is started again; what is to be done."""
    take(job, w(worker), incarnation, now=now)
    job.on(ProcessFailed(Start(w(worker), incarnation), AWAY), now)
    job.on(WorkerFenced(w(worker), incarnation, [None, None]), now)
    job.on(exited(w(worker), incarnation), now)
    return job.take_instructions()


def test_a_server_that_answers_the_master_and_no_worker_is_killed():
    job = begun(TRAINING, servers="2", workers="2")
    assert KILLED not in misses_it(job, 0, 0, 10.0)
    assert KILLED in misses_it(job, 1, 0, 11.0)
    assert any(
        "ps-1 answers the master, but 2 workers in a row could not reach it, and is killed" in text
        for text in job.record.messages
    )
    # Once; and of its successor nothing is known yet.
    assert KILLED not in misses_it(job, 0, 1, 12.0)
    job.on(exited(ServerId(1)), 13.0)
    job.on(ServerRegistered(ServerId(1), 1, "host:9"), 14.0)
    assert job.members.servers[ServerId(1)].missed_by == []


def test_one_of_several_workers_may_have_a_network_of_its_own():
    job = begun(TRAINING, servers="2", workers="2")
    for incarnation in range(4):
        assert KILLED not in misses_it(job, 0, incarnation, 10.0 * incarnation)
    finish_next(job, w(1), Done())  # the others reach it
    assert KILLED not in misses_it(job, 1, 0, 90.0)


def test_the_only_worker_has_to_miss_a_server_twice():
    job = begun(TRAINING, servers="2", workers="1")
    assert KILLED not in misses_it(job, 0, 0, 10.0)
    assert KILLED in misses_it(job, 0, 1, 20.0)


def resumed(kept=(3, 4)):
    """A job of two servers that was resumed from the newest of its checkpoints."""
    events = []
    job = RecordedJob(config(servers="2", workers="1", checkpoint_steps=5), events.append)
    job.on(JobBegun(), 0.0)
    for number in kept:
        job.on(CheckpointTaken(Taken(number, 7, 100, 0.1), False), 1.0)
    job.on(JobFailed(Failure.internal("killed")), 2.0)
    job.on(Resumed("again", {}, job.checkpoints.kept.all[-1], (), ()), 3.0)
    assert [each.start.incarnation for each in job.take_instructions()] == [1, 1, 1]
    return job, events


def test_a_server_that_refuses_the_checkpoint_has_all_begin_with_the_one_before():
    job, events = resumed()
    job.on(ServerRegistered(ServerId(0), 1, "host:1", "it has restored checkpoint 4"), 4.0)
    job.on(CheckpointRefused(ServerId(1), 1, 4, "a/file: damaged"), 5.0)
    assert job.halted
    assert not job.ended
    assert job.record.messages[-1].endswith("warning: checkpoint 4 is refused: a/file: damaged")
    # The ends that follow are those that were to come, and what processes say then is old.
    for process in (ServerId(0), ServerId(1), w(0)):
        job.on(exited(process, 1), 6.0)
    job.on(ProcessFailed(Start(ServerId(0), 1), Failure.internal("no master")), 6.0)
    job.tick(10_000.0)
    assert job.take_instructions() == []
    assert job.halted
    assert not job.ended
    job.on(Resumed("again+", {}, job.checkpoints.kept.all[0], (4,), ()), 7.0)
    assert not job.halted
    assert {each.start for each in job.take_instructions()} == {
        Start(process, 2) for process in (ServerId(0), ServerId(1), w(0))
    }
    assert [each.number for each in job.checkpoints.kept.all] == [3]
    # A master that is started again has it all from the journal.
    copy = RecordedJob(job.config, lambda _: None)
    copy.replay(events)
    assert [each.number for each in copy.checkpoints.kept.all] == [3]
    assert not copy.halted


def test_only_the_checkpoint_that_all_begin_with_can_be_refused():
    job, _ = resumed()
    job.on(ServerRegistered(ServerId(0), 1, "host:1"), 4.0)
    job.on(CheckpointRefused(ServerId(0), 1, 4, "said before it registered, heard after"), 5.0)
    job.on(CheckpointRefused(ServerId(1), 1, 3, "another one"), 5.0)
    assert not job.halted
    with pytest.raises(WireError, match="FENCED"):
        job.on(CheckpointRefused(ServerId(1), 0, 4, "of before"), 5.0)
    job.on(CheckpointRefused(ServerId(1), 1, 4, "first"), 5.0)
    job.on(CheckpointRefused(ServerId(1), 1, 4, "said again"), 6.0)
    assert job.checkpoints.refused == (4, "first")
    job.on(JobStopped("SIGINT"), 7.0)
    assert job.ended


def test_a_dead_server_is_started_again_and_calls_wait_for_it():
    job = begun(TRAINING, servers="2", workers="2")
    job.on(exited(ServerId(1)), 1.0)
    job.on(exited(ServerId(1)), 1.0)  # told twice
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    with pytest.raises(WireError, match="NOT_READY"):
        job.servers.addresses()
    with pytest.raises(WireError, match="FENCED"):
        job.on(ServerRegistered(ServerId(1), 0, "host:1"), 1.5)
    job.on(ServerRegistered(ServerId(1), 1, "host:9", "it has restored checkpoint 4"), 2.0)
    assert job.servers.addresses() == ["host:0", "host:9"]
    assert job.record.messages[-1].endswith("ps-1 is back: it has restored checkpoint 4")
    assert job.phases.phase == Phase.TRAINING
    job.on(WorkerMet(ServerId(1), 1, LastPush(w(0), 0, 3, 0, 0)), 2.5)
    assert job.record.messages[-1].endswith("ps-1 has lost 3 acknowledged updates")
    job.on(exited(ServerId(1), 1), 3.0)
    job.on(ServerRegistered(ServerId(1), 2, "host:9", has=[LastPush(w(0), 0, 2, 0, 0)]), 3.0)
    job.on(WorkerMet(ServerId(1), 2, LastPush(w(0), 0, 5, 0, 0)), 3.5)
    assert job.record.messages[-1].endswith("ps-1 has lost 2 acknowledged updates")
    job.on(exited(ServerId(1), 2), 3.7)
    servers = result_of(job, 4.0)["servers"]
    assert servers == {"starts": 5, "deaths": 3, "lost_pushes": 5, "lost_records": 0}
    # What it is told of workers: whose incarnations are over.
    assert job.members.fences() == []
    job.on(exited(w(1)), 5.0)
    assert job.members.fences() == [(w(1), 0)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_server_that_registers_again_is_counted_once(restarted, late):
    """Its first call was not answered; or that comes late, after the second one was.

    Either way nothing is lost, and what is trained since counts as trained.
    """
    server, incarnation = ServerId(0), int(restarted)
    has = [LastPush(w(0), 0, 3, 0, 0)] if restarted else []
    job = Job(config())
    if restarted:
        register(job, TRAINING)
        before = take(job, w(0))
        job.on(TaskReported(w(0), 0, before.id, Done(), 0, acknowledged=3), 1.0)
        job.on(exited(server), 2.0)
    else:
        job.on(JobBegun(), 0.0)

    def registers(address, now):
        what = "it has restored checkpoint 2", 17, has
        job.on(ServerRegistered(server, incarnation, address, *what), now)

    registers("host:7", 3.0)
    if not late:
        registers("host:9", 3.5)
    if restarted:
        job.on(WorkerMet(server, 1, has[0]), 4.0)
    else:
        job.on(WorkerRegistered(w(0), 0), 4.0)
        finish_next(job, w(0), TRAINING)
    task = take(job, w(0))
    job.heartbeat(w(0), 0, heartbeat(task.id, 5, acknowledged=4), 5.0)
    if late:
        registers("host:9", 5.5)
    job.on(TaskReported(w(0), 0, task.id, Done(), 0, acknowledged=5), 6.0)
    assert sum("ps-0 is back" in text for text in job.record.messages) == 1
    assert not any("lost" in text for text in job.record.messages)
    member, work = job.members.servers[server], job.work
    assert (member.replayed, member.address) == (17, "host:9")
    assert member.answered == (5.5 if late else 3.5)
    assert work.copies.differences() == []
    assert work.ledger.trained_once == (20 if restarted else 10)


def test_where_a_servers_log_is_and_when_none_protects_it():
    job = begun(TRAINING, durability="log", checkpoint_seconds=9.0, servers="2", relaunch_limit=9)
    assert job.members.holder_of(ServerId(1), 2) == "host:0"
    job.on(exited(ServerId(0)), 1.0)
    assert job.members.holder_of(ServerId(1), 2) == ""
    job.on(ProtectionChanged(ServerId(1), 1, 0.0, "its log is lost"), 1.5)
    job.on(ServerRegistered(ServerId(0), 1, "host:7", "it is back", 41), 2.0)
    assert job.members.holder_of(ServerId(1), 2) == "host:7"
    job.on(ProtectionChanged(ServerId(1), 1, 2.5, ""), 4.0)
    job.on(ProtectionChanged(ServerId(1), 2, 2.5, "its log is lost"), 5.0)
    job.on(ProtectionChanged(ServerId(1), 2, 4.0, ""), 6.0)
    texts = [text.split(": ", 1)[1] for text in job.record.messages]
    assert texts[-3:] == [
        "the updates of ps-1 are protected again, after 2.5 s",
        "warning: the updates of ps-1 are NOT PROTECTED: its log is lost",
        "the updates of ps-1 are protected again, after 1.5 s",
    ]
    assert result_of(job, 7.0)["log"] == {
        "replayed_pushes": 41,
        "unprotected": {"times": 2, "seconds": 4.0},
    }
    assert result_of(begun(TRAINING), 7.0)["log"] is None


def said_of_protection(job, answer, now):
    """A server's status comes in, as the master takes it from the wire."""
    note_status(ServerId(1), answer, job, now)


@pytest.mark.parametrize("deaths", [1, 2])
@pytest.mark.parametrize("protected", [True, False])
def test_the_time_of_a_server_that_dies_unprotected_counts_until_its_successor_is(
    deaths, protected
):
    job = begun(TRAINING, durability="log", checkpoint_seconds=9.0, servers="2", relaunch_limit=9)
    lost, whole = pb.ServerStatus(unprotected="its log is lost", absences=1), pb.ServerStatus()
    said_of_protection(job, lost, 10.0)
    for death in range(deaths):
        job.on(exited(ServerId(1), death), 12.0 + 3 * death)
        assert absent(job, 13.0 + 3 * death) == (1, 3.0 + 3 * death)
        job.on(ServerRegistered(ServerId(1), death + 1, "host:9"), 14.0 + 3 * death)
        job.on(ServerRegistered(ServerId(1), death + 1, "host:9"), 14.5 + 3 * death)  # its retry
    back = 11.0 + 3 * deaths
    seconds = back - 10.0
    if protected:
        said_of_protection(job, whole, back + 1)
        assert job.record.messages[-1].endswith(
            f"the updates of ps-1 are protected again, after {seconds:.1f} s"
        )
        assert absent(job, back + 2) == (1, seconds)
    else:
        said_of_protection(job, lost, back)
        assert absent(job, back + 2) == (2, seconds + 2)
        over = pb.ServerStatus(absences=1, absent_seconds=2.5)
        said_of_protection(job, over, back + 3)
        assert absent(job, back + 4) == (2, seconds + 2.5)
    # One that dies protected is kept by its neighbour.
    job.on(exited(ServerId(1), deaths), back + 5)
    job.on(ServerRegistered(ServerId(1), deaths + 1, "host:9"), back + 9)
    assert absent(job, back + 9)[1] == seconds + (0 if protected else 2.5)


def absent(job, now):
    times, seconds = result_of(job, now)["log"]["unprotected"].values()
    return times, seconds


def test_a_server_that_dies_too_often_ends_the_job():
    job = begun(TRAINING, relaunch_limit=1)
    job.on(exited(ServerId(0)), 1.0)
    job.on(exited(ServerId(0), 1, last_lines="out of memory"), 2.0)
    message = job.phases.failure.message
    for part in ("ps-0", "signal 9", "--relaunch-limit 1", "some.log", "out of memory"):
        assert part in message


def test_a_server_that_was_evicted_is_started_again_without_counting():
    job = begun(TRAINING, relaunch_limit=0)
    job.on(exited(ServerId(0), counted=False), 1.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]


@pytest.mark.parametrize("sync", [False, True])
def test_a_server_that_dies_before_anything_is_trained_is_started_again(sync):
    more = {"sync": True, "grads_to_wait": 1} if sync else {}
    for fields in (
        {"command": "evaluate", "validation_data": "v", "restore_from": "r"},
        {"restore_from": "r", **more},
    ):
        job = begun(**fields)
        job.on(exited(ServerId(0)), 1.0)
        assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]
        assert job.phases.failure is None


def test_a_servers_report_names_it():
    job = begun(TRAINING)
    job.on(ProcessFailed(Start(ServerId(0), 0), Failure.internal("disk full")), 1.0)
    assert job.phases.failure.message == "parameter server ps-0: disk full"
