"""DeepFM on MovieLens-1M by RecBole's protocol: the AUC of the test data.

    make bench-movielens-1m

The data are those of model_zoo/movielens_1m/prepare.py. For each of three seeds, with one worker
and with four, trains the DeepFM of the model zoo, takes the model of the best evaluation on the
validation data, and evaluates that on the test data. Prints a table and writes
build/bench/movielens_1m.json. Exits with 1 if the mean over the seeds is below `LEAST`.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

import shoal
from shoal.model_zoo.movielens_1m import prepare

SEEDS = (0, 1, 2)
WORKERS = (1, 4)
EPOCHS = 18
BATCH = 4096
LEAST = 0.897
PUBLISHED = 0.8997
"""Of DeepFM, by RecBole: benchmark/hyper/context/DeepFM-ml-1m.md in its repository."""

BUILD = Path("build")
DATA = BUILD / "movielens-1m"


def run(seed: int, workers: int) -> dict[str, float]:
    """Train and test once; returns the AUCs and the seconds of training."""
    name = f"movielens-1m-{workers}-{seed}"
    folder = BUILD / "bench" / name
    model = {"model_def": "deepfm.custom_model", "model_zoo": Path(prepare.__file__).parent}
    steps = -(-prepare.RECORDS * 8 // 10 // BATCH)
    trained = shoal.train(
        **model,
        training_data=DATA / "train.parquet",
        validation_data=DATA / "validation.parquet",
        epochs=EPOCHS,
        batch_size=BATCH,
        num_minibatches_per_task=4,
        shuffle=f"buffer:{4 * BATCH}",
        evaluation_steps=steps,
        workers=str(workers),
        seed=seed,
        job_name=name,
        job_dir=folder,
        output=folder / "model",
        overwrite=True,
    )
    tested = shoal.evaluate(
        **model,
        validation_data=DATA / "test.parquet",
        restore_from=folder / "model",
        batch_size=BATCH,
        job_name=f"{name}-test",
        job_dir=folder / "test",
        overwrite=True,
    )
    best = max(each["metrics"]["auc"] for each in trained.evaluations)
    return {"validation": best, "test": tested.metrics["auc"], "seconds": trained.training_seconds}


def main() -> int:
    """Run, print, write; returns the exit code."""
    if not (DATA / "train.parquet").exists():
        prepare.prepare(DATA)
    runs = []
    for seed in SEEDS:
        for workers in WORKERS:
            runs.append({"seed": seed, "workers": workers, **run(seed, workers)})
            print(runs[-1], flush=True)
    table = Table("workers", *map(str, SEEDS), "mean", title="AUC of the test data")
    means = {}
    for workers in WORKERS:
        found = [each["test"] for each in runs if each["workers"] == workers]
        means[workers] = statistics.fmean(found)
        table.add_row(str(workers), *(f"{auc:.4f}" for auc in found), f"{means[workers]:.4f}")
    Console().print(table)
    print(f"published: {PUBLISHED}")
    report = {"runs": runs, "mean": means, "published": PUBLISHED, "least": LEAST}
    (BUILD / "bench" / "movielens_1m.json").write_text(json.dumps(report, indent=2) + "\n")
    return int(min(means.values()) < LEAST)


if __name__ == "__main__":
    sys.exit(main())
