"""As counting.py of the folder above, as a module of PyTorch."""

import gates
import numpy as np
import torch

import shoal.torch


def wait(ids, kind):
    if kind == "record":
        gates.pass_step()
    for number in np.asarray(ids).ravel():
        gates.pass_gate(f"{kind}-{number}")


def feed_batch(columns, mode, metadata):
    if mode == "prediction":
        wait(columns["id"], "predict")
        return {"id": columns["id"]}
    return {"id": columns["id"]}, columns["id"]


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.counts = shoal.torch.Embedding(1, init=torch.nn.init.zeros_)
        self.total = torch.nn.Parameter(torch.zeros(2))

    def forward(self, features):
        return self.counts(features["id"]) + self.total.sum()


def custom_model():
    return Counting()


def loss(labels, predictions):
    wait(labels, "record")
    return -predictions.sum()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


class Sum(shoal.torch.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.total = self.add_state()

    def result(self):
        return float(self.total.value)


class Seen(Sum):
    """How many records were evaluated."""

    def update_state(self, labels, predictions):
        wait(labels, "evaluate")
        self.total.value += len(labels)


class Ids(Sum):
    """The sum of their ids: no other set of the same size with none twice has it."""

    def update_state(self, labels, predictions):
        self.total.value += int(labels.sum())


def eval_metrics_fn():
    return {"seen": Seen(), "ids": Ids()}
