"""The price of a synchronous update, against PyTorch's DistributedDataParallel over gloo.

    python -m benchmarks.synchronous [--cases NAME ...] [--systems NAME ...] [--rounds N]
        [--seconds S] [--shoal FLAGS]

A convolutional network on random images of 32 x 32 x 3 (model.py). `shoal` is a `shoal train
--sync` of it with two workers and two servers, `tensorflow` the same of model_keras.py, `ddp`
DistributedDataParallel in two processes, `torch` PyTorch in one process; each peer's process has
one thread. An update is of two minibatches of the case's size, one of each worker or process; that
of `torch` is of one.
The cases: `arithmetic`, 0.12 M values, minibatches of 64; `update`, the same in minibatches of 2,
which leaves little but the update itself; `values`, 11 M values, minibatches of 8.

The systems take turns, as this kind of machine's speed drifts. shoal's round is a whole job,
observed after --warm-steps updates, which reads Parquet files and logs each update (--durability
auto); the peers have their data in memory and keep nothing. Ratios are of medians over the
rounds. CPU is of all processes, shoal's master with them, and tells more than the time where
others use the machine. Prints a table and, unless --cases or --systems chose a part, writes
build/bench/synchronous.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks.end_to_end.run import TICKS, Measured, Peer, Shoal

HERE = Path(__file__).parent
BENCH = Path("build/bench")
OUTPUT = BENCH / "synchronous.json"
PROCESSES = 2
CASES = {"arithmetic": (96, 64), "update": (96, 2), "values": (10500, 8)}
"""Units of the last hidden layer, and the size of a minibatch."""
MODELS = {"shoal": "model.custom_model", "tensorflow": "model_keras.custom_model"}
WORLDS = {"ddp": PROCESSES, "torch": 1}
RECORDS = 8192
PIXELS = 32 * 32 * 3


def prepared(path: Path) -> Path:
    """A file of RECORDS random images, written where it is not there yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        pixels = pa.array(rng.integers(0, 256, RECORDS * PIXELS, dtype=np.uint8))
        columns = {
            "pixels": pa.FixedSizeListArray.from_arrays(pixels, PIXELS),
            "label": rng.integers(0, 10, RECORDS),
        }
        pq.write_table(pa.table(columns), path, row_group_size=2048, compression="none")
    return path


class Job(Shoal):
    """A `shoal train --sync` a round; an update is two minibatches."""

    def __init__(
        self, model: str, units: int, batch: int, warm_steps: int, flags: list[str]
    ) -> None:
        named = ["--model-def", model]
        super().__init__(
            HERE, 0, PROCESSES, PROCESSES, warm_steps, [*named, *flags], PROCESSES * batch
        )
        self._units = units
        self._minibatch = batch
        self._job = (BENCH / "synchronous-job").resolve()
        self._data = prepared(BENCH / "images.parquet").resolve()

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "shoal", "train", "--job-name", "synchronous", "--sync"),
            *("--job-dir", str(self._job), "--overwrite"),
            *("--model-zoo", str(HERE), "--model-def", self._model),
            *("--model-params", f"units={self._units}"),
            *("--training-data", str(self._data), "--epochs", "100000"),
            *("--batch-size", str(self._minibatch), "--num-minibatches-per-task", "64"),
            *("--workers", str(PROCESSES), "--servers", str(PROCESSES)),
            *self._flags,
        ]

    def _cpu_seconds(self) -> float:
        ticks = sum(int(user) + int(system) for user, system in self._all_times())
        return ticks / TICKS

    def _all_times(self) -> Iterator[tuple[str, str]]:
        """User and system ticks of each process that has the job's folder among its arguments."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_text()
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if str(self._job) in command:
                yield fields[11], fields[12]

    def measure(self, seconds: float) -> Measured:
        measured = super().measure(seconds)
        return measured | {"updates": measured["samples"] / self._batch}


def figures(rounds: list[Measured]) -> dict[str, float]:
    """Medians over the rounds: samples/s, ms an update, CPU ms an update and a sample."""
    each = {
        "samples/s": lambda one: one["samples"] / one["seconds"],
        "ms an update": lambda one: one["seconds"] / one["updates"] * 1e3,
        "CPU ms an update": lambda one: one["cpu_seconds"] / one["updates"] * 1e3,
    }
    return {name: statistics.median(map(of, rounds)) for name, of in each.items()}


def against(found: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    """A system's samples/s and CPU a sample by those of DistributedDataParallel."""
    if "ddp" not in found:
        return {}
    own, ddp = found[name], found["ddp"]

    def cpu_of_sample(one: dict[str, float]) -> float:
        return one["CPU ms an update"] / (one["samples/s"] * one["ms an update"])

    return {
        "samples/s by ddp's": own["samples/s"] / ddp["samples/s"],
        "CPU a sample by ddp's": cpu_of_sample(own) / cpu_of_sample(ddp),
    }


def case(name: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The systems' figures of a case."""
    units, batch = CASES[name]
    systems: dict[str, Any] = {}
    rounds: dict[str, list[Measured]] = {each: [] for each in options.systems}
    try:
        for each in options.systems:
            if each in MODELS:
                flags = options.shoal.split()
                systems[each] = Job(MODELS[each], units, batch, options.warm_steps, flags)
            else:
                given = str(WORLDS[each]), str(batch), str(units)
                systems[each] = Peer(str(HERE / "model.py"), *given)
        for number in range(options.rounds):
            for each, system in systems.items():
                rounds[each].append(system.measure(options.seconds))
                one = ", ".join(f"{v:,.1f} {k}" for k, v in figures(rounds[each][-1:]).items())
                print(f"{name}, round {number + 1}, {each}: {one}", flush=True)
    finally:
        for system in systems.values():
            system.close()
    found = {each: figures(measured) for each, measured in rounds.items()}
    return {each: line | against(found, each) for each, line in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES)
    parser.add_argument("--systems", nargs="+", choices=[*MODELS, *WORLDS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each system a round")
    parser.add_argument("--warm-steps", type=int, default=40, help="updates of shoal not observed")
    parser.add_argument("--shoal", default="", help="more flags for shoal train, in one argument")
    options = parser.parse_args()
    part = bool(options.cases or options.systems)
    options.systems = options.systems or [*MODELS, *WORLDS]
    # So that the job and the peers end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    found = {name: case(name, options) for name in options.cases or CASES}
    for name, lines in found.items():
        units, batch = CASES[name]
        table = Table(title=f"{name}: {units:,} units, minibatches of {batch}")
        headings = list(next(iter(lines.values())))
        for heading in ("system", *headings):
            table.add_column(heading, justify="left" if heading == "system" else "right")
        for system, line in lines.items():
            table.add_row(system, *(f"{line[heading]:,.2f}" for heading in headings))
        Console(width=120).print(table)
    if not part:
        OUTPUT.write_text(json.dumps(found, indent=1) + "\n")
        print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
