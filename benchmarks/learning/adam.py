"""Compare Adam for rows on servers with Keras's Adam: `python -m benchmarks.learning.adam`.

Keras's Adam lets the moments of all rows decay at each update, squares each occurrence of an id by
itself, and `fit` shuffles. Each variant below changes one of these, in plain Keras; then come
shoal's jobs, with the tables on the servers and in the worker. MMoE on an eighth of the users of
MovieLens-1M, 592 updates. Prints the AUC of five seeds, as Markdown.
"""

from __future__ import annotations

import functools
import importlib
import os
import statistics
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

import shoal
from benchmarks.learning.alone import ZOO, dataset
from shoal.model_zoo.movielens_1m import prepare

WHOLE = Path("build/movielens-1m")
BENCH = Path("build/bench/learning")
DATA = BENCH / "data/movies"
SEEDS, EPOCHS, BATCH = range(5), 2, 256
SHUFFLED = {"shuffle": "buffer:80000", "num_minibatches_per_task": 320}
"""One task, which is shuffled whole."""


def once(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with the sum for an id that occurs several times."""
    ids, place = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, place, tf.size(ids))
    return tf.IndexedSlices(sums, ids, gradient.dense_shape)


class Summed(keras.optimizers.Adam):
    """Squares the sum of an id's gradients."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable."""
        if isinstance(gradient, tf.IndexedSlices):
            gradient = once(gradient)
        super().update_step(gradient, variable, learning_rate)


class Lazy(keras.optimizers.Adam):
    """Also leaves the moments and weights of absent rows as they are."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        rows = once(gradient)
        step = tf.cast(self.iterations + 1, tf.float32)
        rate = learning_rate * tf.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
        index = self._get_variable_index(variable)
        moments = []
        for kept, value, beta in (
            (self._momentums[index], rows.values, self.beta_1),
            (self._velocities[index], rows.values**2, self.beta_2),
        ):
            old = tf.gather(kept, rows.indices)
            moments.append(old + (value - old) * (1 - beta))
            kept.value.scatter_update(tf.IndexedSlices(moments[-1], rows.indices))
        change = rate * moments[0] / (tf.sqrt(moments[1]) + self.epsilon)
        variable.scatter_sub(tf.IndexedSlices(change, rows.indices))
        return None


@functools.cache
def movies() -> Any:
    """The module of the model."""
    sys.path.insert(0, str(ZOO))
    return importlib.import_module("movies")


def alone(optimizer: type[keras.optimizers.Adam], seed: int, *, shuffled: bool = True) -> float:
    """The AUC by plain Keras."""
    keras.utils.set_random_seed(seed)
    module, order = movies(), seed if shuffled else None
    model = module.custom_model()
    model.compile(optimizer(0.001), module.loss, metrics={"like": [module.parts.auc()]})
    model.fit(dataset(module, DATA / "train.parquet", BATCH, order), epochs=EPOCHS, verbose=0)
    validation = dataset(module, DATA / "validation.parquet", 1024, None)
    return auc_of(model.evaluate(validation, verbose=0, return_dict=True))


def job(seed: int, **flags: Any) -> float:
    """The AUC by a job of one worker."""
    result = shoal.train(
        model_def="movies.custom_model",
        model_zoo=ZOO,
        training_data=DATA / "train.parquet",
        validation_data=DATA / "validation.parquet",
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=seed,
        checkpoint_seconds=0.0,
        job_name="adam",
        job_dir=BENCH / "adam",
        overwrite=True,
        **flags,
    )
    return auc_of(result.metrics)


def auc_of(metrics: dict[str, Any]) -> float:
    """The AUC among other metrics."""
    return float(next(value for name, value in metrics.items() if name.endswith("auc")))


VARIANTS = {
    "plain Keras": lambda seed: alone(keras.optimizers.Adam, seed),
    "plain Keras, not shuffled": lambda seed: alone(keras.optimizers.Adam, seed, shuffled=False),
    "the gradients of an id are summed first": lambda seed: alone(Summed, seed),
    "and absent rows stay as they are": lambda seed: alone(Lazy, seed),
    "the same, not shuffled": lambda seed: alone(Lazy, seed, shuffled=False),
    "shoal, tables on servers": lambda seed: job(seed, embedding_threshold=1),
    "the same, shuffled": lambda seed: job(seed, embedding_threshold=1, **SHUFFLED),
    "shoal, tables in the worker": job,
    "the same tables, shuffled": lambda seed: job(seed, **SHUFFLED),
}


def main() -> None:
    """Write the data, run, print."""
    if not (WHOLE / "train.parquet").exists():
        prepare.prepare(WHOLE)
    DATA.mkdir(parents=True, exist_ok=True)
    for name in ("train.parquet", "validation.parquet"):
        table = pq.read_table(WHOLE / name).drop_columns(["genres"])
        pq.write_table(table.filter(pa.array(np.asarray(table["user"]) % 8 == 0)), DATA / name)
    lines = ["| Adam | AUC | spread |", "| --- | --- | --- |"]
    for name, run in VARIANTS.items():
        found = [run(seed) for seed in SEEDS]
        lines.append(f"| {name} | {statistics.mean(found):.4f} | {statistics.stdev(found):.4f} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
