"""The resident memory of master and servers over very many small tasks: flat, or not.

    python benchmarks/memory.py run --tasks 2000000 [FOLDER]

The real master process and real server processes, with logs of updates and checkpoints under way.
Workers without TensorFlow stand in for real ones: they lease a task ahead, push a step of it to
every server, send heartbeats and report, through the real worker's own connections. They pull for
every eighth step only, as a pull is much of what a step costs. Prints the memory of each process at
each tenth of the tasks, and the rate. Exits with 1 if one has grown by more than 5% since the first
tenth.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from shoal.base import log
from shoal.base.job_folder import JobFolder
from shoal.client.processes import kill_job, process_of
from shoal.config.job import JobConfig
from shoal.master.__main__ import run_job
from shoal.master.launchers.processes import ProcessLauncher, shoal_command
from shoal.master.runner import Runner
from shoal.master.work.ids import Start, WorkerId
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import methods, rpc, transport
from shoal.proto import shoal_pb2 as pb
from shoal.worker.heartbeat import Heartbeat, Progress
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.pulling import Pulled
from shoal.worker.servers.pushing import Push

GROWTH = 0.05
"""Since the first tenth, that is not called a leak."""

IDS = 2000
"""Rows of the table: all of them are there long before the first tenth is done."""

STEP_IDS = 8
"""Rows that a step changes."""

PULL_STEPS = 8
"""Between two pulls: they leave nothing behind on a server, as pushes do."""

LOOK_SECONDS = 1.0
"""Between two looks at the job, which cost the master as much as some tasks."""

DENSE = 64

ADAM = OptimizerSpec("adam").to_json()
MODEL = pb.ModelSpec(
    tables=[
        pb.TableSpec(
            name="items", dim=8, optimizer=ADAM, initializer=InitializerSpec("uniform").to_json()
        )
    ],
    trainable=[pb.VariableSpec(name="dense", shape=[DENSE])],
    dense_optimizer=ADAM,
)
NONE = np.zeros(0, np.float32)


class Worker:
    """Does tasks of one step each, as a worker with a pipeline does."""

    def __init__(self, config: JobConfig, index: int, incarnation: int, master: str) -> None:
        self._tasks = int(Path(config.training_data).name)
        self._who = {"worker": index, "incarnation": incarnation}
        self._progress = Progress()
        self._master = rpc.Connection(master, peer=transport.peer_name(config.token, "master"))
        seconds = config.heartbeat_seconds
        self._heartbeat = Heartbeat(self._master, self._progress, index, incarnation, seconds)
        stopped = self._progress.stopped
        self._servers = ServerGroup(self._master, index, incarnation, stopped, token=config.token)
        self._draw = np.random.default_rng(index)
        self._steps = 0
        self._pulled: Pulled | None = None

    def run(self) -> None:
        """Work until nothing is left to do."""
        self._servers.register(MODEL, np.zeros(DENSE, np.float32), NONE)
        self._heartbeat.start()
        task = self._leased()
        while task is not None:
            self._progress.begin(task.id)
            # The next one is leased while this one is at work.
            ahead = self._leased(held=task.id) if task.kind == pb.TRAIN else None
            report = pb.ReportTaskRequest(**self._who, task=task.id, done=True)
            if task.kind == pb.DESCRIBE_DATA:
                report.data.training.add(name="records", records=self._tasks)
            elif task.kind == pb.TRAIN:
                report.records_done = self._train(task)
            report.version = self._servers.version
            report.acknowledged = self._progress.acknowledged
            self._master.call(methods.REPORT_TASK, report)
            task = ahead or self._leased()
        self._heartbeat.stop()
        self._servers.close()

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
        """One step; returns the records of it."""
        records = task.range.end - task.range.start
        ids = self._draw.choice(IDS, STEP_IDS, replace=False)
        if self._pulled is None or self._steps % PULL_STEPS == 0:
            self._pulled = self._servers.pull([[ids]], training=True)
        self._steps += 1
        pulled = self._pulled
        step = Push(
            tables={0: (np.sort(ids), np.ones((STEP_IDS, 8), np.float32))},
            dense=(np.ones(DENSE, np.float32), NONE),
            learning_rate=1e-6,
            versions=pulled.versions,
            times=pulled.times,
            applied=pulled.applied,
            task=task.id,
            records_done=records,
        )
        self._servers.push(step)
        acknowledged = self._servers.acknowledged
        self._progress.add(records, self._servers.version, 0.5, acknowledged)
        return int(records)


def serve(config: JobConfig, folder: JobFolder) -> int:
    """Be the master, whose workers are those of this file."""

    def make_launcher(runner: Runner, address: str) -> ProcessLauncher:
        real = shoal_command(folder, address)

        def command(start: Start) -> Sequence[str]:
            line = list(real(start))
            if isinstance(start.process, WorkerId):
                line[1:2] = [__file__]  # -m
            return line

        return ProcessLauncher(runner.post, folder, command)

    return run_job(config, folder, 0, make_launcher=make_launcher)


def resident_mb(process: int) -> float:
    """Resident memory of a process now, in MB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class Watched:
    """The processes of a job whose memory is looked at, by name."""

    def __init__(self, folder: JobFolder, config: JobConfig) -> None:
        self._folder, self._config = folder, config
        names = ["master-0", *(f"ps-{index}" for index in range(config.num_ps))]
        self._processes = {name: self._find(name) for name in names}
        address = folder.master_address()
        assert address is not None
        peer = transport.peer_name(config.token, "master")
        self._master = rpc.Connection(address, peer=peer)

    def _find(self, name: str) -> int:
        role, _, index = name.partition("-")
        process = process_of(self._folder.config, role, int(index))
        assert process is not None, f"{name} is not there"
        return process

    def trained(self) -> int:
        """Tasks of one record each that are done."""
        status = self._master.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        return int(status.ledger.trained_once)

    def memory(self) -> dict[str, float]:
        """MB by process."""
        return {name: resident_mb(process) for name, process in self._processes.items()}


@click.group()
def main() -> None:
    """Memory over many tasks."""


@main.command()
@click.argument("folder", required=False)
@click.option("--tasks", default=200_000, show_default=True)
@click.option("--workers", default=4, show_default=True)
@click.option("--servers", default=2, show_default=True)
@click.option("--checkpoint-seconds", default=20.0, show_default=True)
@click.option("--seconds", default=0.0, help="End after so many, with what was done. 0: no limit.")
def run(
    folder: str | None,
    tasks: int,
    workers: int,
    servers: int,
    checkpoint_seconds: float,
    seconds: float,
) -> None:
    """Run so many tasks and print what they cost."""
    # So that nothing is left behind then, either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(dir=folder) as made:
        job = JobFolder(Path(made) / "job")
        job.path.mkdir()
        config = JobConfig(
            model_def="none.none",
            command="train",
            job_dir=str(job.path),
            training_data=str(tasks),
            minibatch_size=1,
            num_minibatches_per_task=1,
            num_workers=workers,
            num_ps=servers,
            checkpoint_seconds=checkpoint_seconds,
        ).resolved()
        job.config.write_text(config.to_json())
        output = (Path(made) / "master.log").open("w")
        line = [sys.executable, __file__, "shoal.master", "--config", str(job.config)]
        # A session of its own: as the client starts it.
        master = subprocess.Popen(line, stdout=output, stderr=output, start_new_session=True)
        try:
            grown = watch(job, config, tasks, master, seconds)
        finally:
            kill_job(job.config)
            master.wait()
            output.close()
        if grown is None:
            print((Path(made) / "master.log").read_text()[-2000:])
    sys.exit(1 if grown is None or grown > GROWTH else 0)


def watch(
    folder: JobFolder, config: JobConfig, tasks: int, master: subprocess.Popen[bytes], limit: float
) -> float | None:
    """Print the memory at each tenth; how much the worst has grown since the first one.

    None if the job did not come so far.
    """
    began = time.monotonic()
    watched, first, last = None, None, None
    tenth = done = 0
    while master.poll() is None and tenth < 10:
        time.sleep(LOOK_SECONDS)
        if watched is None:
            try:
                watched = Watched(folder, config)
            except AssertionError:
                continue
        try:
            done = watched.trained()
            now = watched.memory()
        except Exception as error:
            print(f"the job has ended: {error}")
            break
        over = limit and time.monotonic() - began > limit
        if not done:
            began = time.monotonic()
        if done * 10 >= tasks * (tenth + 1) or over:
            tenth = done * 10 // tasks
            rate = done / (time.monotonic() - began)
            shown = ", ".join(f"{name} {mb:.1f} MB" for name, mb in now.items())
            print(f"{done:,} tasks: {shown}; {rate:.0f} tasks/s", flush=True)
            first, last = first or now, now
        if over:
            break
    if first is None or last is None:
        return None
    grown = {name: last[name] / mb - 1 for name, mb in first.items()}
    print(", ".join(f"{name} {each:+.1%}" for name, each in grown.items()), "since the first tenth")
    return max(grown.values())


@main.command("shoal.master")
@click.option("--config", required=True)
def master(config: str) -> None:
    """Be the master of such a job."""
    job = JobConfig.load(config)
    log.configure("master", job.log_level, job.log_format, job=job.job_name)
    sys.exit(serve(job, JobFolder(Path(config).parent)))


@main.command("shoal.worker")
@click.option("--config", required=True)
@click.option("--index", type=int, required=True)
@click.option("--incarnation", type=int, required=True)
@click.option("--master", required=True)
def worker(config: str, index: int, incarnation: int, master: str) -> None:
    """Be a worker of such a job."""
    Worker(JobConfig.load(config), index, incarnation, master).run()


if __name__ == "__main__":
    main()
