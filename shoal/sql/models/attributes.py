"""The models that statements may name, and what WITH may say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.base.words import near_or_all
from shoal.sql.errors import SqlError
from shoal.sql.terms import Place

OPTIMIZERS = {
    "Adam": 0.003,
    "AdamW": 0.003,
    "Adagrad": 0.05,
    "Ftrl": 0.1,
    "RMSprop": 0.001,
    "SGD": 0.01,
}
"""Optimizers by Keras's names, and the learning rate where none is given."""


@dataclass(frozen=True)
class Attribute:
    """A value of WITH. kind: "size", "sizes", "fraction", "rate", "optimizer" or "text".

    default: where it is not given; None stands for what the plan says.
    """

    kind: str
    default: Any
    meaning: str


KINDS = {
    "size": "a positive whole number",
    "sizes": "a list of positive whole numbers",
    "fraction": "a number from 0 to below 1",
    "rate": "a positive number",
    "optimizer": f"one of {', '.join(OPTIMIZERS)}",
    "text": "a text",
}

_METRICS = {"validation.metrics": Attribute("text", "", "names of metrics, with commas")}
_CLASSES = {"model.n_classes": Attribute("size", None, "how many classes the label has")}
_DEEP = {
    "model.hidden_units": Attribute("sizes", (64, 32), "units of the dense layers"),
    "model.dropout": Attribute("fraction", 0.0, "share of units that is left out in training"),
}


def _optimizer(default: str, prefix: str = "") -> dict[str, Attribute]:
    return {
        f"{prefix}optimizer": Attribute("optimizer", default, "the optimizer by Keras's name"),
        f"{prefix}optimizer.learning_rate": Attribute("rate", None, "its learning rate"),
    }


_COMBINED = _DEEP | _optimizer("Ftrl", "linear_") | _optimizer("Adagrad", "dnn_") | _METRICS
_FM = {"model.dim": Attribute("size", None, "length of the vectors of bare columns")}
_CROSS = {"model.cross_layers": Attribute("size", 2, "how many cross layers there are")}

MODELS: dict[str, dict[str, Attribute]] = {
    "DNNClassifier": _DEEP | _CLASSES | _optimizer("Adam") | _METRICS,
    "DNNRegressor": _DEEP | _optimizer("Adam") | _METRICS,
    "LinearClassifier": _CLASSES | _optimizer("Ftrl") | _METRICS,
    "LinearRegressor": _optimizer("Ftrl") | _METRICS,
    "DNNLinearCombinedClassifier": _COMBINED | _CLASSES,
    "DNNLinearCombinedRegressor": _COMBINED,
    "DeepFM": _DEEP | _FM | _optimizer("Adam") | _METRICS,
    "DCN": _DEEP | _CROSS | _CLASSES | _optimizer("Adam") | _METRICS,
}
"""Attributes of each model by name."""

OTHER_NAMES = {
    "model.dnn_hidden_units": "model.hidden_units",
    "model.dnn_dropout": "model.dropout",
    "model.optimizer": "optimizer",
    "model.dnn_optimizer": "dnn_optimizer",
    "model.linear_optimizer": "linear_optimizer",
    "model.learning_rate": "optimizer.learning_rate",
}
"""Names that statements for TensorFlow's estimators have."""


def model_of(name: str, place: Place | None = None) -> str:
    """A model's name as MODELS has it; upper and lower case are one. Raises SqlError."""
    for known in MODELS:
        if known.lower() == name.lower():
            return known
    raise SqlError(f"there is no model {name}{near_or_all(name, list(MODELS))}", place)


def checked(
    model: str, given: Mapping[str, Any], places: Mapping[str, Place] | None = None
) -> dict[str, Any]:
    """All attributes of a model: those given, and the defaults of the others.

    places: of the given ones, for errors. Raises SqlError.
    """
    known = MODELS[model]
    found = {name: each.default for name, each in known.items()}
    for written, value in given.items():
        name = OTHER_NAMES.get(written, written)
        place = (places or {}).get(written)
        if name not in known:
            raise SqlError(
                f"{model} has no attribute {written}{near_or_all(written, list(known))}", place
            )
        kind = known[name].kind
        found[name] = _value(kind, value)
        if found[name] is None:
            raise SqlError(f"{written} must be {KINDS[kind]}, not {value!r}", place)
    for name, value in found.items():
        if name.endswith("learning_rate") and value is None:
            found[name] = OPTIMIZERS[found[name.rpartition(".")[0]]]
    return found


def _value(kind: str, value: Any) -> Any:
    """A value as a kind has it; None if it is of another."""
    match kind:
        case "text":
            return value if isinstance(value, str) else None
        case "optimizer":
            plain = str(value).lower().removesuffix("optimizer")
            return next((each for each in OPTIMIZERS if each.lower() == plain), None)
        case "sizes":
            sizes = tuple(value) if isinstance(value, list | tuple) else (value,)
            return sizes if sizes and all(_value("size", each) for each in sizes) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if kind == "size":
        return value if isinstance(value, int) and value > 0 else None
    return float(value) if (value > 0 if kind == "rate" else 0 <= value < 1) else None
