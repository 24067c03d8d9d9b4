"""The ways of training compared by AUC: one worker alone, and several in each mode.

    python benchmarks/modes.py [--seeds N] [--epochs N] [--workers N] [--modes NAME ...]

The DeepFM of model_zoo/movielens on MovieLens-100K, two servers. Each mode has the same
number of records to an update and the same learning rate: a synchronous update of k
gradients is of k minibatches of 1/k of the size. The modes take turns, seed by seed; a
difference is of means over the seeds.

Prints a table and writes build/bench/modes.json (not with --modes). Exits with 1 if the
mean AUC of a mode differs from that of one worker by more than 0.005.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import shoal
from shoal.model_zoo.movielens import deepfm, prepare

BUILD = Path(__file__).parents[1] / "build"
DATA = BUILD / "movielens"
BATCH = 256
TASK_RECORDS = 16 * BATCH
TOLERANCE = 0.005


def modes(workers: int) -> dict[str, dict[str, Any]]:
    """The flags of each mode, by name; "serial" is what the others are compared with."""
    several = {"num_workers": workers}
    return {
        "serial": {"num_workers": 1, "pipeline_depth": 0},
        "one worker": {"num_workers": 1},
        "async, depth 0": several | {"pipeline_depth": 0},
        "async": several,
        "async, lr modulated": several | {"lr_staleness_modulation": True},
        "bounded by 2": several | {"staleness_bound": 2},
        f"sync of {workers}": several | {"sync": True, "minibatch_size": BATCH // workers},
        "sync of 2, drop": several
        | {"sync": True, "grads_to_wait": 2, "minibatch_size": BATCH // 2},
        "sync of 2, fold": several
        | {"sync": True, "grads_to_wait": 2, "minibatch_size": BATCH // 2, "sync_late": "fold"},
    }


def train(name: str, flags: dict[str, Any], seed: int, epochs: int) -> shoal.JobResult:
    """Train one job."""
    flags = {"minibatch_size": BATCH} | flags
    job = f"{''.join(c if c.isalnum() else '-' for c in name)}-{seed}"
    result = shoal.train(
        model_def="deepfm.custom_model",
        model_zoo=Path(deepfm.__file__).parent,
        training_data=DATA / "train.parquet",
        validation_data=DATA / "validation.parquet",
        num_minibatches_per_task=TASK_RECORDS // flags["minibatch_size"],
        num_epochs=epochs,
        num_ps=2,
        seed=seed,
        checkpoint_seconds=0.0,
        job_name=job,
        job_dir=BUILD / "bench" / "modes" / job,
        overwrite=True,
        **flags,
    )
    if result.metrics["auc"] is None:
        raise SystemExit(f"Error: the AUC of {name} training is NaN")
    return result


def main() -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--modes", nargs="+", help="only these, beside serial")
    options = parser.parse_args()
    prepare.prepare(DATA)
    chosen = modes(options.workers)
    if options.modes:
        chosen = {name: chosen[name] for name in ("serial", *options.modes)}
    runs: dict[str, list[shoal.JobResult]] = {name: [] for name in chosen}
    lines: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for name, flags in chosen.items():
            result = train(name, flags, seed, options.epochs)
            runs[name].append(result)
            print(f"seed {seed}, {name}: {result.metrics['auc']:.4f}", flush=True)
        # After each seed, so that a run that is ended early is worth what it did.
        lines = [summary(name, chosen[name], runs) for name in chosen]
        show(lines, seed + 1)
        if not options.modes:
            write(lines, options)
    within = all(abs(line["difference"]) <= TOLERANCE for line in lines)
    print(f"{'within' if within else 'OUTSIDE'} the tolerance of {TOLERANCE}")
    return 0 if within else 1


def show(lines: list[dict[str, Any]], seeds: int) -> None:
    """Print the table."""
    table = Table(
        *("mode", "AUC", "spread", "difference", "staleness", "samples/s"), title=f"{seeds} seeds"
    )
    for line in lines:
        table.add_row(
            *(line["mode"], f"{line['auc']:.4f}", f"{line['spread']:.4f}"),
            *(f"{line['difference']:+.4f}", f"{line['staleness']:.2f}"),
            f"{line['samples_per_second']:,.0f}",
        )
    Console().print(table)


def write(lines: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write build/bench/modes.json."""
    report = {
        "workers": options.workers,
        "epochs": options.epochs,
        "batch": BATCH,
        "tolerance": TOLERANCE,
        "cores": os.cpu_count(),
        "modes": lines,
    }
    path = BUILD / "bench" / "modes.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {path}", flush=True)


def summary(
    name: str, flags: dict[str, Any], runs: dict[str, list[shoal.JobResult]]
) -> dict[str, Any]:
    """A mode's line: mean AUC, its standard deviation, difference to serial, staleness."""

    def aucs(mode: str) -> list[float]:
        return [result.metrics["auc"] or 0.0 for result in runs[mode]]

    mine = runs[name]
    return {
        "mode": name,
        "flags": flags,
        "aucs": aucs(name),
        "auc": statistics.fmean(aucs(name)),
        "spread": statistics.stdev(aucs(name)) if len(mine) > 1 else 0.0,
        "difference": statistics.fmean(aucs(name)) - statistics.fmean(aucs("serial")),
        "staleness": statistics.fmean(each.staleness["mean"] for each in mine),
        "samples_per_second": statistics.median(each.samples_per_second for each in mine),
    }


if __name__ == "__main__":
    sys.exit(main())
