"""Files that arrive, while processes of the job are killed: each record once, and how late.

    python -m benchmarks.arriving [--seconds 600] [--kills 30] [--legs 3] [--seed 1]

A writer renames a file of 200 records into a folder each 0.2 s. Jobs of the counting model train
them with --arriving, one leg after the other, while workers, servers and masters are killed at
random. In the end the rows of the export must be the numbers that were written: each id once. How
late a file is, from its name until all servers have its last gradient, is told by the reports of
tasks in the journal. Prints both, and writes build/bench/arriving.json. Exits with 1 if a record is
missing or was trained twice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import shoal.tools.counting
from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import job_processes
from shoal.config.job import JobConfig
from shoal.master.job.events import TaskReported
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.reading import read
from shoal.master.work.outcomes import Done
from shoal.result import JobResult
from shoal.tools.chaos.count import found_rows

BUILD = Path("build/bench").absolute()
RECORDS, EVERY = 200, 0.2
ROLES = ("worker", "worker", "ps", "ps", "master")


def write(folder: Path, files: int) -> Path:
    """The next file, whole when its name is there."""
    path = folder / f".part-{files:06}.csv"
    first = files * RECORDS
    rows = "".join(f"{first + each},{each % 50}\n" for each in range(RECORDS))
    path.write_text("record,user\n" + rows)
    return path.rename(folder / path.name[1:])


class Writer(threading.Thread):
    """Adds files until it is ended. written: when each had its name, by its path."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._done = threading.Event()
        self.written: dict[str, float] = {str(write(folder, 0)): time.time()}

    def run(self) -> None:
        """Add them."""
        while not self._done.wait(EVERY):
            path = str(write(self._folder, len(self.written)))
            self.written[path] = time.time()

    def end(self) -> None:
        """Add no more."""
        self._done.set()
        self.join()


def kill_one(folder: JobFolder, draw: random.Random) -> str:
    """Kill a process of the job; its name, "" if that is not there now."""
    role, index = draw.choice(ROLES), draw.randrange(2)
    if not folder.config.exists():
        return ""
    for pid in job_processes(folder.config):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        here = f"shoal.{role}" in line
        if here and (role == "master" or line[line.index("--index") + 1] == str(index)):
            os.kill(pid, signal.SIGKILL)
            return role if role == "master" else f"{role}-{index}"
    return ""


def run_leg(number: int, arguments: argparse.Namespace, draw: random.Random, writer: Writer) -> int:
    """Run a leg to its end, and kill its share of processes; how many it killed."""
    last = number == arguments.legs - 1
    seconds = arguments.seconds / arguments.legs
    root = BUILD / "arriving"
    folder = JobFolder(root / f"leg-{number}")
    line = [sys.executable, "-m", "shoal", "train", "--model-def", "counts.custom_model"]
    line += ["--model-zoo", str(Path(shoal.tools.counting.__file__).parent)]
    line += ["--training-data", str(root / "in"), "--arriving", "1", "--batch-size", "50"]
    line += ["--num-minibatches-per-task", "4", "--workers", "2", "--servers", "2"]
    line += ["--durability", "file", "--relaunch-limit", "100", "--job-dir", str(folder.path)]
    line += ["--latest", str(root / "latest"), "--only-new", "--output", str(root / "out")]
    line += ["--export", "none", "--overwrite"]
    line += ["--until-idle", "10"] if last else ["--leg", str(seconds)]
    process = subprocess.Popen(line, env={**os.environ, "PYTHONPATH": os.getcwd()})
    share = arguments.kills // arguments.legs
    killed, ends = 0, time.monotonic() + seconds
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # the next leg begins at once
            process.wait(draw.uniform(0.5, 1.5) * seconds / max(share, 1) / 1.1)
        if killed < share and time.monotonic() < ends and (who := kill_one(folder, draw)):
            killed += 1
            print(f"killed {who}", flush=True)
        if last and time.monotonic() > ends:
            writer.end()
    if process.returncode:
        raise SystemExit(f"leg {number} ended with exit code {process.returncode}")
    return killed


def trained_at(folder: JobFolder) -> dict[str, float]:
    """The time when all of each file was trained, by its path: the last report of its tasks."""
    config = JobConfig.load(folder.config)
    job = RecordedJob(config, lambda _: None)
    found: dict[str, float] = {}
    for entry in read(folder.journal)[1]:
        event = entry.event
        if isinstance(event, TaskReported) and isinstance(event.outcome, Done):
            task = job.members.workers[event.worker].holds(event.task_id)
            if task is not None and task.span is not None:
                found[task.span.source] = entry.wall
        job.replay([entry])
    return found


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--legs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    root = BUILD / "arriving"
    shutil.rmtree(root, ignore_errors=True)
    (root / "in").mkdir(parents=True)
    draw, writer = random.Random(arguments.seed), Writer(root / "in")
    writer.start()
    try:
        killed = sum(run_leg(each, arguments, draw, writer) for each in range(arguments.legs))
    finally:
        writer.end()
    records = len(writer.written) * RECORDS
    rows = found_rows(root / "out", "records")
    wrong = {i: rows.get(i, 0) for i in range(records) if rows.get(i, 0) != 1}
    foreign = rows.keys() - set(range(records))
    late: list[float] = []
    trained = 0
    for number in range(arguments.legs):
        folder = JobFolder(root / f"leg-{number}")
        late += [at - writer.written[path] for path, at in trained_at(folder).items()]
        trained += JobResult.read(folder.result).ledger["trained_once"]
    cuts = statistics.quantiles(late, n=100)
    told = {
        "seed": arguments.seed,
        "files": len(writer.written),
        "killed": killed,
        "records": records,
        "rows that are not 1": len(wrong) + len(foreign),
        "seconds from file to model, p50": round(cuts[49], 2),
        "seconds from file to model, p99": round(cuts[98], 2),
        "seconds from file to model, most": round(max(late), 2),
    }
    (BUILD / "arriving.json").write_text(json.dumps(told, indent=1) + "\n")
    for name, value in told.items():
        print(f"{name:34} {value}")
    if wrong or foreign or trained != records:
        raise SystemExit(f"not each record once: {dict(list(wrong.items())[:5])} {foreign}")


if __name__ == "__main__":
    main()
