"""Jobs with a real master and real servers, whose workers compute nothing.

Light workers stand in for real ones, without TensorFlow: they register, lease a task ahead, pull
and push each step of it, send heartbeats and report, through the real worker's own connections.
Each is a thread of one of a few processes. Owns these workers and processes; which load they are,
and what is measured, is for memory.py and scale/ to say. This file is also the script of the
master and of the workers' processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from shoal.base import log
from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import kill_job, process_of
from shoal.config.job import JobConfig
from shoal.master.__main__ import run_job
from shoal.master.job.members.launcher import Exited, Launcher, LauncherEvent, Started
from shoal.master.launchers.processes import ProcessLauncher, last_lines, shoal_command
from shoal.master.runner import Runner
from shoal.master.work.ids import Start, WorkerId
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc
from shoal.proto.wire import transport
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pulling import Pulled
from shoal.worker.servers.pushing import Push

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

NONE = np.zeros(0, np.float32)
TICKS = os.sysconf("SC_CLK_TCK")
CLICKS_POOL = 64
"""Batches that are drawn before, as that takes longer than a step."""


@dataclass(frozen=True)
class Load:
    """The load of a light worker: the rows and values that it pulls and pushes in each step.

    ids: of the table. batch: ids of a step, drawn evenly and without repeats; with `clicks`,
    records of the synthetic click stream, by its power law. dim, optimizer: of the table's rows.
    dense: size of the flat vector. pull_steps: between two pulls. rate: every gradient is 1, so
    that SGD makes of each value the number of its updates, times -rate. heartbeat_seconds: between
    two heartbeats.
    """

    ids: int
    batch: int
    dim: int
    optimizer: str
    dense: int
    pull_steps: int
    rate: float
    clicks: bool = False
    heartbeat_seconds: float = 1.0

    def model(self) -> pb.ModelSpec:
        """The model of such a job: a table without values, and one dense vector."""
        optimizer = OptimizerSpec(self.optimizer).to_json()
        zeros = InitializerSpec("zeros").to_json()
        table = pb.TableSpec(name="items", dim=self.dim, optimizer=optimizer, initializer=zeros)
        dense = pb.VariableSpec(name="dense", shape=[self.dense])
        return pb.ModelSpec(tables=[table], trainable=[dense], dense_optimizer=optimizer)

    def batches(self, seed: int) -> Iterator[Int64]:
        """The ids of one step after another."""
        draw = np.random.default_rng(seed)
        if not self.clicks:
            while True:
                yield draw.choice(self.ids, self.batch, replace=False)
        from shoal.model_zoo.criteo.prepare import draw_ids, field_sizes

        sizes = field_sizes(self.ids)
        pool = [draw_ids(draw, self.batch, sizes).ravel() for _ in range(CLICKS_POOL)]
        while True:
            yield pool[draw.integers(CLICKS_POOL)]


class LightWorker:
    """One of the job's workers.

    Of its acknowledged pushes: steps, records, and rows, each counted once a push. tasks: reported.
    pulls, pushes: seconds of each.
    """

    def __init__(
        self, config: JobConfig, load: Load, index: int, incarnation: int, address: str
    ) -> None:
        self._config, self._load = config, load
        self._records = int(Path(config.training_data).name)
        self._who = {"worker": index, "incarnation": incarnation}
        self._progress = Progress()
        peer = transport.peer_name(config.token, "master")
        self._master = rpc.Connection(address, peer=peer)
        seconds = load.heartbeat_seconds
        self._heartbeat = Heartbeat(self._master, self._progress, index, incarnation, seconds)
        stopped = self._progress.stopped
        self._servers = ServerGroup(self._master, index, incarnation, stopped, token=config.token)
        self._batches = load.batches(index % 16)
        self._pulled: Pulled | None = None
        self._gradients: Float32 = np.ones((0, load.dim), np.float32)
        self._dense = (np.ones(load.dense, np.float32), NONE)
        self.steps = self.records = self.rows = self.tasks = 0
        self.pulls: list[float] = []
        self.pushes: list[float] = []

    def run(self) -> None:
        """Work until nothing is left to do."""
        self._servers.register(self._load.model(), np.zeros(self._load.dense, np.float32), NONE)
        self._heartbeat.start()
        task = self._leased()
        after: pb.GetTaskReply | None = None  # what the report before was answered
        while task is not None:
            self._progress.begin(task.id)
            # The next one is leased while this one is at work.
            ahead = self._ahead(task, after)
            after = None
            report = pb.ReportTaskRequest(**self._who, task=task.id, done=True)
            if task.kind == pb.DESCRIBE_DATA:
                report.data.training.add(name="records", records=self._records)
            elif task.kind == pb.TRAIN:
                report.records_done = self._train(task)
                self.tasks += 1
            report.version = self._servers.version
            report.acknowledged = self._progress.acknowledged
            report.held = ahead.id if ahead is not None else 0
            reply = self._master.call(methods.REPORT_TASK, report)
            if ahead is not None:
                after = reply.next
            task = ahead or self._leased()
        self._heartbeat.stop()
        self._servers.close()
        self._master.close()

    def _ahead(self, task: pb.Task, answer: pb.GetTaskReply | None) -> pb.Task | None:
        if answer is not None:
            return answer.task if answer.WhichOneof("answer") == "task" else None
        return self._leased(held=task.id) if task.kind == pb.TRAIN else None

    def _leased(self, held: int = 0) -> pb.Task | None:
        request = pb.GetTaskRequest(**self._who, held=held)
        while not self._progress.stopped.is_set():
            reply = self._master.call(methods.GET_TASK, request)
            if reply.WhichOneof("answer") == "task":
                return reply.task
            if reply.finished or held:
                return None
            self._progress.stopped.wait(reply.wait_seconds)
        return None

    def _train(self, task: pb.Task) -> int:
        """Steps of a minibatch each; returns the records of all."""
        records = int(task.range.end - task.range.start)
        size = self._config.batch_size
        for done in range(size, records + size, size):
            self._step(task.id, min(done, records))
        self.records += records
        return records

    def _step(self, task: int, done: int) -> None:
        if self._pulled is None or self.steps % self._load.pull_steps == 0:
            began = time.perf_counter()
            self._pulled = self._servers.pull([[next(self._batches)]], training=True)
            self.pulls.append(time.perf_counter() - began)
        pulled = self._pulled
        ids = pulled.ids[0].unique
        if len(self._gradients) < ids.size:
            self._gradients = np.ones((2 * ids.size, self._load.dim), np.float32)
        step = Push(
            tables={0: (ids, self._gradients[: ids.size])},
            dense=self._dense,
            learning_rate=self._load.rate,
            versions=pulled.versions,
            times=pulled.times,
            applied=pulled.applied,
            task=task,
            records_done=done,
        )
        began = time.perf_counter()
        self._servers.push(step)
        self.pushes.append(time.perf_counter() - began)
        self.steps += 1
        self.rows += ids.size
        self._progress.add(done, self._servers.version, 0.5, self._servers.acknowledged)

    def write(self, path: Path) -> None:
        """Write the counts and times to a file."""
        counts = {name: getattr(self, name) for name in COUNTS}
        np.savez(path, **counts, pulls=np.array(self.pulls), pushes=np.array(self.pushes))


COUNTS = ("steps", "records", "rows", "tasks")


# ---------------------------------------------------------------- the processes


class LightLauncher(Launcher):
    """Servers are processes of their own; worker w is a thread of process w % hosts."""

    def __init__(
        self,
        post: Callable[[LauncherEvent], None],
        folder: JobFolder,
        address: str,
        hosts: int,
    ) -> None:
        super().__init__(post)
        self._others = ProcessLauncher(post, folder, shoal_command(folder, address))
        self._folder, self._address = folder, address
        self._hosts: list[subprocess.Popen[str] | None] = [None] * hosts
        self._running: dict[Start, int] = {}
        self._changed = threading.Condition()

    def start(self, start: Start) -> None:
        """Start a worker in one of the hosts, or a server as a process of its own."""
        if not isinstance(start.process, WorkerId):
            self._others.start(start)
            return
        index = start.process.index
        number = index % len(self._hosts)
        host = self._hosts[number] or self._host(number)
        assert host.stdin is not None
        with self._changed:
            self._running[start] = number
        self._post(Started(start, host.pid))
        print(index, start.incarnation, file=host.stdin, flush=True)

    def _log(self, number: int) -> Path:
        return self._folder.path / f"hosts-{number}.log"

    def _host(self, number: int) -> subprocess.Popen[str]:
        config = ["--config", str(self._folder.config), "--index", str(number)]
        line = [sys.executable, __file__, "shoal.workers", *config, "--master", self._address]
        with self._log(number).open("w") as output:
            host = subprocess.Popen(
                line,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self._hosts[number] = host
        threading.Thread(target=self._watch, args=(number, host), daemon=True).start()
        return host

    def _watch(self, number: int, host: subprocess.Popen[str]) -> None:
        assert host.stdout is not None
        for line in host.stdout:
            index, incarnation, code = map(int, line.split())
            self._gone(Start(WorkerId(index), incarnation), number, code)
        self._hosts[number] = None
        with self._changed:
            left = [start for start, at in self._running.items() if at == number]
        for start in left:
            self._gone(start, number, host.wait())

    def _gone(self, start: Start, number: int, code: int) -> None:
        with self._changed:
            self._running.pop(start, None)
            self._changed.notify_all()
        log_file = self._log(number)
        last = "" if code == 0 else last_lines(log_file)
        self._post(Exited(start, code, None, str(log_file), last))

    def terminate(self, start: Start) -> None:
        """Ask a server to end; a worker ends when the master says so."""
        if not isinstance(start.process, WorkerId):
            self._others.terminate(start)

    def kill(self, start: Start) -> None:
        """End a server, or the process of a worker and of all that are beside it."""
        number = self._running.get(start)
        if number is None:
            self._others.kill(start)
        elif (host := self._hosts[number]) is not None:
            host.kill()

    def running(self) -> frozenset[Start]:
        """The processes and threads that have not ended."""
        with self._changed:
            return self._others.running() | frozenset(self._running)

    def wait_gone(self, starts: Collection[Start], timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether all of `starts` are gone."""
        give_up = time.monotonic() + timeout
        with self._changed:
            gone = self._changed.wait_for(lambda: not self._running.keys() & set(starts), timeout)
        return self._others.wait_gone(starts, max(0.0, give_up - time.monotonic())) and gone


def results_folder(folder: JobFolder) -> Path:
    """The folder to which light workers write their counts and times."""
    return folder.path / "light"


@click.group()
def main() -> None:
    """The processes of such a job, by the roles that their command lines are found by."""


@main.command("shoal.master")
@click.option("--config", required=True)
@click.option("--hosts", type=int, required=True)
def master(config: str, hosts: int) -> None:
    """Be the master of such a job."""
    job = JobConfig.load(config)
    log.configure("master", job.log_level, job.log_format, job=job.job_name)
    folder = JobFolder(Path(config).parent)

    def make_launcher(runner: Runner, address: str) -> Launcher:
        return LightLauncher(runner.post, folder, address, hosts)

    sys.exit(run_job(job, folder, 0, make_launcher=make_launcher))


@main.command("shoal.workers")
@click.option("--config", required=True)
@click.option("--index", type=int, required=True)
@click.option("--master", required=True)
def workers(config: str, index: int, master: str) -> None:  # noqa: ARG001
    """Be those workers that standard input names, a line each: index and incarnation."""
    job = JobConfig.load(config)
    log.configure("worker", job.log_level, job.log_format, job=job.job_name)
    folder = JobFolder(Path(config).parent)
    load = Load(**json.loads((folder.path / "load.json").read_text()))
    results = results_folder(folder)
    results.mkdir(exist_ok=True)
    said = threading.Lock()

    def work(index: int, incarnation: int) -> None:
        code = 1
        try:
            worker = LightWorker(job, load, index, incarnation, master)
            worker.run()
            worker.write(results / f"{index}.{incarnation}.npz")
            code = 0
        except Exception:
            traceback.print_exc()
        with said:
            print(index, incarnation, code, flush=True)

    for line in sys.stdin:
        numbers = tuple(map(int, line.split()))
        threading.Thread(
            target=work, args=numbers, name=f"worker-{numbers[0]}", daemon=True
        ).start()


# ---------------------------------------------------------------- looking at a job


class LightJob:
    """A running job of such workers, in a folder; ended with `with`.

    hosts: processes of workers. result: as the master wrote it, once the job has ended.
    """

    def __init__(self, path: Path, config: JobConfig, load: Load, hosts: int) -> None:
        self.folder = JobFolder(path)
        self.config = config
        self._hosts = hosts
        self.folder.config.write_text(config.to_json())
        (path / "load.json").write_text(json.dumps(asdict(load)))
        self._log = path / "master.log"
        line = [sys.executable, __file__, "shoal.master", "--config", str(self.folder.config)]
        with self._log.open("w") as output:
            # A session of its own: as the client starts it.
            self._process = subprocess.Popen(
                [*line, "--hosts", str(hosts)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes: dict[str, int] = {}
        self._master: rpc.Connection | None = None

    def __enter__(self) -> LightJob:
        return self

    def __exit__(self, *_: object) -> None:
        kill_job(self.folder.config)
        self._process.wait()

    @property
    def ended(self) -> bool:
        """True if the master has ended."""
        return self._process.poll() is not None

    @property
    def log_end(self) -> str:
        """The end of the master's log."""
        return last_lines(self._log)

    @property
    def result(self) -> dict[str, Any]:
        """The result of the job, as the master wrote it."""
        return dict(json.loads(self.folder.result.read_text()))

    def status(self) -> pb.JobStatus | None:
        """The master's word; None while it is not there, or not any more."""
        address = self.folder.master_address()
        if address is None:
            return None
        if self._master is None:
            peer = transport.peer_name(self.config.token, "master")
            self._master = rpc.Connection(address, peer=peer, patience=1.0)
        with contextlib.suppress(Exception):
            return self._master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        return None

    def processes(self) -> dict[str, int]:
        """The ids of the job's processes that were found so far, by name."""
        wanted = {"master-0": ("master", 0)}
        wanted |= {f"ps-{index}": ("ps", index) for index in range(self.config.num_servers)}
        wanted |= {f"workers-{index}": ("workers", index) for index in range(self._hosts)}
        for name, (role, index) in wanted.items():
            if name not in self._processes:
                process = process_of(self.folder.config, role, index)
                if process is not None:
                    self._processes[name] = process
        return self._processes


def resident_mb(process: int) -> float:
    """Resident memory of a process now, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def cpu_seconds(process: int) -> float:
    """CPU of a process so far, of all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
