"""Compare the workers that --autoscale chooses with the best number. `make bench-autoscale`.

Jobs whose minibatches take a time that does not depend on the machine
(tests/jobs/zoo/throttled.py): APART seconds in each worker by itself, and TOGETHER seconds in which
one worker at a time can be. So one machine shows shapes of jobs that would need many: w workers
have the speed min(w / (APART + TOGETHER), 1 / TOGETHER), beside the cost of the steps themselves.

For each shape a job is scaled by hand through the numbers of a grid, and measured at each; then a
job with --autoscale begins with one worker, or with the largest number. Printed are the time after
which it had 0.95 of the speed of the best number that pays (with --scale-efficiency 0.5) and kept
it, its number of workers at the end, and how often it changed that. Writes
build/bench/autoscale.json.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from tests.jobs.running import RunningJob

MOST = 6
GRID = (1, 2, 3, 4, 6)
EFFICIENCY = 0.5
NEAR = 0.95
SHAPES = {
    "each worker pays": (0.25, 0.0, 1),
    "room for 4": (0.15, 0.05, 1),
    "room for 2.5": (0.15, 0.1, 1),
    "none pays": (0.0, 0.15, 1),
    "room for 2.5, from 6 on": (0.15, 0.1, 6),
}
"""APART, TOGETHER, and the number of workers with which the job begins."""


class Throttled:
    """A job of a shape. fields: further ones of its configuration."""

    def __init__(self, folder: Path, name: str, apart: float, together: float, **fields: Any):
        data = folder / "data.csv"
        data.write_text("id\n" + "".join(f"{i}\n" for i in range(4000)))
        environment = {"APART": str(apart), "TOGETHER": str(together)}
        if together:
            environment["LOCK"] = str(folder / f"{name}.lock")
        self.job = RunningJob(
            "train",
            folder,
            name,
            environment=environment,
            model_def="throttled.custom_model",
            training_data=data,
            batch_size=10,
            num_minibatches_per_task=20,
            epochs=10_000,
            checkpoint_seconds=0,
            **fields,
        )

    def status(self) -> pb.JobStatus:
        """The job's status, as the master reports it."""
        return self.job.call_status()

    def steps(self) -> int:
        """Steps that the server has applied."""
        version: int = self.job.server_status(0).version
        return version

    def train_with(self, workers: int) -> None:
        """Wait until so many workers train."""
        self.job.wait_status(
            f"{workers} workers in training",
            lambda status: (
                status.workers_alive == workers
                and sum(view.stage_seconds.get("step", 0) > 0 for view in status.workers) >= workers
            ),
        )

    def speed(self, seconds: float) -> float:
        """Steps a second, over some seconds from now."""
        began, before = time.monotonic(), self.steps()
        time.sleep(seconds)
        return (self.steps() - before) / (time.monotonic() - began)


def grid(
    folder: Path, name: str, apart: float, together: float, seconds: float
) -> dict[int, float]:
    """The speed with each number of workers."""
    throttled, found = Throttled(folder, name, apart, together), {}
    with throttled.job as job:
        for workers in GRID:
            job.call_master(methods.SCALE_JOB, pb.ScaleJobRequest(num_workers=workers))
            throttled.train_with(workers)
            time.sleep(2)  # the newest one has compiled its step
            found[workers] = throttled.speed(seconds)
    return found


def best(speeds: dict[int, float]) -> float:
    """The speed of the largest number of the grid up to which workers pay."""
    numbers = sorted(speeds)
    found = numbers[0]
    for few, many in itertools.pairwise(numbers):
        added = (speeds[many] - speeds[few]) / (many - few)
        if added < EFFICIENCY * speeds[few] / few:
            break
        found = many
    return speeds[found]


def scaled(
    folder: Path,
    name: str,
    apart: float,
    together: float,
    start: int,
    seconds: float,
) -> dict[str, Any]:
    """A job that scales itself, watched for some seconds from its first step on."""
    throttled = Throttled(
        *(folder, name, apart, together),
        workers=f"{start}:{MOST}",
        scale_efficiency=EFFICIENCY,
    )
    course = []
    with throttled.job:
        throttled.train_with(start)
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            speed = throttled.speed(5)
            course.append((round(at, 1), throttled.status().workers_wanted, round(speed, 2)))
        messages = [m for m in throttled.status().messages if "number of workers goes" in m]
    return {"course": course, "changes": messages}


@click.command()
@click.option("--seconds", default=180.0, show_default=True, help="For which a job is watched.")
@click.option("--output", default="build/bench/autoscale.json", type=click.Path(path_type=Path))
def main(seconds: float, output: Path) -> None:
    """Measure, print, write."""
    table = Table(
        "shape", "best that pays", f"seconds to {NEAR} of it", "workers", "of it", "changes"
    )
    content = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (shape, (apart, together, start)) in enumerate(SHAPES.items()):
            speeds = grid(Path(name), f"grid-{number}", apart, together, 12)
            found = scaled(Path(name), f"scaled-{number}", apart, together, start, seconds)
            wanted = NEAR * best(speeds)
            slow = [at for at, _, speed in found["course"] if speed < wanted]
            reached = (max(slow) + 5 if slow else 0.0) if len(slow) < len(found["course"]) else None
            *_, (_, workers, _) = found["course"]
            last = [speed for _, _, speed in found["course"][-4:]]
            share = sum(last) / len(last) / best(speeds)
            content[shape] = {"grid": speeds, "reached": reached, "share": round(share, 3)} | found
            shown = "not" if reached is None else f"{reached:.0f}"
            changes = str(len(found["changes"]))
            table.add_row(
                shape, f"{best(speeds):.1f} steps/s", shown, str(workers), f"{share:.2f}", changes
            )
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=2) + "\n")
    Console().print(table)


if __name__ == "__main__":
    main()
