"""Workers and servers without a model, which speak the real protocol to the master.

Run as processes of their own: `python -m tests.master.peers ROLE --config ...`, with
the arguments that shoal.worker and shoal.ps take. A record's training is one push.
A file plan.json beside the configuration makes one worker misbehave:

    {"worker": 0, "incarnation": 0, "pushes": 3, "port": 4711, "then": "stall"}

pushes three times, then a fourth time to the first server only, then connects to
the port and, as `then` says, stalls with heartbeats, falls silent, or ignores
SIGTERM. Other workers take no task before, or they might leave none for it.
{"then": "user_error"} reports a user's error at the start;
{"then": "leave"} exits with code 3.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.master.work.ids import Start
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.errors import WireError
from shoal.proto.protocol import own_protocol


class Server:
    """Counts pushes, refuses fenced ones."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.last: dict[tuple[int, int], pb.PushRequest] = {}
        self.fenced: dict[int, int] = {}
        self.version = 0
        self.ending = threading.Event()

    def push(self, frame: bytes) -> bytes:
        # The frame of these peers is the bare header: there are no arrays.
        request = pb.PushRequest.FromString(frame)
        identity = request.identity
        with self.lock:
            if identity.incarnation <= self.fenced.get(identity.worker, -1):
                raise WireError(pb.FENCED, "taken for dead")
            self.version += 1
            self.last[identity.worker, identity.incarnation] = request
        return pb.PushReply(version=self.version, applied=True).SerializeToString()

    def fence(self, request: pb.FenceRequest) -> pb.FenceReply:
        with self.lock:
            self.fenced[request.worker] = request.incarnation
            push = self.last.get((request.worker, request.incarnation), pb.PushRequest())
        return pb.FenceReply(
            sequence=push.identity.sequence, task=push.task, records_done=push.records_done
        )

    def status(self, request: pb.ServerStatusRequest) -> pb.ServerStatus:
        staleness = pb.Distribution(buckets=[self.version], count=self.version)
        with self.lock:
            last = dict(sorted(self.last.items()))
        newest = {worker: push for (worker, _), push in last.items()}
        has = [
            pb.LastPush(identity=push.identity, task=push.task, records_done=push.records_done)
            for push in newest.values()
        ]
        return pb.ServerStatus(
            server=self.index, version=self.version, staleness=staleness, has=has
        )

    def shutdown(self, request: pb.ShutdownRequest) -> pb.ShutdownReply:
        self.ending.set()
        return pb.ShutdownReply()

    def run(self, master: rpc.Connection, incarnation: int) -> None:
        handlers = {
            methods.PUSH: self.push,
            methods.FENCE: self.fence,
            methods.STATUS: self.status,
            methods.SHUTDOWN: self.shutdown,
        }
        server, port = serving.serve(handlers, "127.0.0.1:0", 4)
        request = pb.RegisterServerRequest(
            server=self.index, incarnation=incarnation, address=f"127.0.0.1:{port}"
        )
        master.call(methods.REGISTER_SERVER, request)
        signal.signal(signal.SIGTERM, lambda *_: self.ending.set())
        self.ending.wait()
        server.stop(1.0).wait()


class Worker:
    """Does every kind of task at once."""

    def __init__(self, index: int, incarnation: int, master: rpc.Connection, folder: Path) -> None:
        plan = {}
        with contextlib.suppress(FileNotFoundError):
            plan = json.loads((folder / "plan.json").read_text())
        self.misbehaved = folder / "misbehaved"
        self.who = {"worker": index, "incarnation": incarnation}
        self.master = master
        mine = plan if (plan.get("worker"), plan.get("incarnation")) == (index, incarnation) else {}
        self.plan = mine
        self.waits = "pushes" in plan and not mine
        self.sequence = 0
        self.version = 0

    def fail(self, failure: pb.Failure) -> None:
        request = pb.ReportFailureRequest(
            role="worker",
            index=self.who["worker"],
            incarnation=self.who["incarnation"],
            failure=failure,
        )
        self.master.call(methods.REPORT_FAILURE, request)

    def run(self) -> int:
        if self.plan.get("then") == "user_error":
            self.fail(pb.Failure(kind=pb.USER_ERROR, message="model.py: there is no loss"))
            return 2
        if self.plan.get("then") == "leave":
            print("leaving for no reason")
            return 3
        reply = self.master.call(
            methods.REGISTER_WORKER, pb.RegisterWorkerRequest(**self.who, protocol=own_protocol())
        )
        self.servers = [rpc.Connection(address) for address in reply.servers]
        while self.waits and not self.misbehaved.exists():
            if self.beat(pb.HeartbeatRequest(**self.who)).stop:
                return 0
            threading.Event().wait(0.05)
        while True:
            answer = self.master.call(methods.GET_TASK, pb.GetTaskRequest(**self.who))
            if answer.finished:
                return 0
            if not answer.HasField("task"):
                if self.beat(pb.HeartbeatRequest(**self.who)).stop:
                    return 0
                continue
            report = pb.ReportTaskRequest(**self.who, task=answer.task.id, version=self.version)
            self.do(answer.task, report)
            self.master.call(methods.REPORT_TASK, report)

    def do(self, task: pb.Task, report: pb.ReportTaskRequest) -> None:
        records = task.range.end - task.range.start
        if task.kind == pb.DESCRIBE_DATA:
            for sources in (report.data.training, report.data.validation, report.data.prediction):
                sources.add(name="s", records=100)
        elif task.kind == pb.EVALUATE:
            array = pb.DoubleArray(values=[records])
            report.states.metrics.add(name="count", variables=[array])
        elif task.kind == pb.FINISH_EVALUATION:
            report.metrics.values["count"] = task.states.metrics[0].variables[0].values[0]
        else:
            if task.kind == pb.TRAIN:
                self.train(task)
                report.records_done = records
            report.done = True
        report.version, report.acknowledged = self.version, self.sequence

    def train(self, task: pb.Task) -> None:
        for done in range(1, task.range.end - task.range.start + 1):
            self.sequence += 1
            header = pb.PushRequest(
                identity=pb.PushIdentity(**self.who, sequence=self.sequence),
                task=task.id,
                records_done=done,
            ).SerializeToString()
            for server in self.servers:
                reply = pb.PushReply.FromString(server.call(methods.PUSH, header))
                self.version = max(self.version, reply.version)
                if "pushes" in self.plan and self.sequence > self.plan["pushes"]:
                    self.misbehave(task.id, done - 1)
            beat = pb.HeartbeatRequest(
                **self.who,
                task=task.id,
                records_done=done,
                version=self.version,
                loss=0.5,
                loss_batches=1,
            )
            self.beat(beat)

    def beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        return self.master.call(methods.HEARTBEAT, request)

    def misbehave(self, task: int, done: int) -> None:
        if self.plan["then"] == "ignore_terminate":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.misbehaved.touch()
        with socket.create_connection(("127.0.0.1", self.plan["port"])):
            forever = threading.Event()
            while self.plan["then"] != "silence":
                # As a worker's heartbeat thread does while its task hangs.
                self.beat(pb.HeartbeatRequest(**self.who, task=task, records_done=done))
                forever.wait(0.1)
            forever.wait()


def command(folder: JobFolder, address: str) -> Callable[[Start], Sequence[str]]:
    """Stands in for shoal_command: the same arguments to these peers."""

    def peer(start: Start) -> Sequence[str]:
        return [
            *("-m", "tests.master.peers", start.process.role),
            *("--config", str(folder.config), "--index", str(start.process.index)),
            *("--incarnation", str(start.incarnation), "--master", address),
        ]

    return peer


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("worker", "ps"))
    parser.add_argument("--config", type=Path)
    parser.add_argument("--index", type=int)
    parser.add_argument("--incarnation", type=int)
    parser.add_argument("--master")
    arguments = parser.parse_args()
    JobConfig.load(arguments.config)
    master = rpc.Connection(arguments.master)
    if arguments.role == "ps":
        Server(arguments.index).run(master, arguments.incarnation)
        return 0
    folder = arguments.config.parent
    return Worker(arguments.index, arguments.incarnation, master, folder).run()


if __name__ == "__main__":
    sys.exit(main())
