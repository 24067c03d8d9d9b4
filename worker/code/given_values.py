"""Values that users may give in place of a function: Keras names and objects, lists and dicts.

A module's names and the arguments of Python take the same. Owns the functions that these become.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from shoal.base.modules.user_module import optimizer_by_name
from shoal.errors import UserError
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.code.of_torchmetrics import is_collection, is_of_torchmetrics
from shoal.worker.engines import engine_name

ACCURACIES = {
    "binary_crossentropy": "BinaryAccuracy",
    "categorical_crossentropy": "CategoricalAccuracy",
    "sparse_categorical_crossentropy": "SparseCategoricalAccuracy",
}
"""Keras's name of what "accuracy" means, by the loss."""

_VALUES: dict[str, tuple[tuple[type, ...], str | None]] = {
    "loss": ((str, Mapping, list, tuple), None),
    "optimizer": ((str, Mapping), "optimizers.Optimizer"),
    "eval_metrics_fn": ((str, Mapping, list, tuple), "metrics.Metric"),
    "callbacks": ((list, tuple), "callbacks.Callback"),
}
"""Of which types a value may be that is given under the name of a function, and of which class of
Keras."""

NAMES = tuple(_VALUES)


def is_value(name: str, given: Any) -> bool:
    """True for a value that may be given under the name of a function."""
    kinds, of_keras = _VALUES.get(name, ((), None))
    if name == "eval_metrics_fn" and (is_of_torchmetrics(given) or is_collection(given)):
        return True
    return isinstance(given, kinds) or (of_keras is not None and is_of_keras(given, of_keras))


def functions_of(
    loss: Any = None, optimizer: Any = None, eval_metrics_fn: Any = None, callbacks: Any = None
) -> dict[str, Any]:
    """The functions that values become; what is a function or a loss stays as it is."""
    metrics = eval_metrics_fn
    if is_value("optimizer", optimizer):
        optimizer = _constant(_optimizer(optimizer))
    if is_value("eval_metrics_fn", metrics):
        metrics = functools.partial(metrics_by_name, metrics, loss)
    if is_value("callbacks", callbacks):
        callbacks = _constant(list(callbacks) if isinstance(callbacks, tuple) else callbacks)
    return dict(zip(NAMES, (loss, optimizer, metrics, callbacks), strict=True))


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _optimizer(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: _optimizer(each) for name, each in given.items()}
    if not isinstance(given, str):
        return given
    if engine_name() == "torch":
        raise UserError(optimizer_by_name(given))
    import keras  # late: a PyTorch module names nothing of Keras's

    try:
        return keras.optimizers.get(given)
    except ValueError as error:
        raise UserError(f"optimizer: Keras has no optimizer {given!r}") from error


def metrics_by_name(metrics: Any, loss: Any) -> Any:
    """Metrics by name, as eval_metrics_fn() gives them.

    metrics: as Keras's compile() takes them, or torchmetrics'. loss: that "accuracy" is about.
    Raises UserError where it is none of Keras's by name.
    """
    if is_collection(metrics):
        metrics = dict(metrics.items())
    if (
        isinstance(metrics, str)
        or is_of_keras(metrics, "metrics.Metric")
        or is_of_torchmetrics(metrics)
    ):
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
    if engine_name() == "torch":
        raise UserError(
            f"metrics: {metric!r} is a name of Keras's: give an object for a torch.nn.Module, such "
            "as shoal.torch.metrics.AUC(), or a function of labels and predictions"
        )
    import keras  # late, as above

    if metric.lower() not in ("accuracy", "acc"):
        return keras.metrics.get(metric)
    of = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    if of not in ACCURACIES:
        raise UserError(
            f"metrics: {metric!r} depends on a loss of Keras by name; give the metric itself, such "
            "as keras.metrics.BinaryAccuracy()"
        )
    return getattr(keras.metrics, ACCURACIES[of])()
