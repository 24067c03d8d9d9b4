"""A small module whose processes note what each step predicted, before the model trained on it.

$SHOAL_TEST_NOTES: a folder for the notes, a file of lines of JSON for each process: of each step
the time, and of its records number, label and prediction. The first process to come to its step
$SHOAL_TEST_KILLED kills itself there.
"""

import contextlib
import json
import os
import signal
import time
from pathlib import Path

import torch

import shoal.torch

NOTES = Path(os.environ.get("SHOAL_TEST_NOTES", "."))
STEPS = 0


def feed_batch(columns, mode, metadata):
    labels = torch.stack(
        [torch.as_tensor(columns[name]).float() for name in ("label", "record")], 1
    )
    return {"user": columns["user"], "item": columns["item"]}, labels.numpy()


class Noted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = (shoal.torch.Embedding(8) for _ in range(2))
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(16, 1)

    def forward(self, features):
        vectors = torch.cat([self.users(features["user"]), self.items(features["item"])], 1)
        return torch.sigmoid(self.last(self.dropout(vectors)))[:, 0]


def custom_model():
    return Noted()


def loss(labels, predictions):
    if predictions.requires_grad:
        note(labels, predictions.detach())
    return torch.nn.functional.binary_cross_entropy(predictions, labels[:, 0])


def note(labels, predictions):
    global STEPS
    columns = labels[:, 1].int(), labels[:, 0], predictions
    rows = list(zip(*(each.tolist() for each in columns), strict=True))
    with (NOTES / f"{os.getpid()}.notes").open("a") as file:
        file.write(json.dumps([time.time(), rows]) + "\n")
    STEPS += 1
    if int(os.environ.get("SHOAL_TEST_KILLED", 0)) == STEPS:
        with contextlib.suppress(FileExistsError):
            (NOTES / "killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


class AUC(shoal.torch.metrics.AUC):
    def update_state(self, labels, predictions, **more):
        super().update_state(labels[:, 0], predictions, **more)


def eval_metrics_fn():
    return {"auc": AUC()}
