"""CPU milliseconds of each part of a minibatch: reading, feed_batch, ids, pull, tensors, push.

    python benchmarks/end_to_end/parts.py [--ids N] [--batches N] [--step]

The job of run.py, each part alone in one process, the server in another. A part's figure is the
median over the minibatches of the CPU time of all threads of its process, user and system. The
computation of the step itself takes most of the time, and is measured only with --step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from lone_server import lone_server
from rich.console import Console
from rich.table import Table

from shoal.config.job import JobConfig
from shoal.model_zoo.criteo import prepare as stream
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.routing import Routing
from shoal.worker.code.module import load_module
from shoal.worker.input.data import JobData
from shoal.worker.input.modes import TRAINING
from shoal.worker.model.model import Prepared, ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.ids import group_tables

HERE = Path(__file__).parent
BENCH = Path("build/bench")
TICKS = os.sysconf("SC_CLK_TCK")


class Timer:
    """CPU seconds of this process by part, one figure a minibatch."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block as one figure of a part."""
        began = time.process_time()
        yield
        self.spent.setdefault(name, []).append(time.process_time() - began)

    def milliseconds(self, name: str) -> float:
        """The median of a part."""
        return statistics.median(self.spent[name]) * 1e3


def reading(config: JobConfig, batches: int, timer: Timer) -> list[Any]:
    """Minibatches of the training data; times what reads them and what makes features of them."""
    module = load_module(str(HERE), "model.custom_model")
    pipeline = JobData(config, module).pipeline(TRAINING)
    source = pipeline.first_source
    # What the training pipeline is made of: the columns of minibatches, and what maps them.
    chunks, mapped = pipeline._batched._chunks, pipeline._batched.of  # type: ignore[attr-defined]
    made: list[Any] = []
    size = config.batch_size
    task = config.num_minibatches_per_task
    while len(made) < batches:
        start = len(made) * size
        pipeline._run.records = pb.Range(source=source, start=start, end=start + task * size)
        taken = iter(chunks())
        while True:
            with timer.part("read"):
                columns = next(taken, None)
            if columns is None:
                timer.spent["read"].pop()
                break
            with timer.part("feed_batch"):
                made.append(mapped(columns))
    return made


def served_model(config: JobConfig, address: str, sample: Any) -> tuple[ServedModel, Any, Any]:
    """The model, registered with the server at `address`; its group of servers and its master."""

    def registered(_: Any) -> pb.RegisterWorkerReply:
        return pb.RegisterWorkerReply(routing=Routing.even(1).to_message(), servers=[address])

    master, port = serving.serve({methods.REGISTER_WORKER: registered}, "127.0.0.1:0", 1)
    progress = Progress()
    group = ServerGroup(rpc.Connection(f"127.0.0.1:{port}"), 0, 0, progress.stopped)
    module = load_module(str(HERE), "model.custom_model")
    spec = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), sample
    )
    served = ServedModel(config, module, group, *spec, 0, progress)
    served.register()
    return served, group, master


def steps(served: ServedModel, group: ServerGroup, batches: list[Any], timer: Timer) -> None:
    """Times what is done to each minibatch from its ids to its push."""
    from shoal.worker.input.batch import Batch

    for features, labels in batches:
        with timer.part("ids"):
            calls = served._ids.by_table(features)
        with timer.part("group"):
            grouped = group_tables(calls, group.routing)
        with timer.part("pull"):
            pulled = group.pulls.fetch(grouped, group.routing, training=True)
        with timer.part("tensors"):
            inputs = served.steps.inputs(pulled)
        batch = Batch(features, labels, int(labels.shape[0]), 0, 0)
        prepared = Prepared(batch, pulled, inputs)
        with timer.part("step"):
            _, push = served.compute(prepared, 1)
        with timer.part("push"):
            group.push(push)


def server_seconds(process: subprocess.Popen[str]) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1 << 20)
    parser.add_argument("--batches", type=int, default=192)
    parser.add_argument("--only", choices=("input",), help="reading and feed_batch alone")
    parser.add_argument("--json", help="write the figures there, too")
    options = parser.parse_args()
    folder = (BENCH / f"criteo-{options.ids}").resolve()
    stream.prepared(folder, options.ids, options.records)
    config = JobConfig(
        model_def="model.custom_model",
        training_data=str(folder / "train.parquet"),
        batch_size=stream.BATCH,
        num_minibatches_per_task=64,
    )
    keep_freed_memory()
    timer = Timer()
    made = reading(config, options.batches, timer)
    figures = {"read": timer.milliseconds("read"), "feed_batch": timer.milliseconds("feed_batch")}
    if options.only is None:
        with lone_server(config) as (process, address):
            served, group, master = served_model(config, address, made[0])
            steps(served, group, made[:32], Timer())  # rows are made, functions traced
            before = server_seconds(process)
            steps(served, group, made, timer)
            figures |= {
                name: timer.milliseconds(name)
                for name in ("ids", "group", "pull", "tensors", "step", "push")
            }
            figures["server"] = (server_seconds(process) - before) / len(made) * 1e3
            group.close()
            master.stop(None)
    around = sum(value for name, value in figures.items() if name != "step")
    table = Table(title=f"CPU milliseconds a minibatch of {stream.BATCH:,} records")
    table.add_column("part")
    table.add_column("ms", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.2f}")
    table.add_row("all but the step", f"{around:.2f}")
    Console(width=80).print(table)
    if options.json:
        Path(options.json).write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
