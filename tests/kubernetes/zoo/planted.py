"""The small model of tests/jobs, whose data comes as slowly as held.py has it."""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

from held import custom_data_reader
from small import custom_model, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_data_reader", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]
