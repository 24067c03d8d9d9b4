"""Models that end their worker: by an exception, and by a crash of the process."""

import faulthandler
import os
import sys

sys.path.insert(0, "/model_zoo/movielens")

from deepfm import feed, loss, optimizer

__all__ = ["feed", "loss", "optimizer"]


def raising_model():
    raise ValueError("the seventh hidden layer is missing")


def aborting_model():
    faulthandler.enable(all_threads=False)
    os.abort()
