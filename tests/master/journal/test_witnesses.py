"""Who has seen more of the journal than there is ends the job, before any task is given out."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.errors import UserError
from shoal.master.job.events import JobBegun
from shoal.master.journal import journal as journals
from shoal.master.journal.journal import Journal
from shoal.master.journal.reading import read_segments
from shoal.master.journal.witnesses import Witnesses, compare_files, told_before
from shoal.master.runner import Runner
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.values import positions
from shoal.proto.wire.transport import peer_name
from tests.master.services import handlers_of
from tests.master.strategies import config, exited, register, w
from tests.waiting import until

DATA = DataDescribed(training=(Source("t", 40),))


class Master:
    """A master's journal, job and calls, without its processes."""

    def __init__(self, folder, **changes):
        self.journal = Journal(folder / "journal", config(workers="2", **changes))
        self.job = self.journal.restore()
        self.witnesses = Witnesses(self.journal, told_before(self.job))
        self.shared = SharedJob(self.job, commit=self.journal.commit, witnesses=self.witnesses)
        self.handlers = handlers_of(self.shared, trouble=lambda: self.journal.trouble)

    def begin(self, data=DATA):
        self.shared.apply(lambda job, _: register(job, data))
        return self

    def call(self, method, request):
        return self.handlers[method](request)

    def beat(self, worker, seen=None):
        request = pb.HeartbeatRequest(worker=worker, journal=seen or pb.JournalPosition())
        return self.call(methods.HEARTBEAT, request).journal

    def ask(self, worker):
        return self.call(methods.GET_TASK, pb.GetTaskRequest(worker=worker))


@pytest.fixture
def told(tmp_path):
    """A master's journal, closed, and the position that its workers were told of."""
    master = Master(tmp_path).begin()
    seen = master.beat(0)
    assert (seen.number, seen.journal) == (master.journal.position.number, seen.journal)
    master.journal.close()
    return seen


def other(seen, **changes):
    made = pb.JournalPosition()
    made.CopyFrom(seen)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_no_task_is_given_out_before_all_have_spoken(tmp_path, told):
    master = Master(tmp_path)
    assert master.ask(0).wait_seconds > 0
    master.beat(0, told)
    assert master.ask(0).wait_seconds > 0
    master.shared.hear(Start(ServerId(0), 0), told)
    assert master.ask(0).wait_seconds > 0  # worker-1 may know more
    master.shared.apply(lambda job, now: job.on(exited(w(1)), now))
    assert master.ask(0).HasField("task")
    master.journal.close()


def test_none_is_leased_with_a_report_either(tmp_path):
    # So many that one more is leased ahead while each worker holds two.
    master = Master(tmp_path).begin(DataDescribed(training=(Source("t", 200),)))
    first = master.ask(0).task
    ahead = pb.GetTaskRequest(worker=0, held=first.id)
    second = master.call(methods.GET_TASK, ahead).task
    seen = master.beat(0)
    master.journal.close()
    master = Master(tmp_path)
    report = pb.ReportTaskRequest(worker=0, task=first.id, done=True, held=second.id, journal=seen)
    assert master.call(methods.REPORT_TASK, report).next.finished  # worker-1 may know more
    assert master.job.members.workers[w(0)].held.id == second.id  # the report counts
    master.beat(1, seen)
    master.shared.hear(Start(ServerId(0), 0), seen)
    reply = master.call(methods.REPORT_TASK, report)  # again: its answer was lost
    assert reply.next.task.id == master.job.members.workers[w(0)].ahead.id
    assert reply.journal.number == master.journal.position.number > seen.number
    master.journal.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"number": 1000}, "ends with event .* and worker-1 has seen event 1,000"),
        ({"checksum": 1}, "has another event .* than worker-1 has seen"),
        ({"journal": 1}, "is another one than worker-1 has seen"),
    ],
)
def test_a_journal_that_has_gone_back_ends_the_job(tmp_path, told, changes, why):
    master = Master(tmp_path)
    with pytest.raises(WireError):
        master.beat(1, other(told, **changes))
    assert master.job.phases.phase.state == "failed"
    assert master.job.phases.failure.kind == pb.USER_ERROR
    assert not master.ask(0).HasField("task")
    with pytest.raises(UserError, match=why):
        master.witnesses.compare("worker-1", other(told, **changes))
    master.journal.close()


def test_positions_of_any_age_are_compared(tmp_path, told):
    master = Master(tmp_path)
    for position, _ in (each for s in read_segments(master.journal.path) for each in s.entries()):
        master.witnesses.compare("ps-0", position.message())
        with pytest.raises(UserError, match=f"another event {position.number}"):
            master.witnesses.compare("ps-0", other(position.message(), checksum=7))
    master.journal.close()


def test_the_result_of_an_earlier_course_is_a_witness(tmp_path, told):
    folder = JobFolder(tmp_path)
    master = Master(tmp_path)
    write_json(folder.result, {"journal": positions.position_json(told)})
    compare_files(master.witnesses, folder, master.job.config)
    write_json(folder.result, {"journal": positions.position_json(other(told, number=99))})
    with pytest.raises(UserError, match=r"result.json has seen event 99"):
        compare_files(master.witnesses, folder, master.job.config)
    master.journal.close()


def test_the_status_waits_for_no_disk(tmp_path, monkeypatch):
    """X10: while nothing can be written all others wait, and the status says why."""
    full = threading.Event()

    def fail(*_):
        full.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    master = Master(tmp_path).begin()
    monkeypatch.setattr("shoal.master.job.view.status.TROUBLE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(journals.os, "pwrite", fail)
        name = peer_name("", "master")
        server, port = serving.serve(master.handlers, "127.0.0.1:0", 4, name)
        connections = [
            rpc.Connection(f"127.0.0.1:{port}", patience=0.0, peer=name) for _ in range(9)
        ]
        said = []

        def scale(connection, workers):
            try:
                connection.call(methods.SCALE_JOB, pb.ScaleJobRequest(num_workers=workers))
            except WireError as error:
                said.append(str(error))

        callers = [
            threading.Thread(target=scale, args=(each, 3 + i))
            for i, each in enumerate(connections[1:])
        ]
        for caller in callers:
            caller.start()
        assert full.wait(60)
        # The error is raised, but may not have been noted yet.
        ask = connections[0].call
        status = until(
            "word of it", lambda: ask(methods.GET_JOB_STATUS, pb.JobStatusRequest()).trouble
        )
        assert "No space left" in status
        for caller in callers:
            caller.join()
        assert len(said) == 8
        assert all("No space left" in each for each in said)
    master.shared.apply(lambda *_: None)
    status = connections[0].call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
    assert status.trouble == ""
    for each in connections:
        each.close()
    server.stop(None).wait()
    master.journal.close()


def test_an_error_of_the_disk_ends_the_job_with_its_reason(tmp_path, monkeypatch):
    """F22."""
    master = Master(tmp_path)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journals.os, "fsync", fail)
    Runner(master.shared).guarded(
        lambda: master.shared.apply(lambda job, now: job.on(JobBegun(), now))
    )
    assert master.job.phases.phase.state == "failed"
    assert "cannot be written any more" in master.job.phases.failure.message
    with pytest.raises(WireError, match="cannot be written any more"):
        master.call(methods.SCALE_JOB, pb.ScaleJobRequest(num_workers=5))
