"""The metrics of a process for Prometheus: the page, what is on it in every process, its address.

What each role has to tell is in ps/metrics.py, master/figures/metrics.py and worker/metrics.py. All
of it is made when somebody asks for the page, of facts that the process counts anyway; but for the
calls that it handles (calls.py), which are counted only where the page is served.

Users find the metrics for their models here, too: model_metrics.py. They need TensorFlow, which
servers and master never import, so they are loaded when one is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Calibration", "GroupAUC", "LogLoss", "Slices"]


def __getattr__(name: str) -> Any:
    """Load a metric at its first use (PEP 562)."""
    if name in __all__:
        return getattr(importlib.import_module("shoal.model_metrics"), name)
    raise AttributeError(f"module 'shoal.metrics' has no attribute {name!r}")
