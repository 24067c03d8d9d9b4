"""The engines: what computes with the user's model, each behind the same Protocol.

    engine.py    the Protocol, which all the rest of the worker knows
    tensorflow/  the engine of TensorFlow, the only module that imports it

A process has one engine, as Keras has one backend. It is imported when it is first asked for, so
that importing the rest of the worker imports no framework.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.worker.engines.engine import Engine

_PACKAGE = "shoal.worker.engines.tensorflow"


def import_framework() -> None:
    """Import the framework of the engine, and nothing else. Raises ImportError."""
    importlib.import_module(_PACKAGE)


@functools.cache
def chosen_engine() -> Engine:
    """The engine of this process."""
    made: Engine = importlib.import_module(f"{_PACKAGE}.engine").ENGINE
    return made
