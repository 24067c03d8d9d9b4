"""Measure the cost of security: jobs with --tls never, by default, and with --tls always.

    python -m benchmarks.security [--ids N] [--batch N] [--turns N] [--seconds S] [--starts N]

The job is that of benchmarks/end_to_end/run.py with one server and one worker. The three kinds take
turns, and a kind is compared with --tls never of the same turn. --batch 64 with --ids 10000 makes
many small steps. A start lasts from the command until the server is known to the master; jobs that
are only to start are stopped then.

Prints tables: samples a second, seconds of CPU that worker and server spend on a million samples
(these depend less on other work of the machine), and the seconds of a start.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.end_to_end.run import BENCH, FLAGS, Measured, Shoal
from shoal.model_zoo.criteo import prepare as stream

KINDS = {"--tls never": "insecure", "default (Unix sockets)": "shoal", "--tls always": "tls"}
"""Heading to system of run.py. The first is what the others are compared with."""
PLAIN = next(iter(KINDS))

RATE, CPU, START = "samples/s", "CPU s a million samples", "seconds until the server is known"


def turns(count: int, measure: Callable[[str], Measured]) -> dict[str, dict[str, list[float]]]:
    """Call `measure` for all kinds in turns, which begin differently; return values by heading."""
    names = list(KINDS)
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(count):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            measured = measure(name)
            for heading, value in measured.items():
                by_name = found.setdefault(heading, {each: [] for each in names})
                by_name[name].append(value)
            told = ", ".join(f"{value:,.2f} {heading}" for heading, value in measured.items())
            print(f"turn {turn + 1}, {name}: {told}", flush=True)
    return found


def show(heading: str, found: dict[str, list[float]], *, ratio: bool) -> None:
    """Print a table of medians, and of each turn's comparison with --tls never."""
    table = Table(title=heading)
    against = "ratio" if ratio else "difference"
    for title in ("job", "median", f"median {against}", "least", "largest"):
        table.add_column(title, justify="left" if title == "job" else "right")
    for name, values in found.items():
        pairs = list(zip(values, found[PLAIN], strict=True))
        compared = [a / b if ratio else a - b for a, b in pairs]
        cells = [statistics.median(compared), min(compared), max(compared)]
        median = f"{statistics.median(values):,.2f}"
        table.add_row(name, median, *(f"{each:.3f}" for each in cells))
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1 << 20)
    parser.add_argument("--batch", type=int, default=stream.BATCH)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each kind a turn")
    parser.add_argument("--warm-steps", type=int, help="not observed; default: an epoch")
    parser.add_argument("--starts", type=int, default=9, help="turns of jobs that only start")
    options = parser.parse_args()
    # So that the job ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = (BENCH / f"criteo-{options.ids}").resolve()
    stream.prepared(folder, options.ids, options.records)
    warm_steps = options.warm_steps or options.records // options.batch
    jobs = {
        name: Shoal(folder, 2, 1, 1, warm_steps, list(FLAGS[system]), options.batch)
        for name, system in KINDS.items()
    }

    def train(name: str) -> Measured:
        measured = jobs[name].measure(options.seconds)
        samples = measured["samples"]
        return {
            RATE: samples / measured["seconds"],
            CPU: measured["cpu_seconds"] / samples * 1e6,
        }

    trained = turns(options.turns, train)
    started = turns(options.starts, lambda name: {START: jobs[name].start_seconds()})
    print(f"DeepFM, {options.ids:,} ids, batch {options.batch}")
    for heading, found in trained.items():
        show(heading, found, ratio=True)
    for heading, found in started.items():
        show(heading, found, ratio=False)


if __name__ == "__main__":
    main()
