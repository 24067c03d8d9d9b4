"""The peers that the row store is compared with: the machine's limit, and other systems.

Each peer holds a table of `rows` x `dim` float32, and gives a function per operation
that takes a batch of ids and runs the whole of what a user of that system would run,
by its documentation. Ids are row numbers below `rows`. A peer that is not installed
says so.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RATE = 0.01
Call = Callable[..., Any]


class FlatLimit:
    """The same row traffic in C on flat arrays with prefetch: no hash, no locks."""

    name = "flat limit"
    rows_a_line = 0
    """Rows that share a line of an index beside the rows; 0: no index."""

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        source = Path(__file__).with_name("flat.c")
        library = Path("build/bench/flat.so")
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=off"]
        command += ["-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        self._c = ctypes.CDLL(str(library.absolute()))
        self._c.flat_alloc.restype = ctypes.c_void_p
        self._c.flat_alloc.argtypes = [ctypes.c_size_t]
        self._memory = self._c.flat_alloc(3 * rows * dim)
        assert self._memory
        self._lines = rows // self.rows_a_line if self.rows_a_line else 0
        self._index = self._c.flat_alloc(16 * self._lines) if self._lines else None
        self._dim = dim
        self._out = np.empty((ids, dim), np.float32)
        self._gradients = np.random.default_rng(1).normal(size=(ids, dim)).astype(np.float32)

    def operations(self) -> dict[str, Call]:
        def common(ids: np.ndarray, slots: int) -> tuple[Any, ...]:
            stride = ctypes.c_size_t((1 + slots) * self._dim)
            n = ctypes.c_int64(ids.size)
            index = ctypes.c_void_p(self._index), ctypes.c_uint64(self._lines)
            return stride, ctypes.c_void_p(ids.ctypes.data), n, ctypes.c_int(self._dim), *index

        rows = ctypes.c_void_p(self._memory)
        gradients = ctypes.c_void_p(self._gradients.ctypes.data)
        rate = ctypes.c_float(RATE)

        def lookup(ids: np.ndarray, out: np.ndarray = self._out) -> None:
            self._c.flat_lookup(rows, *common(ids, 0), ctypes.c_void_p(out.ctypes.data))

        # As many slots as the store beside it has: a lookup in a table with slots
        # skips over them.
        return {
            "lookup": lookup,
            "sgd": lambda ids: self._c.flat_sgd(rows, *common(ids, 0), gradients, rate),
            "adagrad": lambda ids: self._c.flat_adagrad(rows, *common(ids, 1), gradients, rate),
            "adam": lambda ids: self._c.flat_adam(rows, *common(ids, 2), gradients, rate),
        }

    def many(self, operation: str) -> Callable[[list[np.ndarray]], None]:
        """A function that runs batch after batch, as one of several threads."""
        call = self.operations()[operation]

        def run(batches: list[np.ndarray]) -> None:
            # A buffer each: written by both, its lines would go to and fro between them.
            mine = {"out": np.zeros_like(self._out)} if operation == "lookup" else {}
            for ids in batches:
                call(ids, **mine)

        return run


class FlatIndexed(FlatLimit):
    """The flat limit and a random line of an index a row: a hash that costs no computing.

    What the row store reaches of this is what it does with its own work; the rest of what
    it lacks to the flat limit is the memory that any hash table touches.
    """

    name = "flat + index line"
    rows_a_line = 2  # of the four entries in a line of the store, 1.6 to 3.2 are taken


class NumPy:
    """Fancy indexing on arrays, ids unique."""

    name = "numpy"

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        self._values = np.zeros((rows, dim), np.float32)
        self._accumulator = np.full((rows, dim), 0.1, np.float32)
        self._gradients = np.random.default_rng(1).normal(size=(ids, dim)).astype(np.float32)

    def operations(self) -> dict[str, Call]:
        def adagrad(ids: np.ndarray) -> None:
            g = self._gradients[: ids.size]
            total = self._accumulator[ids] + g * g
            self._accumulator[ids] = total
            self._values[ids] -= RATE * g / np.sqrt(total + 1e-7)

        def sgd(ids: np.ndarray) -> None:
            self._values[ids] -= RATE * self._gradients[: ids.size]

        return {"lookup": lambda ids: self._values[ids], "sgd": sgd, "adagrad": adagrad}


class TensorFlow:
    """tf.gather and the resource kernels on a Variable; no hash, so the easier job."""

    name = "tensorflow"

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._tf = tf
        self._values = tf.Variable(tf.zeros((rows, dim)))
        self._slots = [tf.Variable(tf.fill((rows, dim), 0.1)) for _ in range(2)]
        draw = np.random.default_rng(1).normal(size=(ids, dim)).astype(np.float32)
        self._gradients = tf.constant(draw)

    def operations(self) -> dict[str, Call]:
        tf = self._tf
        raw = tf.raw_ops

        @tf.function
        def gather(ids: Any) -> Any:
            return tf.gather(self._values, ids)

        @tf.function
        def adagrad(ids: Any) -> None:
            raw.ResourceSparseApplyAdagradV2(
                var=self._values.handle,
                accum=self._slots[0].handle,
                lr=RATE,
                epsilon=1e-7,
                grad=self._gradients,
                indices=ids,
            )

        @tf.function
        def sgd(ids: Any) -> None:
            raw.ResourceScatterSub(
                resource=self._values.handle, indices=ids, updates=RATE * self._gradients
            )

        @tf.function
        def adam(ids: Any) -> None:
            # TensorFlow has no sparse Adam kernel; this is what its lazy Adam runs.
            m = 0.9 * tf.gather(self._slots[0], ids) + 0.1 * self._gradients
            v = 0.999 * tf.gather(self._slots[1], ids) + 0.001 * self._gradients**2
            raw.ResourceScatterUpdate(resource=self._slots[0].handle, indices=ids, updates=m)
            raw.ResourceScatterUpdate(resource=self._slots[1].handle, indices=ids, updates=v)
            change = RATE * m / (tf.sqrt(v) + 1e-7)
            raw.ResourceScatterSub(resource=self._values.handle, indices=ids, updates=change)

        return {
            name: (lambda ids, run=run: run(tf.constant(ids)))
            for name, run in (
                ("lookup", gather),
                ("sgd", sgd),
                ("adagrad", adagrad),
                ("adam", adam),
            )
        }


class TensorFlowHash:
    """tf.lookup.experimental.DenseHashTable from id to row: the hash TensorFlow has."""

    name = "tf DenseHashTable"

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        import tensorflow as tf

        del ids  # no buffer of a batch's size is needed
        self._tf = tf
        # Half full, as its documentation has it; its rehash is outside the measurement.
        self._table = tf.lookup.experimental.DenseHashTable(
            tf.int64,
            tf.float32,
            default_value=tf.zeros(dim),
            empty_key=-1,
            deleted_key=-2,
            initial_num_buckets=1 << (2 * rows - 1).bit_length(),
        )
        for first in range(0, rows, 1 << 18):
            some = tf.range(first, min(first + (1 << 18), rows), dtype=tf.int64)
            self._table.insert(some, tf.zeros((tf.size(some), dim)))

    def operations(self) -> dict[str, Call]:
        tf = self._tf
        look = tf.function(lambda ids: self._table.lookup(ids))
        return {"lookup": lambda ids: look(tf.constant(ids))}


class Torch:
    """torch.nn.Embedding(sparse=True) with torch.optim; coalescing is part of a step."""

    name = "torch"

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._weights = torch.nn.Parameter(torch.zeros((rows, dim)))
        self._gradients = torch.randn((ids, dim))

    def operations(self) -> dict[str, Call]:
        torch = self._torch

        def step(optimizer: Any) -> Call:
            def run(ids: np.ndarray) -> None:
                self._weights.grad = torch.sparse_coo_tensor(
                    torch.from_numpy(ids)[None, :],
                    self._gradients[: ids.size],
                    self._weights.shape,
                    check_invariants=False,
                )
                optimizer.step()

            return run

        def lookup(ids: np.ndarray) -> Any:
            with torch.no_grad():
                return torch.nn.functional.embedding(torch.from_numpy(ids), self._weights)

        return {
            "lookup": lookup,
            "sgd": step(torch.optim.SGD([self._weights], RATE)),
            "adagrad": step(torch.optim.Adagrad([self._weights], RATE)),
            "adam": step(torch.optim.SparseAdam([self._weights], RATE)),
        }


class Fbgemm:
    """FBGEMM's table-batched embeddings on the CPU: forward, and backward with update."""

    name = "fbgemm"

    def __init__(self, rows: int, dim: int, ids: int) -> None:
        import torch
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        torch.set_num_threads(1)
        self._torch = torch
        self._gradients = torch.randn((ids, dim))
        self._offsets = torch.arange(ids + 1)
        self._tables = {
            name: SplitTableBatchedEmbeddingBagsCodegen(
                [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
                optimizer=kind,
                learning_rate=RATE,
                pooling_mode=PoolingMode.SUM,
                device=torch.device("cpu"),
            )
            for name, kind in (
                ("sgd", EmbOptimType.EXACT_SGD),
                ("adagrad", EmbOptimType.EXACT_ADAGRAD),
                ("rowwise_adagrad", EmbOptimType.EXACT_ROWWISE_ADAGRAD),
            )
        }

    def operations(self) -> dict[str, Call]:
        torch = self._torch

        def update(table: Any) -> Call:
            def run(ids: np.ndarray) -> Callable[[], None]:
                # The forward pass belongs to the lookup: only the backward is measured.
                out = table(torch.from_numpy(ids), self._offsets[: ids.size + 1])
                return lambda: out.backward(self._gradients[: ids.size])

            run.prepares = True  # type: ignore[attr-defined]
            return run

        def lookup(ids: np.ndarray) -> Any:
            with torch.no_grad():
                return self._tables["sgd"](torch.from_numpy(ids), self._offsets[: ids.size + 1])

        return {"lookup": lookup} | {name: update(table) for name, table in self._tables.items()}


PEERS = (FlatLimit, FlatIndexed, TensorFlow, TensorFlowHash, Torch, Fbgemm, NumPy)
