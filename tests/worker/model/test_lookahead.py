"""Evaluation and prediction read and pull ahead of what they compute (F27)."""

import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attributed
from shoal.worker.input.channel import READ_AHEAD
from shoal.worker.model.lookahead import pulled_ahead
from shoal.worker.reports.progress import Progress

PATIENCE = 120


class Model:
    """Pulls the features themselves; notes which, and fails at one of them."""

    def __init__(self, fails=-1):
        self.fails = fails
        self.pulled = []
        self.changed = threading.Condition()

    def pull_inputs(self, features):
        with self.changed:
            self.pulled.append(features)
            self.changed.notify_all()
        if features == self.fails:
            raise ValueError(f"no rows for {features}")
        return -features

    def reached(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: len(self.pulled) >= count, PATIENCE)


def numbered(count, read=None):
    for number in range(count):
        if read is not None:
            read.append(number)
        records = pb.Range(source="t", start=number, end=number + 1)
        yield SimpleNamespace(features=number, records=records)


def test_the_next_batches_are_pulled_while_one_is_computed_and_all_come_in_their_order():
    model, found = Model(), []
    with closing(pulled_ahead(numbered(20), model, Progress())) as batches:
        for number, (batch, inputs) in enumerate(batches):
            # As if it was being computed: what follows comes without being asked for.
            assert model.reached(min(number + 1 + READ_AHEAD, 20))
            assert len(model.pulled) <= number + 2 + READ_AHEAD
            found.append((batch.features, inputs))
    assert found == [(number, -number) for number in range(20)]


def test_what_a_pull_raises_is_raised_in_its_place_with_its_records():
    found = []

    def take_all():
        with closing(pulled_ahead(numbered(20), Model(fails=3), Progress())) as batches:
            for batch, _ in batches:
                found.append(batch.features)

    with pytest.raises(ValueError, match="no rows for 3") as raised:
        take_all()
    assert found == [0, 1, 2]
    records = attributed(raised.value)
    assert (records.start, records.end) == (3, 4)


def test_who_leaves_ends_the_threads():
    before, read = set(threading.enumerate()), []
    with closing(pulled_ahead(numbered(1000, read), Model(), Progress())) as batches:
        next(batches)
    assert set(threading.enumerate()) <= before  # one of another test may end meanwhile
    assert len(read) < 20
