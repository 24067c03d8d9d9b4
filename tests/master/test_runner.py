"""Whole jobs over real gRPC and real processes; only the model is missing."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_json
from shoal.master import runner
from shoal.master.job.events import WorkersWanted
from shoal.master.job.job import Job
from shoal.master.job.members.launcher import Started
from shoal.master.job.server_lifecycle import ServerLifecycle
from shoal.master.launchers.processes import ProcessLauncher
from shoal.master.result import result_of
from shoal.master.runner import Runner
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ServerId, WorkerId
from shoal.master.work.phases import Phase
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.protocol import own_protocol
from shoal.proto.values.routing import Routing
from tests.master.peers import command
from tests.master.services import handlers_of
from tests.master.strategies import config
from tests.waiting import until

pytestmark = pytest.mark.slow

PATIENCE = 60.0


class RunningJob:
    """A job of tests/master/peers.py processes, run by a thread of the test."""

    def __init__(self, path, **changes):
        self.config = config(job_dir=str(path), **changes)
        self.folder = JobFolder(path)
        self.folder.config.write_text(self.config.to_json())
        self.job = Job(self.config)
        self.runner = Runner(SharedJob(self.job))
        self.started = queue.SimpleQueue()
        self.server, port = serving.serve(handlers_of(self.runner.job), "127.0.0.1:0", 8)
        self.address = f"127.0.0.1:{port}"
        self.master = rpc.Connection(self.address, patience=0.0)
        self.launcher = ProcessLauncher(self.post, self.folder, command(self.folder, self.address))
        self.thread = threading.Thread(target=self.runner.run, args=(self.launcher,))

    def post(self, event):
        if isinstance(event, Started):
            self.started.put(event)
        self.runner.post(event)

    def pid_of(self, process):
        while (event := self.started.get(timeout=PATIENCE)).start.process != process:
            pass
        return event.pid

    def finish(self):
        """Wait for the job's end and return its result."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        assert self.launcher.running() == frozenset()
        return self.runner.job.apply(result_of)

    def close(self):
        self.runner.request_stop("the test has ended")
        self.thread.join(PATIENCE)
        self.master.close()
        self.server.stop(None).wait()


@pytest.fixture
def run(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(plan=None, **changes):
            if plan is not None:
                (tmp_path / "plan.json").write_text(json.dumps(plan))
            job = RunningJob(tmp_path, **changes)
            stack.callback(job.close)
            job.thread.start()
            return job

        yield start


def test_a_job_from_start_to_result(run, tmp_path):
    job = run(workers="2", servers="2", validation_data="v", output="o", epochs=2)
    result = job.finish()
    assert result["state"] == "succeeded"
    assert result["ledger"] == {
        "total": 200,
        "trained_once": 200,
        "repeated": 0,
        "failed": 0,
        "pending": 0,
    }
    assert result["metrics"] == {"count": 100.0}
    assert result["versions"] == {"ps-0": 200, "ps-1": 200}
    assert result["staleness"]["histogram"] == [400]
    assert result["workers"] == {"starts": 2, "deaths": 0}
    assert 0 < result["training_seconds"] < result["seconds"]
    write_json(tmp_path / "result.json", result)
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_a_killed_worker_costs_a_repeat_and_nothing_else(run, stalled):
    # 1. worker 0 pushes its 4th record to one of two servers and stalls;
    # 2. it is killed; 3. the other worker, or its next incarnation, does the rest.
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"}
    job = run(plan, workers="2", servers="2")
    pid = job.pid_of(WorkerId(0))
    wait()
    os.kill(pid, signal.SIGKILL)
    result = job.finish()
    assert result["state"] == "succeeded"
    assert result["ledger"] == {
        "total": 100,
        "trained_once": 99,
        "repeated": 1,
        "failed": 0,
        "pending": 0,
    }
    assert result["workers"]["deaths"] == 1
    assert any("SIGKILL" in message for message in result["messages"])


def test_a_silent_worker_is_replaced(run, stalled):
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "silence"}
    job = run(plan, servers="2", timeout_seconds=4.0)  # or its successor may seem silent, too
    wait()
    result = job.finish()
    assert result["state"] == "succeeded"
    assert result["ledger"]["repeated"] == 1
    assert result["workers"] == {"starts": 2, "deaths": 1}
    assert any("no heartbeat" in message for message in result["messages"])


def test_a_master_that_stood_still_takes_nobody_for_dead(run, stalled):
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "silence"}
    job = run(plan, servers="2", timeout_seconds=100.0)
    wait()
    ticked = threading.Semaphore(0)
    tick = job.job.tick
    job.job.tick = lambda now: (tick(now), ticked.release())
    assert ticked.acquire(timeout=PATIENCE)
    # As after a stop of a quarter of an hour; the worker says nothing before the next look.
    job.runner.job._clock = lambda: time.monotonic() + 1000.0
    for _ in range(4):
        assert ticked.acquire(timeout=PATIENCE)
    job.runner.request_stop("enough")
    result = job.finish()
    assert result["workers"] == {"starts": 1, "deaths": 0}
    assert result["servers"]["deaths"] == 0


def test_instructions_wait_for_no_tick_and_ticks_for_no_end_of_instructions(
    run, stalled, monkeypatch
):
    """With --sync there are instructions all the time."""
    ticks, tick = [], Job.tick
    monkeypatch.setattr(Job, "tick", lambda job, now: (ticks.append(now), tick(job, now)))
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"}
    job = run(plan, servers="2")
    wait()
    monkeypatch.setattr(runner, "TICK_PAUSE", PATIENCE)
    before = len(ticks)
    for _ in range(100):
        job.runner._inbox.put(runner.Woken())
    until("the instructions", job.runner._inbox.empty)
    assert len(ticks) <= before + 1  # one was under way
    monkeypatch.setattr(runner, "TICK_PAUSE", 0.0)
    job.runner._inbox.put(runner.Woken())
    until("another tick", lambda: len(ticks) > before + 1)


def test_a_servers_last_death_fails_the_job_and_leaves_nothing_behind(run, stalled):
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"}
    job = run(plan, servers="2", relaunch_limit=0)
    pid = job.pid_of(ServerId(1))
    wait()
    os.kill(pid, signal.SIGKILL)
    result = job.finish()
    assert result["state"] == "failed"
    assert "ps-1 died (signal 9, SIGKILL)" in result["failure"]["message"]


@pytest.mark.parametrize("then", ["stall", "ignore_terminate"])
def test_stopping_leaves_no_process_behind(run, stalled, monkeypatch, then):
    monkeypatch.setattr("shoal.master.runner.GRACE_SECONDS", 1.0)
    port, wait = stalled
    job = run({"worker": 0, "incarnation": 0, "pushes": 0, "port": port, "then": then})
    wait()
    job.master.call(methods.STOP_JOB, pb.StopJobRequest(reason="enough"))
    result = job.finish()
    assert result["state"] == "stopped"
    assert job.job.phases.phase == Phase.STOPPED


def test_a_worker_that_always_leaves_exhausts_its_limit(run):
    job = run({"worker": 0, "incarnation": 0, "then": "leave"}, relaunch_limit=0)
    result = job.finish()
    assert "leaving for no reason" in result["failure"]["message"]
    assert "exit code 3" in result["failure"]["message"]


def _killed_twice(run, stalled):
    """A job that goes on until it is stopped, whose worker 1 was killed twice at once."""
    port, wait = stalled
    plan = {"worker": 0, "incarnation": 0, "pushes": 0, "port": port, "then": "stall"}
    # Worker 1 may be there much earlier, and must not be through before the other one.
    job = run(plan, workers="2", relaunch_limit=9, epochs=10_000)
    wait()
    for _ in range(2):
        os.kill(job.pid_of(WorkerId(1)), signal.SIGKILL)
    return job


def test_a_second_failure_is_followed_by_a_pause(run, stalled, monkeypatch):
    monkeypatch.setattr("shoal.master.job.members.restarts.FIRST_PAUSE_SECONDS", 0.25)
    job = _killed_twice(run, stalled)
    assert job.pid_of(WorkerId(1))
    job.runner.request_stop("enough")
    result = job.finish()
    assert result["workers"] == {"starts": 4, "deaths": 2}
    assert any("restart 2, after a pause of 0.25 s" in text for text in result["messages"])


def test_a_worker_that_is_not_wanted_any_more_ends_in_its_pause(run, stalled, monkeypatch):
    """Others go on meanwhile, and so does the job."""
    monkeypatch.setattr("shoal.master.job.members.restarts.FIRST_PAUSE_SECONDS", 1e6)
    monkeypatch.setattr("shoal.master.job.members.restarts.LONGEST_PAUSE_SECONDS", 1e6)
    job = _killed_twice(run, stalled)
    member = job.job.members.workers[WorkerId(1)]
    look = job.runner.job.apply
    until("its third incarnation", lambda: look(lambda *_: member.incarnation) == 2)
    job.runner.job.apply(lambda job, now: job.on(WorkersWanted(1), now))
    until("its end", lambda: look(lambda *_: member.exited is not None))
    assert job.runner.job.apply(lambda job, _: not job.ended)
    job.runner.request_stop("enough")
    result = job.finish()
    assert any(text.endswith("worker-1 left") for text in result["messages"])


def test_a_users_error_reaches_the_result(run):
    job = run({"worker": 0, "incarnation": 0, "then": "user_error"})
    failure = job.finish()["failure"]
    assert (failure["kind"], failure["message"]) == ("USER_ERROR", "model.py: there is no loss")


def test_status_and_refusals_over_the_wire(run, stalled):
    port, wait = stalled
    job = run({"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"})
    wait()
    status = job.master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
    assert (status.job_name, status.state, status.workers_alive) == ("test", "training", 1)
    assert status.ledger.total == 100
    assert status.has_loss
    told = pb.ServerProgress(what="restore checkpoint 2", done=1, total=4)
    request = pb.ReportProgressRequest(server=0, progress=told)
    job.master.call(methods.REPORT_PROGRESS, request)
    status = job.master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
    waits = "ps-0, which restores checkpoint 2", "1 of 4 bytes"
    assert (status.waits_for, status.waits_progress) == waits
    routing = job.master.call(methods.GET_ROUTING, pb.GetRoutingRequest())
    assert Routing.from_message(routing.routing).servers == len(routing.servers) == 1
    own = own_protocol()
    for method, request, kind in (
        (methods.GET_TASK, pb.GetTaskRequest(worker=0, incarnation=1), pb.BAD_REQUEST),
        (methods.REPORT_TASK, pb.ReportTaskRequest(task=99, done=True), pb.BAD_REQUEST),
        (methods.REPORT_FAILURE, pb.ReportFailureRequest(role="cook"), pb.BAD_REQUEST),
        (methods.REPORT_FAILURE, pb.ReportFailureRequest(role="ps", index=7), pb.BAD_REQUEST),
        (methods.REPORT_PROGRESS, pb.ReportProgressRequest(server=7), pb.BAD_REQUEST),
        (methods.GET_RESTORE, pb.RestoreRequest(server=7, protocol=own), pb.BAD_REQUEST),
        (
            methods.GET_RESTORE,
            pb.RestoreRequest(server=0, incarnation=9, protocol=own),
            pb.BAD_REQUEST,
        ),
    ):
        if method is methods.REPORT_TASK:
            request.ClearField("outcome")
        with pytest.raises(WireError) as refused:
            job.master.call(method, request)
        assert refused.value.kind == kind
    status = job.master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
    assert status.state == "training"


def test_a_bug_in_the_master_fails_the_job_instead_of_hanging_it(run, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(ServerLifecycle, "answered", broken)
    result = run(workers="1", timeout_seconds=50.0, epochs=10_000).finish()
    assert result["failure"]["kind"] == "INTERNAL"
    assert "a bug" in result["failure"]["traceback"]


def test_a_bug_where_the_servers_are_asked_at_the_end_fails_the_job(run, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(ServerLifecycle, "confirmed", broken)
    failure = run(workers="1").finish()["failure"]
    assert failure["kind"] == "INTERNAL"
    assert "a bug" in failure["traceback"]


def test_processes_without_room_wait_and_their_job_begins_when_there_is_some(
    run, tmp_path, monkeypatch
):
    monkeypatch.setattr(faults, "_FOLDER", str(tmp_path))
    paths = [faults.no_room_file(tmp_path, name) for name in ("ps-0", "worker-0", "worker-1")]
    for path in paths:
        path.touch()
    job = run(workers="2")
    told = "there is no room for it"

    def messages():
        said = job.runner.job.look(lambda j, _: j.record.messages)
        return [each for each in said if told in each]

    until("word of it", messages)
    assert ServerId(0) not in {start.process for start in job.launcher.running()}
    for path in paths:
        path.unlink()
    job.pid_of(ServerId(0))
    (line,) = messages()
    assert line.endswith(f"1 server and 2 workers wait: {told}")


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (pb.Protocol(), "is shoal of an earlier build (without a protocol number)"),
        (pb.Protocol(number=99, version="9.9"), "is shoal 9.9 (protocol 99)"),
    ],
)
@pytest.mark.parametrize(
    ("method", "request_type", "who"),
    [
        (methods.REGISTER_WORKER, pb.RegisterWorkerRequest, "worker-0"),
        (methods.GET_RESTORE, pb.RestoreRequest, "ps-0"),
    ],
)
def test_a_process_of_another_version_ends_the_job_and_both_are_named(
    run, stalled, method, request_type, who, theirs, named
):
    """L17: as where the image is older than the master's."""
    port, wait = stalled
    job = run({"worker": 0, "incarnation": 0, "pushes": 3, "port": port, "then": "stall"})
    wait()
    with pytest.raises(WireError, match="use one version for the whole job") as refused:
        job.master.call(method, request_type(protocol=theirs))
    assert refused.value.kind == pb.OTHER_PROTOCOL
    failure = job.finish()["failure"]
    assert failure["kind"] == "USER_ERROR"
    own = own_protocol()
    assert (
        f"the master is shoal {own.version} (protocol {own.number}), {who} {named}"
        in (failure["message"])
    )
