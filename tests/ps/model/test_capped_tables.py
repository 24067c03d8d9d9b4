"""Several tables with caps, whose sweeps are made one at a time."""

import json

import numpy as np
import pytest

from shoal.ps.model.gradients import Gradients
from shoal.ps.model.tables import ServerModel
from tests.ps.model.test_lifecycle import spec

pytestmark = pytest.mark.slow


def model_of(caps):
    """A server's model with a table of each cap."""
    made = spec(max_rows=caps[0])
    for number, most in enumerate(caps[1:], 1):
        made.tables.add().CopyFrom(made.tables[0])
        made.tables[-1].name, made.tables[-1].max_rows = f"items {number}", most
    model = ServerModel(made, 0, 1, 16384)
    model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
    return model


def grown(number, rates):
    """The push of that number, with so many new ids of each table."""
    ids = [np.arange(number * rate, (number + 1) * rate) for rate in rates]
    rows = {at: (each, np.ones((each.size, 1), np.float32)) for at, each in enumerate(ids)}
    return Gradients(rows, None, 1.0, 0, 0.0)


def push(model, gradients):
    """Push; returns the ticket, and the parts of sweeps that were logged behind it."""
    logged = []
    ticket = model.ticket(gradients)
    model.apply(gradients, ticket)
    model.leave(lambda step, frame: logged.append((step, bytes(frame))))
    return ticket, logged


@pytest.mark.parametrize(
    ("caps", "rates", "most"),
    [
        ([32_000] * 2, [30, 30], 8),
        ([32_000] * 2, [30, 25], 8),
        ([32_000] * 2, [25, 30], 8),
        ([32_000] * 3, [30, 28, 25], 16),
        ([64_000, 4_000], [30, 5], 21),
    ],
    ids=str,
)
def test_tables_that_grow_together_have_their_sweeps_before_their_caps(
    in_slices, caps, rates, most
):
    """No push has all of the others' left: a sweep is paced by the room of those that wait."""
    model = model_of(caps)
    for number in range(3_000):
        before = in_slices.copy()
        push(model, grown(number, rates))
        done = in_slices - before
        assert max(done.values(), default=0) <= most
        assert all(len(table) <= cap for table, cap in zip(model.tables, caps, strict=True))
    for cap, removed in zip(caps, model.lifecycle.removed, strict=True):
        assert removed.evicted > cap // 10


@pytest.mark.parametrize("caps", [[8_000, 8_000], [8_000, 900], [900, 8_000]], ids=str)
@pytest.mark.parametrize("logged", [False, True], ids=["from its state", "by its log"])
@pytest.mark.usefixtures("in_slices")
def test_a_server_that_is_restored_anywhere_makes_the_same_parts_at_the_same_places(caps, logged):
    draw = np.random.default_rng(caps[0])
    model, rates = model_of(caps), [20, 12]
    restored, until = copied(model, caps), 0
    for number in range(1_000):
        if draw.random() < 0.03:
            # It does the log of so many pushes again.
            restored, until = copied(model, caps), number + logged * draw.integers(100)
        gradients = grown(number, rates)
        ticket, parts = push(model, gradients)
        if number < until:
            restored.apply(gradients, ticket, again=True)
            for step, frame in parts:
                restored.sweep_again(step, frame)
        else:
            assert push(restored, gradients)[1] == parts
            assert restored.step == model.step
        ours, theirs = (each.lifecycle.state()["caps"] for each in (model, restored))
        assert ours == theirs
    for cap, removed in zip(caps, model.lifecycle.removed, strict=True):
        assert removed.evicted > cap // 10


def copied(model, caps):
    """A server that goes on from the rows and the state of another one."""
    made = model_of(caps)
    for ours, theirs in zip(made.tables, model.tables, strict=True):
        for ids, values, slots, steps, uses in theirs.export():
            ours.assign(ids, values, versions=steps, use_counts=uses, slots=slots)
    made.moments.reach(model.step)
    made.lifecycle.restore(json.loads(json.dumps(model.lifecycle.state())), model.step)
    return made
