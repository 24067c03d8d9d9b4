"""The peak memory of workers whose model brings a large table, and of those that bring none.

    python -m benchmarks.first_rows --rows 10000000 --dim 16 [FOLDER]

Two jobs train the same model: one whose function loads it with `keras.models.load_model` from a
file of so many rows, one whose function makes it. Prints the largest resident memory of each worker
of both. Exits with 1 if a worker that brings the rows takes
more than 300 MB above one that does not.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.client.found.processes import process_of

BOUND_MB = 300
"""Above a worker that starts from nothing."""

WORKERS = ("worker-0", "worker-1")

MODULE = """
from pathlib import Path

import keras

ROWS, DIM = {rows}, {dim}


def built():
    user = keras.Input([], dtype="int64", name="user")
    rows = keras.layers.Embedding(ROWS, DIM, name="users")(user)
    return keras.Model(user, keras.layers.Dense(1, activation="sigmoid")(rows))


def loaded():
    return keras.models.load_model(Path(__file__).with_name("pretrained.keras"))


def feed_batch(columns, mode, metadata):
    return columns["user"] if mode == "prediction" else (columns["user"], columns["clicked"])


loss = "binary_crossentropy"


def optimizer():
    return keras.optimizers.SGD(0.1)
"""


def peak_mb(pid: int) -> float:
    """The largest resident memory that a process has had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if "VmHWM" in line) / 1000


def peaks(folder: Path, function: str) -> dict[str, float]:
    """The peak of each worker of a job, in MB, by its index."""
    job = folder / function
    command = [sys.executable, "-m", "shoal", "train", "--model-zoo", folder, "--job-dir", job]
    command += ["--model-def", f"model.{function}", "--training-data", folder / "data.parquet"]
    command += ["--workers", str(len(WORKERS)), "--servers", "2"]
    found: dict[str, float] = {}
    with subprocess.Popen([str(each) for each in command]) as process:
        while process.poll() is None:
            for name in WORKERS:
                pid = process_of(job / "job.json", "worker", int(name[-1]))
                with contextlib.suppress(OSError, StopIteration):
                    if pid is not None:
                        found[name] = peak_mb(pid)
            time.sleep(0.2)
    if process.returncode or json.loads((job / "result.json").read_text())["state"] != "succeeded":
        raise SystemExit(f"{function}: the job has failed")
    return found


@click.command()
@click.argument("folder", required=False)
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--dim", default=16, show_default=True)
@click.option("--records", default=50_000, show_default=True)
def main(folder: str | None, rows: int, dim: int, records: int) -> None:
    """Run both jobs and print what their workers took."""
    with contextlib.ExitStack() as ends:
        at = Path(folder or ends.enter_context(tempfile.TemporaryDirectory()))
        at.mkdir(exist_ok=True)
        (at / "model.py").write_text(MODULE.format(rows=rows, dim=dim))
        save = "import model; model.built().save('pretrained.keras')"
        subprocess.run([sys.executable, "-c", save], cwd=at, check=True)
        draw = np.random.default_rng(0)
        users = draw.integers(0, rows, records)
        pq.write_table(
            pa.table({"user": users, "clicked": users % 2}),
            at / "data.parquet",
            row_group_size=1000,
        )
        of = {function: peaks(at, function) for function in ("built", "loaded")}
    for function, found in of.items():
        told = ", ".join(f"{name} {mb:,.0f} MB" for name, mb in sorted(found.items()))
        click.echo(f"{function}: {told}")
    more = max(of["loaded"].values()) - min(of["built"].values())
    click.echo(f"bringing {rows:,} rows of dim {dim} takes {more:,.0f} MB more; bound {BOUND_MB}")
    sys.exit(more > BOUND_MB)


if __name__ == "__main__":
    main()
