"""A small network on images of 32 x 32 x 3 as a module of PyTorch, and its peers without shoal.

    python benchmarks/synchronous/model.py WORLD BATCH UNITS

trains it with PyTorch alone, or with DistributedDataParallel over gloo in WORLD processes, each
time for as many seconds as a line of standard input says, and then writes what was measured.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed

SIDE, CHANNELS, CLASSES = 32, 3, 10
FILTERS = (16, 32, 64)
RATE, MOMENTUM = 0.05, 0.9
RECORDS = 8192
WARM_STEPS = 20
SECONDS_BETWEEN = 0.5
"""Seconds between two looks of all processes at the clock, about."""


def data(seed: int) -> dict[str, np.ndarray]:
    """Columns of RECORDS records: pixels uint8 [n, 3072], a pattern a class with noise; label."""
    patterns = np.random.default_rng(99).integers(0, 256, (CLASSES, SIDE * SIDE * CHANNELS))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, RECORDS)
    noise = rng.integers(0, 256, (RECORDS, SIDE * SIDE * CHANNELS))
    return {"pixels": ((patterns[labels] + 3 * noise) // 4).astype(np.uint8), "label": labels}


class Images(torch.nn.Module):
    def __init__(self, units: int) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        for before, filters in itertools.pairwise((CHANNELS, *FILTERS)):
            layers += [torch.nn.Conv2d(before, filters, 3, padding=1)]
            layers += [torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        hidden = torch.nn.Linear(FILTERS[-1] * (SIDE // 8) ** 2, units)
        top = torch.nn.Linear(units, CLASSES)
        self.layers = torch.nn.Sequential(*layers, torch.nn.Flatten(), hidden, torch.nn.ReLU(), top)

    def forward(self, features):
        return self.layers(features["image"].permute(0, 3, 1, 2))


def custom_model(units=96):
    return Images(units)


def feed_batch(columns, mode, metadata):
    del metadata
    shape = -1, SIDE, SIDE, CHANNELS
    features = {"image": columns["pixels"].reshape(shape).astype(np.float32) / 255}
    return features if mode == "prediction" else (features, columns["label"])


loss = torch.nn.CrossEntropyLoss()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def batches(size: int, seed: int) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
    """Minibatches without an end, each made when it is asked for, as shoal's are."""
    columns = data(seed)
    for at in itertools.cycle(range(0, RECORDS - size + 1, size)):
        some = {name: column[at : at + size] for name, column in columns.items()}
        features, labels = feed_batch(some, "training", None)
        yield {"image": torch.from_numpy(features["image"])}, torch.from_numpy(labels)


def train(rank: int, world: int, size: int, units: int, port: int) -> None:
    """Train in one process of `world`; rank 0 reads what is asked, and answers."""
    # More threads than free cores make a step take many times as long, also of one process alone.
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    torch.manual_seed(0)
    module: torch.nn.Module = Images(units)
    if world > 1:
        module = torch.nn.parallel.DistributedDataParallel(module)
    chosen = optimizer(module.parameters())
    source = batches(size, rank)

    def run(steps: int) -> None:
        for features, labels in itertools.islice(source, steps):
            chosen.zero_grad()
            loss(module(features), labels).backward()
            chosen.step()

    run(WARM_STEPS)
    began = time.perf_counter()
    run(WARM_STEPS)
    took = torch.tensor([(time.perf_counter() - began) / WARM_STEPS])
    torch.distributed.broadcast(took, 0)
    between = max(1, round(SECONDS_BETWEEN / float(took)))
    if rank == 0:
        print("ready", flush=True)
    while True:
        asked = torch.zeros(1)
        if rank == 0:
            asked[0] = float(sys.stdin.readline() or 0)
        torch.distributed.broadcast(asked, 0)
        if not asked[0]:
            return
        began, spent, steps = time.perf_counter(), time.process_time(), 0
        left = torch.ones(1)
        while left[0] > 0:
            run(between)
            steps += between
            left[0] = asked[0] - (time.perf_counter() - began)
            torch.distributed.broadcast(left, 0)
        seconds = time.perf_counter() - began
        cpu = torch.tensor([time.process_time() - spent], dtype=torch.float64)
        torch.distributed.all_reduce(cpu)
        if rank == 0:
            answer = {"samples": steps * size * world, "seconds": seconds, "updates": steps}
            print(json.dumps(answer | {"cpu_seconds": float(cpu)}), flush=True)


def main() -> None:
    world, size, units = map(int, sys.argv[1:])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=train, args=(rank, world, size, units, port), daemon=True)
        for rank in range(1, world)
    ]
    for each in others:
        each.start()
    train(0, world, size, units, port)
    for each in others:
        each.join()


if __name__ == "__main__":
    main()
