"""The status tells of each worker and server what the master knows of it."""

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.view.status import status_message
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed, Heartbeat
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, exited, take, w

DATA = DataDescribed(training=(Source("t", 60),))


def test_a_worker_is_shown_with_its_task_and_its_deaths():
    job = begun(DATA, workers="2")
    task = take(job, w(1))
    beat = Heartbeat(task.id, 5, stage_seconds={"pull": 1.5}, waits_for="storage")
    job.heartbeat(w(1), 0, beat, 1.0)
    idle, busy = status_message(job, 1.0).workers
    assert not idle.HasField("task")
    assert (busy.worker, busy.state, busy.incarnation, busy.deaths) == (1, "alive", 0, 0)
    assert (busy.task.id, busy.task.kind, busy.records_done) == (task.id, pb.TRAIN, 5)
    assert (busy.waits_for, busy.stage_seconds) == ("storage", {"pull": 1.5})
    job.process_exited(exited(w(1)), 2.0)
    dead = status_message(job, 2.0).workers[1]
    assert (dead.starts, dead.deaths, dead.waits_for) == (1, 1, "")
    assert dead.state == "dead"


def test_a_server_is_shown_with_what_it_said_last():
    job = begun(DATA, servers="2")
    told = pb.ServerStatus(
        server=1,
        version=7,
        pulls=9,
        tables=[pb.TableStatus(name="user", rows=40, memory_bytes=4096)],
        staleness=pb.Distribution(count=3),
    )
    job.servers.answered(ServerId(1), told)
    first, second = status_message(job, 1.0).servers
    assert (first.server, first.state, first.told.tables) == (0, "alive", [])
    assert (second.told.version, second.told.pulls) == (7, 9)
    assert [(each.name, each.rows) for each in second.told.tables] == [("user", 40)]
    # It is said once, of all servers.
    assert not second.told.HasField("staleness")
    assert job.members.servers[ServerId(1)].told.HasField("staleness")  # of a copy alone


def test_a_server_that_is_started_again_has_said_nothing_yet():
    job = begun(DATA, servers="2")
    job.servers.answered(ServerId(0), pb.ServerStatus(version=7))
    job.process_exited(exited(ServerId(0)), 2.0)
    view = status_message(job, 2.0).servers[0]
    assert (view.state, view.incarnation, view.deaths) == ("starting", 1, 1)
    assert view.told.version == 0


def test_the_newest_checkpoint_is_told_with_its_age_once_there_is_one():
    job = begun(DATA, checkpoint_steps=10)
    assert not status_message(job, 3.0).HasField("checkpoint_seconds")
    job.servers.answered(ServerId(0), pb.ServerStatus(version=10))
    job.tick(4.0)
    job.checkpoint_taken(Taken(1, version=10, bytes=100, seconds=0.1), False, 5.0)
    assert status_message(job, 12.5).checkpoint_seconds == 7.5
