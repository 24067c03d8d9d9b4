"""The records that all peers train, in the form that each of them reads fastest.

Synthetic clicks of model_zoo/criteo: 26 columns of ids by a power law, 13 of numbers, labels of a
planted logistic model. train.parquet and validation.parquet are what shoal reads; the arrays
train-ids.npy and so on, whose pages are mapped, are for the peers that take tensors; the lines of
text below train-text/ are for Paddle's datasets, which read nothing else. The arrays and lines have
the numbers' logarithms already, which shoal takes itself at each step.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing
from shoal.model_zoo.criteo import prepare as clicks

PARTS = ("train", "validation")


def prepared(folder: Path, ids: int, records: int, held: int) -> dict[str, float]:
    """Write all forms below `folder` unless they are there; returns what `clicks.prepared` does."""
    described = clicks.prepared(folder, ids, records, held)
    (folder / "sizes.json").write_text(json.dumps(clicks.field_sizes(ids).tolist()))
    for part in PARTS:
        source = folder / f"{part}.parquet"
        written = folder / f"{part}-labels.npy"
        if not written.exists() or written.stat().st_mtime < source.stat().st_mtime:
            _arrays(source, folder, part)
    return described


def _arrays(source: Path, folder: Path, part: str) -> None:
    table = pq.read_table(source)
    ids = np.stack([table[f"c{i + 1}"].to_numpy() for i in range(26)], axis=1)
    dense = np.stack([table[f"i{i + 1}"].to_numpy() for i in range(13)], axis=1)
    arrays = {
        "ids": np.ascontiguousarray(ids),
        "dense": np.ascontiguousarray(np.log1p(dense).astype(np.float32)),
        "labels": table["label"].to_numpy().astype(np.float32),
    }
    # The labels come last, so that they tell that all are there.
    for name, array in arrays.items():
        with replacing(folder / f"{part}-{name}.npy") as path, path.open("wb") as file:
            np.save(file, array)


def text(folder: Path, batch: int, warm: int) -> Path:
    """Write the training records for Paddle, unless they are there; returns their folder.

    first.txt has one minibatch, warm.txt the rest of the first `warm`, and 0.txt and 1.txt all
    other whole minibatches, half each: `26 id ... 13 number ... 1 label` a line.
    """
    made = folder / f"train-text-{batch}-{warm}"
    if (made / "done").exists():
        return made
    made.mkdir(exist_ok=True)
    ids, dense, labels = (
        np.load(folder / f"train-{name}.npy", mmap_mode="r") for name in ("ids", "dense", "labels")
    )
    whole = len(labels) // batch
    middle = warm + (whole - warm) // 2
    for name, first, last in (
        ("first", 0, 1),
        ("warm", 1, warm),
        ("0", warm, middle),
        ("1", middle, whole),
    ):
        with (made / f"{name}.txt").open("w") as file:
            for i in range(first * batch, last * batch):
                numbers = " ".join(f"{each:.6g}" for each in dense[i])
                file.write(f"26 {' '.join(map(str, ids[i]))} 13 {numbers} 1 {labels[i]:.0f}\n")
    (made / "done").touch()
    return made
