"""Objects of Keras, told without importing Keras: a worker of a PyTorch module has none.

An object is of a class of Keras only if Keras is loaded.
"""

from __future__ import annotations

import operator
import sys
from typing import Any


def is_of_keras(each: Any, kind: str) -> bool:
    """True if an object is of a class of Keras. kind: the class, such as "metrics.Metric"."""
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(each, operator.attrgetter(kind)(keras))


def is_keras_own(each: Any) -> bool:
    """True if a function, or the class of an object, is Keras's own and not the user's."""
    return (getattr(each, "__module__", None) or "").startswith("keras.")
