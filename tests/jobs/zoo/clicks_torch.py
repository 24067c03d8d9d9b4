"""The zoo's DLRM in PyTorch, whose processes note at their end what of frameworks they imported.

$SHOAL_TEST_IMPORTED: a folder for these notes, a file for each process.
"""

import atexit
import os
import sys
from pathlib import Path

from shoal.model_zoo.criteo.dlrm_torch import DLRM, eval_metrics_fn, feed_batch, loss, optimizer

__all__ = ["DLRM", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]

FRAMEWORKS = ("keras", "tensorflow", "jax", "torch")


def note():
    found = [name for name in FRAMEWORKS if name in sys.modules]
    Path(os.environ["SHOAL_TEST_IMPORTED"], str(os.getpid())).write_text(" ".join(found))


if "SHOAL_TEST_IMPORTED" in os.environ:
    atexit.register(note)
