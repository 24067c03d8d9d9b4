"""DeepFM on MovieLens-1M by RecBole's protocol: shoal, Keras's fit and PyTorch.

    python -m benchmarks head-to-head-movielens [--seeds N] [--systems shoal keras pytorch]

Data, network, sizes and epochs are those of benchmarks/movielens_1m.py: of 18 epochs, the one with
the best AUC on the validation data is tested. Keras trains the zoo's model with Embedding layers of
its own; PyTorch the same network with sparse embeddings and SparseAdam, and Adam for dense values.
Both have the records in memory and shuffle all of them each epoch. The systems take turns, seed by
seed. Prints a table and writes build/bench/head_to_head_movielens.json. Seconds are of training:
the peers' evaluations are left out, and shoal's are within.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import movielens_1m as protocol
from benchmarks.head_to_head.peers.common import area_under_curve
from shoal.model_zoo.movielens_1m import deepfm, prepare

# As for the stream's peers: threads that wait by spinning suffer from whatever else runs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

OUTPUT = Path("build/bench/head_to_head_movielens.json")
PARTS = ("train", "validation", "test")
PENALTY, UNITS, DROPOUT, RATE = 3e-4, (128, 128, 128), 0.2, 0.002
"""The defaults of the zoo's model, for PyTorch's."""

Part = tuple[Any, Any]
"""Rows [n, fields and places of genres] int64, -1 for an unused place; labels [n] float32."""


def parts() -> tuple[dict[str, Part], int]:
    """The data with the rows of one table for all fields, and the number of its rows."""
    raw = {part: pq.read_table(protocol.DATA / f"{part}.parquet") for part in PARTS}
    sizes = [
        1 + max(int(np.max(table[name].to_numpy())) for table in raw.values())
        for name in deepfm.FIELDS
    ]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    made = {}
    for part, table in raw.items():
        fields = [
            table[name].to_numpy() + start
            for name, start in zip(deepfm.FIELDS, starts[:-1], strict=True)
        ]
        genres = np.full((table.num_rows, deepfm.GENRES), -1, np.int64)
        for row, each in enumerate(table["genres"].to_pylist()):
            genres[row, : len(each)] = np.add(each, starts[-1])
        rows = np.concatenate([np.stack(fields, axis=1), genres], axis=1)
        made[part] = (rows, table["label"].to_numpy().astype(np.float32))
    return made, 1 + max(int(rows.max()) for rows, _ in made.values())


def best(
    data: dict[str, Part], epoch: Callable[[], None], scores: Callable[[Any], Any]
) -> dict[str, float]:
    """Train all epochs; the test AUC of the one with the best validation AUC."""
    found, seconds = [], 0.0
    for _ in range(protocol.EPOCHS):
        began = time.perf_counter()
        epoch()
        seconds += time.perf_counter() - began
        found.append([area_under_curve(data[part][1], scores(data[part][0])) for part in PARTS[1:]])
    validation, test = max(found)
    return {"validation": validation, "test": test, "seconds": seconds}


def by_shoal(seed: int) -> dict[str, float]:
    """A job with one worker and one server."""
    return protocol.run(seed, 1)


def by_keras(seed: int) -> dict[str, float]:
    """The zoo's model with Embedding layers of Keras."""
    import keras

    data, rows = parts()
    keras.utils.set_random_seed(seed)
    served = deepfm.Embedding
    # Row 0 is for unused places, which the model masks.
    deepfm.Embedding = lambda dim, **options: (
        lambda ids: keras.layers.Embedding(rows + 1, dim, **options)(ids + 1)
    )
    try:
        model = deepfm.custom_model()
    finally:
        deepfm.Embedding = served
    model.compile(keras.optimizers.Adam(RATE), deepfm.loss, jit_compile=False)
    ids, labels = data["train"]

    def epoch() -> None:
        model.fit({"ids": ids}, labels, batch_size=protocol.BATCH, verbose=0, shuffle=True)

    def scores(held: Any) -> Any:
        return model.predict({"ids": held}, batch_size=protocol.BATCH, verbose=0).ravel()

    return best(data, epoch, scores)


def by_pytorch(seed: int) -> dict[str, float]:
    """The same network as a module with sparse embeddings."""
    import torch
    from torch import nn

    data, rows = parts()
    torch.manual_seed(seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    single = len(deepfm.FIELDS)
    linear, factors = (nn.Embedding(rows + 1, dim, sparse=True) for dim in (1, deepfm.DIM))
    nn.init.zeros_(linear.weight)
    nn.init.normal_(factors.weight, std=0.01)
    hidden: list[Any] = []
    width = (single + 1) * deepfm.DIM
    for units in UNITS:
        hidden += [nn.Dropout(DROPOUT), nn.Linear(width, units), nn.ReLU()]
        width = units
    deep = nn.Sequential(*hidden, nn.Linear(width, 1))
    for layer in deep:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    sparse = torch.optim.SparseAdam([linear.weight, factors.weight], lr=RATE)
    dense = torch.optim.Adam(deep.parameters(), lr=RATE)
    measure = nn.BCEWithLogitsLoss()

    def fields(table: Any, ids: Any) -> Any:
        used = (ids >= 0).float()[:, :, None]
        vectors = table(ids + 1) * used
        count = used[:, single:].sum(dim=1, keepdim=True).clamp(min=1)
        mean = vectors[:, single:].sum(dim=1, keepdim=True) / count
        return torch.cat([vectors[:, :single], mean], dim=1)

    def forward(ids: Any) -> tuple[Any, Any]:
        vectors = fields(factors, ids)
        squares = (vectors * vectors).sum(dim=1)
        pairs = (vectors.sum(dim=1) ** 2 - squares).sum(dim=1) / 2
        logits = fields(linear, ids).sum(dim=(1, 2)) + pairs + deep(vectors.flatten(1))[:, 0]
        return logits, PENALTY * squares.sum(dim=1).mean()

    ids, labels = (torch.from_numpy(each) for each in data["train"])

    def epoch() -> None:
        deep.train()
        for chosen in torch.randperm(len(labels)).split(protocol.BATCH):
            logits, penalty = forward(ids[chosen])
            loss = measure(logits, labels[chosen]) + penalty
            for optimizer in (sparse, dense):
                optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for optimizer in (sparse, dense):
                optimizer.step()

    def scores(held: Any) -> Any:
        deep.eval()
        with torch.no_grad():
            found = [forward(each)[0] for each in torch.from_numpy(held).split(protocol.BATCH)]
        return torch.cat(found).numpy()

    return best(data, epoch, scores)


SYSTEMS = {"shoal": by_shoal, "keras": by_keras, "pytorch": by_pytorch}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    options = parser.parse_args()
    if not (protocol.DATA / "train.parquet").exists():
        prepare.prepare(protocol.DATA)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in options.systems}
    for seed in range(options.seeds):
        for name in options.systems:
            runs[name].append(SYSTEMS[name](seed))
            print(name, seed, runs[name][-1], flush=True)
    print("| system | AUC of the test data, mean | of each seed | s of training |")
    print("| --- | --- | --- | --- |")
    for name, found in runs.items():
        aucs = [each["test"] for each in found]
        seconds = statistics.median(each["seconds"] for each in found)
        each = ", ".join(f"{auc:.4f}" for auc in aucs)
        print(f"| {name} | {statistics.fmean(aucs):.4f} | {each} | {seconds:.0f} |")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
