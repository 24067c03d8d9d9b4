"""Migrating a checkpoint: bytes a second and memory, by its size.

    python -m benchmarks.migrate [--gigabytes N ...] [--folder FOLDER] [--turns N]

Two servers' shards of a table of dim 16 with Adagrad are written to FOLDER (default: the system's
for temporary files), and migrated in a process of their own: with rows as they are, with 32
columns whose new ones are 0, or those of rows never trained, and with Adam's slots. MB/s are of
the bytes that are read; those written are printed too. Memory is the most that the process held
beyond what it had held with everything imported. In turns with these a process copies the files as
they are. The files are in the system's memory; what is written is synced. They are removed at the
end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.restore import ROW_BYTES, specification, write
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.migration_terms import Described, Label, Wishes
from shoal.checkpoints.threads import cores
from shoal.files.storage import LocalStorage, open_storage
from shoal.native.optimizers import OptimizerSpec
from shoal.tools.migration import migration
from shoal.tools.migration.migration_plan import plan

CHANGES = ("copied", "kept", "columns 0", "columns initial", "adam")


def described(change: str) -> Described:
    """The model after a change."""
    spec = specification()
    labels = []
    if change.startswith("columns"):
        spec.tables[0].dim = 32
        labels = [Label("table", "t", "", 0, i) for i in range(32)]
    if change == "adam":
        spec.tables[0].optimizer = OptimizerSpec("adam").to_json()
    read = {"kernel": tuple(labels)} if change == "columns initial" else {}
    return Described(spec, read)


def most_held() -> int:
    """The most bytes that this process has held."""
    # Not getrusage, which begins with what the process held that has started this one.
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024


def migrate(source: str, target: str, change: str) -> None:
    """Migrate in this process, and print the figures as JSON."""
    before = most_held()
    began = time.perf_counter()
    if change == "copied":
        Path(target).mkdir()
        subprocess.run(["cp", "-r", source, target], check=True)
        subprocess.run(["sync", "-f", target], check=True)
        written = 0
    else:
        found = Checkpoint(open_storage(source), 1)
        made = plan(Described(found.model), described(change), Wishes())
        written = migration.migrate(found, open_storage(target), made, {})["bytes"]
    seconds = time.perf_counter() - began
    most = most_held() - before
    print(json.dumps({"seconds": seconds, "written": written, "memory": most}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.25, 1.0, 4.0])
    parser.add_argument("--folder", default=None)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--migrate", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.migrate:
        migrate(*options.migrate)
        return
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            source = Path(name, "source")
            size = write(LocalStorage(source), int(gigabytes * 1e9 / ROW_BYTES)).bytes
            print(f"{size / 1e9:.2f} GB, {cores()} cores", flush=True)
            for turn in range(options.turns):
                for change in CHANGES:
                    with tempfile.TemporaryDirectory(dir=name) as work:
                        line = ["--migrate", str(source), str(Path(work, "new")), change]
                        done = subprocess.run(
                            [sys.executable, "-m", "benchmarks.migrate", *line],
                            check=True,
                            capture_output=True,
                            text=True,
                        )
                    found = json.loads(done.stdout)
                    print(
                        f"turn {turn}: {change}: {size / found['seconds'] / 1e6:.0f} MB/s, "
                        f"{found['written'] / 1e9:.2f} GB written, "
                        f"{found['memory'] / 1e6:.0f} MB of memory",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
