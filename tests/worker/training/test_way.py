"""A gradient goes through the worker as docs/architecture.md says."""

import dataclasses
import threading
from collections import defaultdict

import pytest

from shoal.worker.reports.progress import Progress
from tests.docs.walks import ROOT, beside, tables, traced
from tests.worker.given import train
from tests.worker.networks import CONFIG, as_batch, batches

# tox tests the wheel, beside which there are no pages.
pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests"
)

BESIDE_A_STEP = [
    "native/arrays.py",
    "native/averaging.py",
    "proto/values/routing.py",
    "worker/attribution.py",
    "worker/code/module.py",
    "worker/input/channel.py",
    "worker/input/event_times.py",
    "worker/model/built.py",
    "worker/model/learning/optimizer.py",
    "worker/model/learning/optimizers.py",
    "worker/reports/progress.py",
    "worker/reports/watch.py",
    "worker/training/depth.py",
]
"""Modules that a step enters, and that a reader of the gradient's way may pass by."""

BESIDE_A_PUSH = [
    "native/arrays.py",
    "proto/faults.py",
    "worker/input/channel.py",
    "worker/reports/progress.py",
    "worker/reports/watch.py",
    "worker/servers/in_flight.py",
    "worker/training/depth.py",
    "worker/training/pipeline.py",
]


def keep_two_connections(model):
    """One for pulls and one for pushes: who finds none makes one, in Python."""
    for circuit in model.servers._calls._circuits:
        pool = circuit._connection._pools[-1]
        for made in [pool.connected(), pool.connected()]:
            pool.give_back(made)


def test_a_gradient_goes_its_way_as_the_page_says(served):
    computed, pushed, _ = tables("The way of a gradient")
    calls = defaultdict(list)
    model = served(config=dataclasses.replace(CONFIG, accumulate=2), servers=1)
    train(model, 1, Progress(), [as_batch(*each) for each in batches(2)])
    keep_two_connections(model)
    with traced(calls):
        train(model, 1, Progress(), [as_batch(*each) for each in batches(4)])
    assert beside(calls[threading.current_thread().name], computed) == BESIDE_A_STEP
    assert beside(calls["push"], pushed) == BESIDE_A_PUSH
