"""shoal: elastic training of recommendation models with huge embedding tables.

Importing it costs nothing: each name is loaded when it is first used, so that
`shoal.layers`, `shoal.optimizers` and `shoal.preprocessing` alone import Keras, and
`shoal.torch` PyTorch.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal import callbacks, deltas, layers, metrics, optimizers, preprocessing, torch
    from shoal.api import evaluate, predict, train
    from shoal.api.checks import check
    from shoal.api.found import attach, compare, jobs, resume
    from shoal.api.importance import importance
    from shoal.api.jobs import Job
    from shoal.deltas.following import follow
    from shoal.errors import Error, StorageError, UserCodeError, UserError
    from shoal.result import JobFailedError, JobResult

__all__ = [
    "Error",
    "Job",
    "JobFailedError",
    "JobResult",
    "StorageError",
    "UserCodeError",
    "UserError",
    "attach",
    "callbacks",
    "check",
    "compare",
    "deltas",
    "evaluate",
    "follow",
    "importance",
    "jobs",
    "layers",
    "metrics",
    "optimizers",
    "predict",
    "preprocessing",
    "resume",
    "torch",
    "train",
]

_MODULES = {"callbacks", "deltas", "layers", "metrics", "optimizers", "preprocessing", "torch"}

_HOMES = {
    "Error": "shoal.errors",
    "Job": "shoal.api.jobs",
    "JobFailedError": "shoal.result",
    "JobResult": "shoal.result",
    "StorageError": "shoal.errors",
    "UserCodeError": "shoal.errors",
    "UserError": "shoal.errors",
    "attach": "shoal.api.found",
    "check": "shoal.api.checks",
    "compare": "shoal.api.found",
    "evaluate": "shoal.api",
    "follow": "shoal.deltas.following",
    "importance": "shoal.api.importance",
    "jobs": "shoal.api.found",
    "predict": "shoal.api",
    "resume": "shoal.api.found",
    "train": "shoal.api",
}

if importlib.util.find_spec("shoal.native") is None:
    # Python looks in the working directory first, and a clone's folder shoal/ is no whole package.
    raise ImportError(
        f"{Path(__file__).parent} is a part of shoal's source code, and hides the shoal that is "
        "installed: work in a folder outside of the clone (or build shoal there: make demo)"
    )


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"shoal.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
