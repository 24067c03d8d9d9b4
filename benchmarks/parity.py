"""Does shoal train as well as Keras alone? `make bench-parity`.

Trains the DeepFM of the model zoo on the same split, with the same batch size,
optimizer and number of epochs, once in this process by plain Keras (tables of
contiguous ids in keras.layers.Embedding) and once by `shoal train` with 2 servers and
2 workers, for three seeds. Prints a table of the validation AUCs and writes
build/bench/parity.json. Exits with 1 if the means differ by more than the tolerance.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import shoal
from shoal.client.report import metrics_text
from shoal.data import ListColumn, open_reader, read_columns
from shoal.model_zoo.movielens import deepfm, prepare

# A new model per seed is traced anew on purpose; TensorFlow would warn of it.
tf.get_logger().setLevel("ERROR")

SEEDS = (0, 1, 2)
EPOCHS = 3
BATCH = 256
TOLERANCE = 0.005
"""Largest difference of the AUCs that counts as none; from issue 2."""

BUILD = Path("build")
DATA = BUILD / "movielens"

Arrays = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


def through_feed(path: Path) -> Arrays:
    """(ids, labels) of all records, made by the model's own feed."""
    reader = open_reader(str(path), "parity")
    ids, labels = [], []
    for source in reader.sources():
        for columns in read_columns(reader, source.name, 0, source.records):
            tensors = {
                name: tf.RaggedTensor.from_row_lengths(column.values, column.row_lengths)
                if isinstance(column, ListColumn)
                else tf.constant(column)
                for name, column in columns.items()
            }
            records = tf.data.Dataset.from_tensor_slices(tensors)
            fed = deepfm.feed(records, "training", reader.metadata)
            for features, label in fed.batch(8192):
                ids.append(features["ids"].numpy())
                labels.append(label.numpy())
    return np.concatenate(ids), np.concatenate(labels)


def contiguous(ids: npt.NDArray[np.int64], known: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Places of the ids in `known`, from 1; 0 for others, -1 kept."""
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(ids < 0, -1, np.where(known[place] == ids, place + 1, 0))


def plain_keras(train: Arrays, validation: Arrays, seed: int) -> dict[str, float]:
    """Train in this process; returns the AUC and the seconds."""
    known = np.unique(train[0][train[0] >= 0])

    class Embedding(keras.layers.Embedding):
        """A table of the known ids and one row for all others."""

        def __init__(self, output_dim: int, **kwargs: Any) -> None:
            super().__init__(len(known) + 1, output_dim, **kwargs)

        def call(self, ids: Any) -> Any:
            return super().call(keras.ops.maximum(ids, 0))  # -1 is masked by the model

    keras.utils.set_random_seed(seed)
    model = deepfm.deepfm(Embedding)
    model.compile(deepfm.optimizer(), deepfm.loss)
    began = time.perf_counter()
    model.fit(
        {"ids": contiguous(train[0], known)},
        train[1],
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=True,
        verbose=0,
    )
    seconds = time.perf_counter() - began
    predictions = model.predict(
        {"ids": contiguous(validation[0], known)}, batch_size=4096, verbose=0
    )
    (auc,) = deepfm.eval_metrics_fn().values()
    auc.update_state(validation[1], predictions)
    return {"auc": float(auc.result()), "seconds": seconds}


def with_shoal(seed: int) -> dict[str, float]:
    """Train with shoal; returns the AUC and the seconds of training."""
    result = shoal.train(
        model_def="deepfm.custom_model",
        model_zoo=Path(deepfm.__file__).parent,
        training_data=DATA / "train.parquet",
        validation_data=DATA / "validation.parquet",
        num_epochs=EPOCHS,
        minibatch_size=BATCH,
        num_ps=2,
        num_workers=2,
        seed=seed,
        job_name=f"parity-{seed}",
        job_dir=BUILD / "bench" / f"parity-{seed}",
        overwrite=True,
    )
    auc = result.metrics["auc"]
    if auc is None:
        raise SystemExit("Error: shoal's AUC is NaN")
    return {"auc": auc, "seconds": result.training_seconds}


def main() -> int:
    """Run, print, write; returns the exit code."""
    prepare.prepare(DATA)
    train = through_feed(DATA / "train.parquet")
    validation = through_feed(DATA / "validation.parquet")
    runs = []
    for seed in SEEDS:
        run = {"seed": seed, "keras": plain_keras(train, validation, seed)}
        print(f"seed {seed}, plain Keras: {metrics_text(run['keras'])}", flush=True)
        run["shoal"] = with_shoal(seed)
        runs.append(run)
    means = {
        side: statistics.fmean(run[side]["auc"] for run in runs) for side in ("keras", "shoal")
    }
    difference = means["shoal"] - means["keras"]

    table = Table("seed", "plain Keras", "shoal", "difference", title="Validation AUC, DeepFM")
    for run in runs:
        pair = (run["keras"]["auc"], run["shoal"]["auc"])
        table.add_row(
            str(run["seed"]), *(f"{auc:.4f}" for auc in pair), f"{pair[1] - pair[0]:+.4f}"
        )
    table.add_row("mean", f"{means['keras']:.4f}", f"{means['shoal']:.4f}", f"{difference:+.4f}")
    Console().print(table)

    within = abs(difference) <= TOLERANCE
    report = {
        "model": "deepfm",
        "epochs": EPOCHS,
        "batch": BATCH,
        "runs": runs,
        "mean_auc": means,
        "difference": difference,
        "tolerance": TOLERANCE,
        "within_tolerance": within,
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "cores": os.cpu_count(),
    }
    path = BUILD / "bench" / "parity.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"{'within' if within else 'OUTSIDE'} the tolerance of {TOLERANCE}; written to {path}")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
