"""The zoo's DLRM in PyTorch, whose processes note at their end what of frameworks they imported.

$SHOAL_TEST_IMPORTED: a folder for these notes, a file for each process. Gates: "step-K" in a
process's K-th step.
"""

import atexit
import os
import sys
from pathlib import Path

import gates

from shoal.model_zoo.criteo import dlrm_torch
from shoal.model_zoo.criteo.dlrm_torch import DLRM, eval_metrics_fn, feed_batch, optimizer

__all__ = ["DLRM", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]

FRAMEWORKS = ("keras", "tensorflow", "jax", "torch")


def loss(labels, predictions):
    gates.pass_step()
    return dlrm_torch.loss(predictions, labels)


def note():
    found = [name for name in FRAMEWORKS if name in sys.modules]
    Path(os.environ["SHOAL_TEST_IMPORTED"], str(os.getpid())).write_text(" ".join(found))


if "SHOAL_TEST_IMPORTED" in os.environ:
    atexit.register(note)
