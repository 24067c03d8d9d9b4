"""One model of the zoo trained by plain Keras: `python -m benchmarks.learning.alone ...`.

MODULE FOLDER SEED EPOCHS BATCH. Prints the validation metric and samples/s as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pyarrow.parquet as pq
import tensorflow as tf

ZOO = Path(__file__).with_name("zoo")


def dataset(module: Any, path: Path, batch: int, seed: int | None) -> Any:
    """Batches of the records of a file; seed: of another order in each epoch."""
    table = pq.read_table(path).to_pydict()
    columns = {name: np.asarray(values) for name, values in table.items()}
    columns = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in columns.items()}
    records = tf.data.Dataset.from_tensor_slices(columns)
    if seed is not None:
        records = records.shuffle(len(records), seed=seed)
    return records.batch(batch).map(lambda fed: module.feed_batch(fed, "training", None))


def main() -> None:
    """Train, evaluate, print."""
    name, folder, seed, epochs, batch = sys.argv[1:]
    sys.path.insert(0, str(ZOO))
    module = importlib.import_module(name)
    keras.utils.set_random_seed(int(seed))
    model = module.custom_model()
    metrics = module.eval_metrics_fn()
    # Keras takes no names for the metrics of an output.
    by_output = {k: [*v.values()] if isinstance(v, dict) else v for k, v in metrics.items()}
    given = by_output if isinstance(module.loss, dict) else [*metrics.values()]
    model.compile(module.optimizer(), module.loss, metrics=given)
    training = dataset(module, Path(folder, "train.parquet"), int(batch), int(seed))
    began = time.perf_counter()
    model.fit(training, epochs=int(epochs), verbose=0)
    seconds = time.perf_counter() - began
    validation = dataset(module, Path(folder, "validation.parquet"), 1024, None)
    found = model.evaluate(validation, verbose=0, return_dict=True)
    (metric,) = (value for key, value in found.items() if key.split("_")[-1] in ("auc", "accuracy"))
    records = pq.read_metadata(Path(folder, "train.parquet")).num_rows * int(epochs)
    print(json.dumps({"metric": metric, "samples_per_second": records / seconds}))


if __name__ == "__main__":
    main()
