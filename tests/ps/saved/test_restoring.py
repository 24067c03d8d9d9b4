"""Restoring by several threads: all of them work, the first error counts, memory is bounded."""

import threading

import numpy as np
import pytest

from shoal.checkpoints.threads import for_each
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model import tables
from shoal.ps.model.tables import ServerModel

PATIENCE = 60.0


def test_items_are_worked_on_side_by_side_and_each_once():
    together = threading.Barrier(3)
    lock, done = threading.Lock(), []

    def work(item):
        together.wait(PATIENCE)  # breaks unless three are there at once
        with lock:
            done.append(item)

    for_each(work, range(9), threads=3)
    assert sorted(done) == [*range(9)]


def test_the_first_of_the_items_that_fail_is_told_whichever_thread_is_faster():
    later = threading.Event()
    begun = []

    def work(item):
        begun.append(item)
        if item == 1:
            assert later.wait(PATIENCE)
        if item == 2:
            later.set()
        if item in (1, 2):
            raise ValueError(str(item))

    with pytest.raises(ValueError, match="1"):
        for_each(work, range(100), threads=2)
    assert 99 not in begun


def test_as_few_wide_rows_are_read_at_once_as_fit_into_a_message(monkeypatch):
    monkeypatch.setattr(tables, "PIECE_BYTES", 1 << 20)
    optimizer = OptimizerSpec("sgd").to_json()
    zeros = InitializerSpec("zeros").to_json()
    dim, count = 512, 12_000
    table = pb.TableSpec(name="wide", dim=dim, optimizer=optimizer, initializer=zeros)
    model = ServerModel(pb.ModelSpec(tables=[table], dense_optimizer=optimizer), 0, 1, 16384)
    model.tables[0].insert(np.arange(count, dtype=np.int64))
    pieces = list(model.read_table(0))
    assert max(rows.nbytes for _, rows in pieces) < 2 * tables.PIECE_BYTES
    assert sorted(np.concatenate([ids for ids, _ in pieces])) == [*range(count)]
