"""Bytes, speed and AUC of a job by --wire-dtype, where worker and server share a slow link.

    python -m benchmarks.slow_link [--mbit N] [--turns N] [--batch N] [--depth N]

DeepFM of the model zoo, whose tables are float32, on a SYNTHETIC stream
(model_zoo/criteo/prepare.py) of 100,000 ids: an epoch of 400,000 records, one worker and one
server. A relay is between them, which lets so many Mbit a second through, both ways together; 0 is
no limit. The types take turns, with a seed for each turn; with --depth 0 a turn's jobs differ by
their roundings alone.

Prints, for each job, the megabytes between the two, samples a second of training, and the AUC; and
at the end the medians of the turns' ratios and differences to float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from shoal.model_zoo.criteo import prepare as stream
from shoal.proto import faults
from shoal.tools.chaos.relay import Relay

ZOO = Path("model_zoo/criteo")
DATA = Path("build/bench/criteo-slow-link")
IDS, RECORDS = 100_000, 400_000
KINDS = ("float32", "bfloat16", "float16")
BURST_SECONDS = 0.002
"""The link makes up for so much of the time in which nothing came."""


class Link(Relay):
    """A relay that counts its bytes, and lets `mbit` millions of bits a second through."""

    def __init__(self, folder: Path, mbit: float) -> None:
        self.bytes = 0
        self._mbit = mbit
        self._free = 0.0
        self._lock = threading.Lock()
        super().__init__(folder, "worker-0", "ps-0")

    def note(self, data: bytes) -> None:
        """Wait until the link has taken these bytes."""
        with self._lock:
            self.bytes += len(data)
            if not self._mbit:
                return
            now = time.perf_counter()
            self._free = max(self._free, now - BURST_SECONDS) + len(data) * 8e-6 / self._mbit
            wait = self._free - now
        if wait > 0:
            time.sleep(wait)


def measured(kind: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """A whole job."""
    with tempfile.TemporaryDirectory() as folder:
        arranged, job = Path(folder, "faults"), Path(folder, "job")
        arranged.mkdir()
        link = Link(arranged, options.mbit)
        command = [
            *(sys.executable, "-m", "shoal", "train", "--job-dir", str(job)),
            *("--model-zoo", str(ZOO), "--model-def", "deepfm.custom_model"),
            *("--training-data", str(DATA / "train.parquet")),
            *("--validation-data", str(DATA / "validation.parquet")),
            *("--batch-size", str(options.batch), "--pipeline-depth", str(options.depth)),
            *("--durability", "checkpoint", "--checkpoint-seconds", "0", "--seed", str(seed)),
            *("--wire-dtype", kind),
        ]
        environment = os.environ | {faults.VARIABLE: str(arranged)}
        try:
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        finally:
            link.close()
        result = json.loads((job / "result.json").read_text())
    return {
        "MB": link.bytes / 1e6,
        "samples/s": result["samples_per_second"],
        "AUC": result["metrics"]["auc"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, default=200.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=2)
    options = parser.parse_args()
    stream.prepared(DATA, IDS, RECORDS)
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for turn in range(options.turns):
        for kind in KINDS:
            each = measured(kind, turn + 1, options)
            found[kind].append(each)
            told = f"{each['MB']:.1f} MB, {each['samples/s']:,.0f} samples/s, AUC {each['AUC']:.5f}"
            print(f"turn {turn + 1}, {kind}: {told}", flush=True)
    for kind in KINDS[1:]:
        pairs = list(zip(found[kind], found[KINDS[0]], strict=True))
        size, speed = (
            statistics.median(a[name] / b[name] for a, b in pairs) for name in ("MB", "samples/s")
        )
        auc = statistics.median(a["AUC"] - b["AUC"] for a, b in pairs)
        print(
            f"{kind} by float32: {size:.2f} of the bytes, {speed:.2f} times as fast, AUC {auc:+.5f}"
        )


if __name__ == "__main__":
    main()
