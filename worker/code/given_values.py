"""Values that users may give in place of a function: Keras names and objects, lists and dicts.

A module's names and the arguments of Python take the same. Owns the functions that these become.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import UserError

_ACCURACIES = {
    "binary_crossentropy": "BinaryAccuracy",
    "categorical_crossentropy": "CategoricalAccuracy",
    "sparse_categorical_crossentropy": "SparseCategoricalAccuracy",
}
"""The class of keras.metrics that "accuracy" means, by the loss."""

_VALUES: dict[str, tuple[tuple[type, ...], str]] = {
    "loss": ((str, Mapping, list, tuple), ""),
    "optimizer": ((str, Mapping), "optimizers.Optimizer"),
    "eval_metrics_fn": ((str, Mapping, list, tuple), "metrics.Metric"),
    "callbacks": ((list, tuple), "callbacks.Callback"),
}
"""Of which types a value may be that is given under the name of a function; the last one Keras's."""

NAMES = tuple(_VALUES)
"""The functions in whose place there may be values."""


def allowed(name: str) -> tuple[type, ...]:
    """The types of values that may be given in place of a function; none for most functions."""
    plain, of_keras = _VALUES.get(name, ((), ""))
    keras = sys.modules.get("keras")  # who gives one of its objects has imported it
    if keras is None or not of_keras:
        return plain
    room, kind = of_keras.split(".")
    return (*plain, getattr(getattr(keras, room), kind))


def functions_of(
    loss: Any = None, optimizer: Any = None, eval_metrics_fn: Any = None, callbacks: Any = None
) -> dict[str, Any]:
    """The functions that values of `NAMES` become; what is a function or a loss stays as it is."""
    metrics = eval_metrics_fn
    if isinstance(optimizer, allowed("optimizer")):
        optimizer = _constant(_optimizer(optimizer))
    if isinstance(metrics, allowed("eval_metrics_fn")):
        metrics = functools.partial(metrics_by_name, metrics, loss)
    if isinstance(callbacks, allowed("callbacks")):
        callbacks = _constant(list(callbacks) if isinstance(callbacks, tuple) else callbacks)
    return dict(zip(NAMES, (loss, optimizer, metrics, callbacks), strict=True))


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _optimizer(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _optimizer(each) for name, each in given.items()}
    if not isinstance(given, str):
        return given
    import keras

    try:
        return keras.optimizers.get(given)
    except ValueError as error:
        raise UserError(f"optimizer: Keras has no optimizer {given!r}") from error


def metrics_by_name(metrics: Any, loss: Any) -> Any:
    """Metrics by name, as eval_metrics_fn() gives them.

    metrics: as Keras's compile() takes them. loss: that "accuracy" is about. Raises UserError
    where it is none of Keras's by name.
    """
    if not isinstance(metrics, Mapping | list | tuple | None):
        metrics = [metrics]
    if isinstance(metrics, Mapping):
        of = loss if isinstance(loss, Mapping) else {}
        return {
            name: metrics_by_name(each, of.get(name, loss))
            if isinstance(each, Mapping | list)
            else _metric(each, of.get(name, loss))
            for name, each in metrics.items()
        }
    found = [(_name(each), _metric(each, loss)) for each in metrics or ()]
    return dict(found)


def _name(metric: Any) -> str:
    if isinstance(metric, str):
        return metric.lower()
    return str(getattr(metric, "name", getattr(metric, "__name__", type(metric).__name__)))


def _metric(metric: Any, loss: Any) -> Any:
    """A metric by its name in Keras; any other as it is."""
    if not isinstance(metric, str):
        return metric
    import keras

    if metric.lower() not in ("accuracy", "acc"):
        return keras.metrics.get(metric)
    of = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    if of not in _ACCURACIES:
        raise UserError(
            f"metrics: {metric!r} depends on a loss of Keras by name; give the metric itself, such "
            "as keras.metrics.BinaryAccuracy()"
        )
    return getattr(keras.metrics, _ACCURACIES[of])()
