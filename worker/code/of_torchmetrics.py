"""Metrics of torchmetrics, told without importing it: it is no package of shoal's own.

An object is of a class of torchmetrics only if that is loaded.
"""

from __future__ import annotations

import sys
from typing import Any


def is_of_torchmetrics(each: Any, kind: str = "Metric") -> bool:
    """True if an object is of a class of torchmetrics. kind: the class."""
    library = sys.modules.get("torchmetrics")
    return library is not None and isinstance(each, getattr(library, kind))


def is_collection(each: Any) -> bool:
    """True for a torchmetrics.MetricCollection."""
    return is_of_torchmetrics(each, "MetricCollection")
