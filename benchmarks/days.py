"""Seven jobs a day's data each, and one job over all of it in the order of time. `make bench-days`.

The ratings of MovieLens-100K for training are cut, in the order of time, into seven files: the
days. Each of seven jobs trains on one of them and goes on from the job before (--continue-from);
one job trains on all with --shuffle time. Prints the AUC of both on the validation data: for DeepFM
without dropout, with one worker and --pipeline-depth 0, where all values are also compared bit for
bit; and with dropout, which draws other numbers in each process, with one worker and with two.
Writes build/bench/days.json. Exits with 1 if values or, by more than the tolerance, AUCs differ.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import shoal
from shoal.model_zoo.movielens import archives, prepare

DAYS = 7
TOLERANCE = 0.001
"""Of the AUC."""

BUILD = Path("build")
FOLDER = BUILD / "bench" / "days"
CASES = ((0.0, 1, 0, (0,)), (0.2, 1, 2, (0,)), (0.2, 2, 2, (0, 1, 2)))
"""Dropout, workers, pipeline depth, seeds: what two workers learn differs from run to run."""


def write_days() -> None:
    """The days' files, and that of the validation data."""
    archive = archives.load(None)
    train, validation = prepare.split(archive)
    train.sort(key=lambda rating: (rating[3], rating[0], rating[1]))
    for day in range(DAYS):
        own = train[len(train) * day // DAYS : len(train) * (day + 1) // DAYS]
        path = FOLDER / "data" / f"day={day + 1}" / "ratings.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(prepare.records(archive, own), path)
    pq.write_table(prepare.records(archive, validation), FOLDER / "validation.parquet")


def trained(name: str, data: Path, **options: Any) -> shoal.JobResult:
    """The result of one job."""
    return shoal.train(
        model_def="deepfm.custom_model",
        model_zoo=Path(prepare.__file__).parent,
        training_data=data,
        validation_data=FOLDER / "validation.parquet",
        servers="2",
        job_dir=FOLDER / "jobs" / name,
        job_name=name,
        output=FOLDER / "models" / name,
        export="none",
        **options,
    )


def same(one: str, other: str) -> bool:
    """True if two jobs' models are equal bit for bit."""
    folders = [FOLDER / "models" / name for name in (one, other)]
    files = [sorted(each.rglob("*.parquet")) for each in folders]
    return len(files[0]) == len(files[1]) > 0 and all(
        a.name == b.name and pq.read_table(a).equals(pq.read_table(b))
        for a, b in zip(*files, strict=True)
    )


def main() -> int:
    """Run, print, write; returns the exit code."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    write_days()
    found = []
    for dropout, workers, depth, seeds in CASES:
        pairs = []
        for seed in seeds:
            options: dict[str, Any] = {
                "workers": str(workers),
                "pipeline_depth": depth,
                "shuffle": "time",
                "seed": seed,
                "model_params": {"dropout": dropout},
            }
            case = f"deepfm-{dropout:g}-{workers}-{seed}".replace(".", "")
            whole = trained(f"{case}-whole", FOLDER / "data", **options)
            last, result = "", whole
            for day in range(1, DAYS + 1):
                before = {"continue_from": FOLDER / "jobs" / last} if last else {}
                last = f"{case}-day{day}"
                data = FOLDER / "data" / f"day={day}" / "ratings.parquet"
                result = trained(last, data, **options, **before)
            pairs.append((whole.metrics["auc"], result.metrics["auc"], same(f"{case}-whole", last)))
        one, seven, equal = zip(*pairs, strict=True)
        found.append(
            {
                "dropout": dropout,
                "workers": workers,
                "depth": depth,
                "one job": statistics.fmean(one),
                "seven jobs": statistics.fmean(seven),
                "of seeds": list(zip(one, seven, strict=True)),
                "equal": all(equal),
            }
        )
        print(found[-1], flush=True)
    table = Table("dropout", "workers", "one job", "seven jobs", "difference", "bit for bit")
    failed = False
    for each in found:
        difference = each["seven jobs"] - each["one job"]
        exact = each["depth"] == 0
        failed |= abs(difference) > TOLERANCE or (exact and not each["equal"])
        table.add_row(
            str(each["dropout"]),
            str(each["workers"]),
            f"{each['one job']:.4f}",
            f"{each['seven jobs']:.4f}",
            f"{difference:+.4f}",
            "equal" if each["equal"] else "no",
        )
    Console().print(table)
    (BUILD / "bench" / "days.json").write_text(json.dumps(found, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
