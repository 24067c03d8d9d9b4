"""Synthetic click records in the shape of Criteo's, with a planted logistic model.

    python -m shoal.model_zoo.criteo.prepare FOLDER [--ids N] [--records N]

SYNTHETIC: nothing here was ever clicked. A record has 13 dense columns (i1..i13,
log-normal float32), 26 categorical ones (c1..c26, int64) and a label. Each field has a
share of the `ids` in geometric steps, as Criteo's fields differ by orders of magnitude;
within a field ids follow a power law, and popular ones lie anywhere in its range. Fields
do not share ids: all columns together number the rows of one table, 0 to ids - 1, so that
the same files serve systems that need a vocabulary.

The label is drawn from a logistic model with a weight per id and per dense column. So the
best AUC that any model can reach is known: that of the true probabilities.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import replacing, write_text

DENSE, CATEGORICAL = 13, 26
BATCH = 4096
EXPONENT = 1.1
"""Of the power law: rank r of a field is drawn with weight about r to the minus this."""

PART = 16 * BATCH
"""Records drawn at once, and in one row group of the file."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def field_sizes(ids: int) -> Ints:
    """The number of ids of each field: geometric steps from some to a quarter of all."""
    shares = np.geomspace(1e-5, 1.0, CATEGORICAL)
    sizes: Ints = np.maximum(4, (ids * shares / shares.sum()).astype(np.int64))
    sizes[-1] += ids - sizes.sum()
    return sizes


def _mixed(numbers: Ints) -> npt.NDArray[np.uint64]:
    """A hash of each number (the finalizer of splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _weights(ids: Ints) -> Floats:
    """The planted weight of each id: about normal, a pure function of the id."""
    mixed = _mixed(ids)
    # The sum of four uniform 16-bit numbers, centred and scaled to variance 1.
    parts = sum(((mixed >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(float) for i in range(4))
    weights: Floats = 0.35 * (parts / 65536 - 2.0) * np.sqrt(3.0)
    return weights


def draw_ids(rng: np.random.Generator, count: int, sizes: Ints) -> Ints:
    """The categorical columns of `count` records: [n, 26]. sizes: as `field_sizes` gives them."""
    # The inverse of the power law's distribution function, taken as continuous.
    power = 1.0 - EXPONENT
    ranks = (rng.random((count, CATEGORICAL)) * ((sizes + 1.0) ** power - 1) + 1) ** (1 / power)
    ranks = np.minimum(ranks.astype(np.int64) - 1, sizes - 1)
    # A bijection of each field's range as the multiplier is prime and larger than it.
    ids: Ints = ranks * 2_147_483_647 % sizes + np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return ids


def draw(
    rng: np.random.Generator, count: int, sizes: Ints
) -> tuple[npt.NDArray[np.float32], Ints, npt.NDArray[np.float32], Floats]:
    """`count` records: dense [n, 13], ids [n, 26], labels [n], true probabilities [n]."""
    dense = rng.lognormal(0.0, 1.0, (count, DENSE)).astype(np.float32)
    ids = draw_ids(rng, count, sizes)
    slopes = np.linspace(-0.3, 0.3, DENSE)
    logits = _weights(ids).sum(axis=1) + np.log1p(dense) @ slopes - 1.2
    probabilities = 1 / (1 + np.exp(-logits))
    labels = (rng.random(count) < probabilities).astype(np.float32)
    return dense, ids, labels, probabilities


def area_under_curve(labels: npt.NDArray[np.float32], scores: Floats) -> float:
    """The exact AUC of `scores`."""
    order = np.argsort(scores)
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    positive = labels > 0
    count = int(positive.sum())
    total = ranks[positive].sum() - count * (count + 1) / 2
    return float(total / (count * (len(order) - count)))


def write(path: Path, records: int, ids: int, seed: int) -> float:
    """Write a Parquet file of records; returns the AUC of the true probabilities."""
    rng = np.random.default_rng(seed)
    sizes = field_sizes(ids)
    kept_labels, kept = [], []
    writer: pq.ParquetWriter | None = None
    for first in range(0, records, PART):
        count = min(PART, records - first)
        dense, categorical, labels, probabilities = draw(rng, count, sizes)
        kept_labels.append(labels)
        kept.append(probabilities)
        columns = {"label": labels}
        columns |= {f"i{i + 1}": np.ascontiguousarray(dense[:, i]) for i in range(DENSE)}
        columns |= {
            f"c{i + 1}": np.ascontiguousarray(categorical[:, i]) for i in range(CATEGORICAL)
        }
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=PART)
    assert writer is not None
    writer.close()
    return area_under_curve(np.concatenate(kept_labels), np.concatenate(kept))


def prepared(folder: Path, ids: int, records: int, validation: int = 200_000) -> dict[str, float]:
    """Write train.parquet and validation.parquet below `folder` unless they are there.

    Returns what made them, and `best_auc`, the best AUC on the validation records.
    """
    wanted = {"ids": ids, "records": records, "validation": validation, "exponent": EXPONENT}
    described = folder / "stream.json"
    if described.exists():
        found = json.loads(described.read_text())
        if {key: found.get(key) for key in wanted} == wanted:
            return dict(found)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "validation.parquet") as path:
        best = write(path, validation, ids, seed=2)
    with replacing(folder / "train.parquet") as path:
        write(path, records, ids, seed=1)
    found = wanted | {"best_auc": best}
    write_text(described, json.dumps(found) + "\n")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ids", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    print(json.dumps(prepared(options.folder, options.ids, options.records)))


if __name__ == "__main__":
    main()
