"""The kernels compute the same bits by the instructions of every level of x86-64."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.native import gradients, ids
from shoal.native.dense import DenseBlock
from shoal.native.initializers import KINDS as INITIALIZERS
from shoal.native.optimizers import KINDS, OptimizerSpec
from shoal.native.rowstore import INSTRUCTION_SET, VALUE_DTYPES
from tests.native.strategies import store
from tests.processors import LEVELS, switches

OPTIMIZERS = {
    **{kind: OptimizerSpec(kind) for kind in KINDS},
    "nesterov": OptimizerSpec("momentum", {"nesterov": True}),
    "amsgrad": OptimizerSpec("adam", {"amsgrad": True, "clipnorm": 0.5}),
    "centered": OptimizerSpec("rmsprop", {"centered": True, "momentum": 0.5, "clipvalue": 0.3}),
    "regularized": OptimizerSpec(
        "ftrl",
        {"l1_regularization_strength": 0.02, "l2_shrinkage_regularization_strength": 0.01},
    ),
}
DIMS = (1, 7, 16, 100)
ROWS, STEPS = 500, 20


def numbers(*shape, seed=0):
    """From -1 to 1. Without logarithms, which depend on the processor."""
    return 2 * np.random.default_rng(seed).random(shape, np.float32) - 1


def digest(*arrays):
    return hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()[:16]


def trained(dim, optimizer, value_dtype):
    table = store(dim, optimizer, "normal", value_dtype=value_dtype)
    for step in range(1, STEPS + 1):
        keys = np.random.default_rng(step).permutation(ROWS)[: ROWS // 2]
        table.update(keys, numbers(len(keys), dim, seed=step), learning_rate=0.05, step=step)
    pieces = [(keys, values, *slots.values()) for keys, values, slots, _, _ in table.export()]
    columns = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    order = np.argsort(columns[0])
    return digest(*(each[order] for each in columns))


def dense(optimizer):
    block = DenseBlock(numbers(103), optimizer)
    for step in range(1, STEPS + 1):
        block.update(numbers(103, seed=step), learning_rate=0.05, step=step)
    return digest(block.values, *block.slots.values())


def results():
    """A digest of what each kernel computes here."""
    keys = np.random.default_rng(1).integers(-50, 50, 1000) * 0x9E37_79B9
    values, inverse = numbers(1000, 17), (keys % 31).astype(np.int32)
    found = {"level": INSTRUCTION_SET}
    for dim in DIMS:
        for kind in INITIALIZERS:
            found[f"{kind} {dim}"] = digest(store(dim, "sgd", kind).lookup(keys))
        for name, optimizer in OPTIMIZERS.items():
            for value_dtype in VALUE_DTYPES:
                found[f"{name} {dim} {value_dtype}"] = trained(dim, optimizer, value_dtype)
    found |= {f"dense {name}": dense(optimizer) for name, optimizer in OPTIMIZERS.items()}
    owners = np.arange(ids.SLOTS, dtype=np.uint16) % 3
    return found | {
        "bfloat16": digest(gradients.from_bfloat16(gradients.to_bfloat16(values))),
        "float16": digest(gradients.from_float16(gradients.to_float16(values))),
        "sums": digest(gradients.sum_by_inverse(values, inverse, 31)),
        "gathered": digest(gradients.gather_rows(values, inverse)),
        "norm": gradients.squared_norm(values),
        "mixed": digest(ids.mix64(keys), ids.slot_of(keys)),
        "unique": digest(*ids.unique(keys)),
        "by server": digest(*ids.unique_by_server(keys, owners, 3)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_every_kernel_gives_the_same_bits(level):
    program = "import json, tests.native.test_processors as t; print(json.dumps(t.results()))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | switches(level),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    here, there = results(), json.loads(done.stdout)
    assert there.pop("level") == {"x86-64-v2": 0, "x86-64-v3": 3}[level]
    assert here.pop("level") >= 3
    assert {name for name in here if there[name] != here[name]} == set()
