"""Servers that come and leave under kills: each record's gradient is applied once, whoever dies.

    make soak-moves   or   python benchmarks/soak_moves.py [--moves N] [--seed N]

Jobs of two workers that count records in their own weights (tests/jobs/zoo/counting.py), with
--durability=log. While such a job trains, its number of servers goes up and down at random, and
before most of the changes a random process is told to die at a random point of the move: a server
that sends or takes rows, the master before or after the decision, a worker between two
acknowledgements; or a random process gets SIGKILL while rows move. Where logs are in files, servers
are told to end as well, and give their rows away. At the end the exported rows say
how often each record was applied. Jobs follow one another until so many moves were completed.
Exits with 1 at a difference.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from shoal.client import local_master
from shoal.errors import UserError
from shoal.proto import faults
from tests.jobs.results import COUNTING, applied
from tests.jobs.running import RunningJob, audited

RECORDS = 30_000
EPOCHS = 2
LEAST, MOST = 1, 4
"""Servers."""

POINTS = {
    "ps": ("rows-sent", "rows-taken", "pushes-frozen", "before-rows-removed", "push-applied"),
    "master": ("move-begun", "before-move-committed", "move-committed"),
    "worker": ("between-acknowledgements",),
}
PATIENCE = 120.0


class Job:
    """One job, and what is done to it. moves: that were completed. deaths: by role."""

    def __init__(
        self, running: RunningJob, kills: Path, draw: random.Random, first: int, least: int
    ) -> None:
        """first, least: servers at the beginning, and at any time."""
        self._running = running
        self._kills = kills
        self._draw = draw
        self._least = least
        self._servers = first
        self.deaths: Counter[str] = Counter()
        self.failed = 0

    def moves(self, method: str = "move_ended") -> int:
        """How many the journal has."""
        return sum(event.method == method for event in self._running.events())

    @property
    def runs(self) -> bool:
        """Whether its command has not ended."""
        return self._running.process.poll() is None

    def change(self, *, drains: bool) -> None:
        """Another number of servers, or one that is told to end, and a death on the way there.

        Waits for the move's end, or for the successor of the server.
        """
        draw, before = self._draw, self.moves()
        role = draw.choice(("ps", "ps", "master", "worker", "kill", ""))
        if role in POINTS:
            index = 0 if role == "master" else draw.randrange(min(2, self._servers))
            point = draw.choice(POINTS[role])
            name = point if draw.random() < 0.5 else f"{point}@{role}-{index}"
            (self._kills / name).touch()
        if drains and self._servers > 1 and draw.random() < 0.5:
            drained = draw.randrange(1, self._servers)
            first = self._running.pid("ps", drained)
            if first is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(first, signal.SIGTERM)
            self._death(role)
            self._until(
                f"the successor of ps-{drained}",
                lambda: self._running.pid("ps", drained) not in (None, first),
            )
            return
        servers = draw.choice([n for n in range(self._least, MOST + 1) if n != self._servers])
        if self._scaled(servers):
            self._death(role)
            self._until(f"a move to {servers} servers", lambda: self.moves() > before)

    def _death(self, role: str) -> None:
        if role == "kill":
            time.sleep(self._draw.random() * 0.3)
            victim = self._draw.choice(("ps", "master", "worker"))
            with contextlib.suppress(AssertionError, ProcessLookupError):
                self._running.kill(victim, 0)

    def _until(self, what: str, there: Callable[[], bool]) -> None:
        """Wait, while the job runs."""
        give_up = time.monotonic() + PATIENCE
        while self.runs and not there():
            if time.monotonic() > give_up:
                raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
            time.sleep(0.1)

    def _scaled(self, servers: int) -> bool:
        """Ask for so many servers, once the master answers; False: the job has ended."""
        while self.runs:
            try:
                local_master.scale(self._running.folder, None, servers)
            except UserError as error:
                if "trained" in str(error):
                    return False
                time.sleep(0.1)
                continue
            self._servers = servers
            return True
        return False


def one_job(folder: Path, data: Path, seed: int, most: int) -> tuple[int, str]:
    """How many moves one job completed, and what is wrong with its rows; "" for nothing."""
    draw = random.Random(seed)
    kills, output = folder / f"kills-{seed}", folder / f"out-{seed}"
    kills.mkdir()
    first = draw.choice((1, 2, 3))
    place = draw.choice(("file", "peer")) if first > 1 else "file"
    # An update of one gradient, so that what is expected of the rows is the same.
    sync: dict[str, Any] = draw.choice(({}, {"sync": True, "grads_to_wait": 1}))
    with RunningJob(
        "train",
        folder,
        f"moving-{seed}",
        environment={faults.VARIABLE: str(kills)},
        training_data=data,
        output=output,
        num_ps=first,
        num_workers=2,
        num_epochs=EPOCHS,
        num_minibatches_per_task=20,
        durability="log",
        log_place=place,
        checkpoint_steps=2000,
        relaunch_limit=10_000,
        **sync,
        **COUNTING,
    ) as running:
        running.wait_status("training", lambda status: status.records_done > 0)
        # Logs at servers need two.
        job = Job(running, kills, draw, first, 2 if place == "peer" else 1)
        for _ in range(most):
            if not job.runs:
                break
            job.change(drains=place == "file")
        for left in kills.iterdir():
            left.unlink()
        result = running.ended().succeeded().result
        moves, failed = job.moves(), job.moves("move_failed")
    total, counts = applied(output)
    # A worker that dies between two acknowledgements leaves its push on some servers only.
    more = Counter(
        key
        for each in audited(running.folder)["ranges"]
        for key in range(each["start"], each["end"])
        if each["kind"] == "repeated"
    )
    wrong = []
    if any(not 0 <= each - RECORDS * EPOCHS <= sum(more.values()) for each in total):
        wrong.append(f"total {total}")
    off = {
        key: value for key, value in counts.items() if not 0 <= value - EPOCHS <= more.get(key, 0)
    }
    if off or len(counts) != RECORDS:
        wrong.append(f"{len(counts)} ids, {len(off)} not {EPOCHS} times: {list(off.items())[:5]}")
    if result["servers"]["lost_pushes"]:
        wrong.append(f"{result['servers']['lost_pushes']} lost pushes")
    dead = result["servers"]["deaths"], result["workers"]["deaths"]
    click.echo(
        f"seed {seed}{', --sync' * bool(sync)}: {first} servers first, log in {place}: "
        f"{moves} moves, {failed} given up; "
        f"{dead[0]} servers and {dead[1]} workers died, {sum(more.values())} records repeated by "
        f"the audit; {', '.join(wrong) or 'no difference'}"
    )
    return moves, ", ".join(wrong)


@click.command()
@click.option("--moves", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(moves: int, seed: int) -> None:
    """Run, compare, print."""
    done, different = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data.csv"
        data.write_text("id\n" + "".join(f"{i}\n" for i in range(RECORDS)))
        while done < moves:
            more, wrong = one_job(folder, data, seed, moves - done)
            done, different, seed = done + more, different + bool(wrong), seed + 1
    click.echo(f"{done} moves; {different} jobs with a difference")
    sys.exit(int(different > 0))


if __name__ == "__main__":
    main()
