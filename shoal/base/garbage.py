"""Imports without Python's search for cycles, which finds nothing while modules are made.

docs/notes/master.md has the measurement.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import modules that stay until the process ends.

    Importing TensorFlow makes a million objects. The collector looks at them again and again
    meanwhile, and later whenever it looks at all objects; from here on it leaves them out.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
