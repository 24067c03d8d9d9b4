"""Modules of PyTorch, served by stores in this process."""

import dataclasses
import textwrap

import numpy as np
import pytest

from shoal.config.job import JobConfig
from shoal.native.dense import DenseBlock
from shoal.native.optimizers import OptimizerSpec
from shoal.worker import engines
from shoal.worker.input.spec import ArraySpec
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.local import LocalServers

torch = pytest.importorskip("torch")

CONFIG = JobConfig(
    model_def="model.Net", training_data="unused", seed=5, engine="torch", output="", export="none"
)

SPEC = {
    "ids": ArraySpec((None, 3), np.dtype(np.int64)),
    "x": ArraySpec((None, 2), np.dtype(np.float32)),
}

LABELS = ArraySpec((None,), np.dtype(np.float32))

NET = """
import torch, shoal.torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = shoal.torch.Embedding(4)
        self.wide = shoal.torch.Embedding(1)
        self.hidden = torch.nn.Linear(14, 5, bias=False)
        self.norm = torch.nn.BatchNorm1d(5)
        self.last = torch.nn.Linear(5, 1)

    def forward(self, features):
        ids = features["ids"]
        parts = [self.deep(ids).flatten(1), self.deep(ids[:, :0].sum(1, keepdim=True)).flatten(1)]
        hidden = torch.tanh(self.norm(self.hidden(torch.cat([parts[0], features["x"]], 1))))
        return (self.last(hidden) + self.wide(ids).sum(1))[:, 0] + parts[1].sum(1)

def feed_batch(columns, mode, metadata):
    return columns

loss = torch.nn.BCEWithLogitsLoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


class TrainingServers(LocalServers):
    """A server without sockets that applies pushes: stores of rows, and a dense block."""

    def register(self, spec, trainable, state):
        super().register(spec, trainable, state)
        rule = OptimizerSpec.from_json(spec.dense_optimizer)
        self._block = DenseBlock(trainable, rule) if trainable.size else None

    def push(self, push):
        self.version += 1
        rates = push.table_rates or [push.learning_rate] * len(self._tables)
        for table, (ids, gradient) in push.tables.items():
            self._tables[table].update(ids, gradient, learning_rate=rates[table], step=self.version)
        dense, change = push.dense
        if self._block is not None:
            self._block.update(dense, learning_rate=push.learning_rate, step=self.version)
        trainable = self._dense[0] if self._block is None else self._block.values.copy()
        self._dense = (trainable, self._dense[1] + change)

    def pull(self, calls, *, training):
        pulled = super().pull(calls, training=training)
        return dataclasses.replace(pulled, versions=[self.version])


@pytest.fixture(autouse=True)
def by_torch(monkeypatch):
    """Have the engine of this process be PyTorch's, for the test."""
    monkeypatch.setattr(engines, "_chosen", "torch")
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    torch.set_num_threads(1)


@pytest.fixture
def served(write_module):
    """A model of a module's text, with its first rows, and the servers that train it."""

    def make(text=NET, function="Net", spec=SPEC, labels=LABELS, weights=None, **options):
        from shoal.worker.code.module import load_module
        from shoal.worker.model.model import ServedModel

        module = load_module(write_module(textwrap.dedent(text)), f"model.{function}")
        servers = TrainingServers()
        config = dataclasses.replace(CONFIG, **options)
        progress = Progress()
        model = ServedModel(
            config, module, servers, spec, labels, 0, progress, weights_spec=weights
        )
        model.register()
        for position, pieces in model.given_rows():
            for ids, rows in pieces:
                servers.assign_rows(position, ids, rows)
        return model

    return make
