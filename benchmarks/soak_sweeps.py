"""Servers killed while their tables are swept: nothing may differ from a job without kills.

    make soak-sweeps   or   python benchmarks/soak_sweeps.py [--kills N] [--jobs N] [--seed N]
    make soak-sync     or   python benchmarks/soak_sweeps.py --sync ...

Jobs with one worker, two servers, --durability=log, admission, rows that expire and a cap; with
--sync two gradients make an update. A job
stands still before random steps; then a random server gets SIGKILL within 30 ms after it goes on,
in the midst of pushes, sweeps, logs and checkpoints. At the end rows, optimizer slots, steps, uses,
counted ids, dense values, clocks and the numbers of removed ids of each server are compared with
those of a job that nobody has killed. Pauses before restarts make most of the time, so jobs run
side by side. Exits with 1 at a difference.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from shoal.checkpoints.folders import checkpoint_at
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, run
from tests.jobs.test_continue import saved

STEPS = 600
BATCH = 10
SPAN = 1600
"""Seconds of event time; a record a second."""


def fields(data: Path, output: Path, sync: bool) -> dict[str, Any]:
    """Of a job. Ids come again after a while, some of them often; more than the cap at a time."""
    return ({"sync": True, "grads_to_wait": 2} if sync else {}) | {
        "training_data": data,
        "event_time": "at:s",
        "table": [
            f"counts.expire_after={SPAN}s",
            "counts.max_rows=128",
            "counts.admit_after=2",
        ],
        "output": output,
        "num_minibatches_per_task": STEPS,
        "num_ps": 2,
        "durability": "log",
        "checkpoint_steps": 40,
        **SERIAL,
    }


def write(path: Path, seed: int) -> None:
    """The records."""
    draw = random.Random(seed)
    ids = [int(draw.paretovariate(0.4)) % 600 for _ in range(STEPS * BATCH)]
    path.write_text("id,at\n" + "".join(f"{key},{at}\n" for at, key in enumerate(ids)))


def state(folder: Path, output: Path) -> dict[str, Any]:
    """All that is compared."""
    checkpoint = checkpoint_at(str(folder / "checkpoints"))
    assert checkpoint is not None
    rows, counted, dense = saved(folder)
    lifecycles = [shard["lifecycle"] for shard in checkpoint.shards]
    return {
        "rows": rows,
        "counted": counted,
        "dense": dense,
        "sweeps": [
            {name: each[name] for name in ("clock", "plan", "part", "removed")}
            for each in lifecycles
            if each is not None
        ],
        "export": applied(output),
    }


def killed(
    folder: Path, data: Path, kills: int, seed: int, sync: bool
) -> tuple[dict[str, Any], int]:
    """A job of which servers are killed; its state, and how many were."""
    draw = random.Random(seed)
    gates = [f"step-{step}" for step in sorted(draw.sample(range(20, STEPS), kills))]
    output = folder / f"out-{seed}"
    with RunningJob(
        "train",
        folder,
        f"killed-{seed}",
        environment={"GATES": " ".join(gates)},
        relaunch_limit=10_000,
        **fields(data, output, sync),
    ) as job:
        for gate in gates:
            job.at_gate(gate)
            victim = draw.randrange(2)
            # One that is being started again is no longer what the seed says: it is waited for.
            job.server_status(victim)
            job.open(gate)
            time.sleep(draw.random() * 0.03)
            job.kill("ps", victim)
        result = job.ended().succeeded().result
    assert result["servers"]["lost_pushes"] == 0
    return state(folder / f"killed-{seed}", output), result["servers"]["deaths"]


@click.command()
@click.option("--kills", default=100, show_default=True)
@click.option("--jobs", default=5, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--sync", is_flag=True, help="Jobs that train synchronously.")
def main(kills: int, jobs: int, seed: int, sync: bool) -> None:
    """Run, compare, print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data.csv"
        write(data, seed)
        plain = run("train", folder, "plain", **fields(data, folder / "plain-out", sync))
        plain.succeeded()
        expected = state(folder / "plain", folder / "plain-out")
        removed = [each["removed"] for each in expected["sweeps"]]
        click.echo(f"without kills: {len(expected['rows'])} rows, removed {removed}")
        each = -(-kills // jobs)
        with ThreadPoolExecutor(jobs) as pool:
            done = list(
                pool.map(
                    lambda number: killed(folder, data, each, seed * 1000 + number, sync),
                    range(jobs),
                )
            )
    different = 0
    for number, (found, deaths) in enumerate(done):
        names = [key for key, value in expected.items() if found[key] != value]
        different += bool(names)
        click.echo(f"job {number}: {deaths} servers died; different: {', '.join(names) or 'none'}")
    click.echo(f"{sum(deaths for _, deaths in done)} deaths, {different} jobs with a difference")
    sys.exit(int(different > 0))


if __name__ == "__main__":
    main()
