"""A plan, the name of a model and its attributes to the text of a module that shoal trains.

The module is the user's from then on, so it is written to be read: constants first, then
feed_batch, custom_model and the rest. Its parts, and the attributes that WITH may give, are
those of models/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shoal.base.words import near_or_all
from shoal.sql.errors import SqlError
from shoal.sql.models.attributes import MODELS, Attribute, checked, model_of
from shoal.sql.models.feed import HELPERS, Feed, listed, literal
from shoal.sql.models.networks import Network
from shoal.sql.models.plan import Label, Plan
from shoal.sql.terms import Place

known_models = tuple(MODELS)
"""Names of the models."""

METRICS = {
    "binary": {
        "auc": "AUC",
        "accuracy": "BinaryAccuracy",
        "precision": "Precision",
        "recall": "Recall",
        "log_loss": "BinaryCrossentropy",
    },
    "classes": {
        "accuracy": "SparseCategoricalAccuracy",
        "top_5": "SparseTopKCategoricalAccuracy",
        "log_loss": "SparseCategoricalCrossentropy",
    },
    "number": {
        "rmse": "RootMeanSquaredError",
        "mae": "MeanAbsoluteError",
        "mse": "MeanSquaredError",
        "mape": "MeanAbsolutePercentageError",
    },
}
"""By what is predicted, the metrics by their names in reports: classes of keras.metrics."""

LOSSES = {
    "binary": "binary_crossentropy",
    "classes": "sparse_categorical_crossentropy",
    "number": "mean_squared_error",
}


def known_attributes(model: str) -> Mapping[str, Attribute]:
    """The attributes that WITH may give a model. Raises SqlError for an unknown one."""
    return MODELS[model_of(model)]


def text(
    plan: Plan,
    model: str = "",
    attributes: Mapping[str, Any] | None = None,
    places: Mapping[str, Place] | None = None,
) -> str:
    """The text of a module.

    model: one of `known_models`; that of the plan's label where empty. attributes: those of
    `known_attributes` that differ from their defaults. places: of the model, as "", and of the
    attributes by name, for errors. Raises SqlError.
    """
    model = model_of(model or plan.default_model, (places or {}).get(""))
    values = checked(model, attributes or {}, places)
    count = _classes(plan, model, values, places or {})
    kind = "number" if not count else "binary" if count == 2 else "classes"
    if model == "DeepFM" and kind == "classes":
        raise SqlError(
            f"DeepFM tells two classes apart, and {plan.label.column} has {count}: DCN and "
            "DNNClassifier take more",
            (places or {}).get(""),
        )
    metrics = _metrics(kind, values["validation.metrics"], (places or {}).get("validation.metrics"))
    feed = Feed(plan)
    label = _label(plan, feed, count)
    network = Network(model, feed, count if kind == "classes" else 1, values)
    lines = network.lines()
    parts = [
        "\n".join(
            [
                _head(plan, model, feed),
                _imports(feed, "Embedding(" in "".join(lines)),
                _constants(plan, feed, values, kind),
            ]
        ),
        *(HELPERS[name] for name in HELPERS if name in feed.helpers),
        _feed_batch(feed, label),
        _custom_model(feed, lines, kind),
        f"loss = {literal(LOSSES[kind])}\n",
        _optimizer(values, network.has_linear_tables),
        metrics,
    ]
    return "\n\n".join(part for part in parts if part)


def answers(plan: Plan, model: str, predictions: Any) -> pa.Array:
    """Predictions as the label has them: the most probable class of each record, or the number.

    predictions: of the module's model, [records] or [records, classes].
    """
    found = np.asarray(predictions)
    if not classifies(plan, model):
        return pa.array(found)
    places = np.argmax(found, axis=1) if found.ndim == 2 else (found >= 0.5).astype(np.int64)
    if not _indexed(plan.label):
        return pa.array(places)
    return pa.array(plan.label.classes).take(pa.array(places))


def numbers(plan: Plan, model: str, labels: Any) -> pa.Array:
    """Labels, a column of Arrow, as the numbers that the model learns: places of classes.

    A label that is no class is null.
    """
    if not classifies(plan, model) or not plan.label.classes:
        return labels
    classes = pa.array(plan.label.classes)
    return pc.index_in(pc.cast(labels, classes.type), classes)


def classifies(plan: Plan, model: str) -> bool:
    """True if a model predicts classes and no numbers."""
    name = model_of(model or plan.default_model)
    if name.endswith("Regressor"):
        return False
    return name.endswith("Classifier") or bool(plan.label.classes)


def _indexed(label: Label) -> bool:
    """True if the numbers of the classes are not the classes themselves."""
    return label.classes != tuple(range(len(label.classes))) or label.type == "boolean"


# ------------------------------------------------------------ label and metrics


def _classes(plan: Plan, model: str, values: Mapping[str, Any], places: Mapping[str, Place]) -> int:
    """The number of classes that the model tells apart; 0 for numbers. Raises SqlError."""
    label, given = plan.label, values.get("model.n_classes")
    if not classifies(plan, model):
        if label.type == "text":
            raise SqlError(
                f"{model} predicts numbers, and the label {label.column} is text: take "
                f"{model.removesuffix('Regressor')}Classifier",
                places.get(""),
            )
        return 0
    if not label.classes and (label.type != "integer" or not given):
        raise SqlError(
            f"{model} tells classes apart, and the label {label.column} has numbers: take "
            f"{model.removesuffix('Classifier')}Regressor, or give model.n_classes where "
            "the classes are 0, 1, ...",
            places.get(""),
        )
    least = max(2, len(label.classes))
    if given and (given < least or (given > least and _indexed(label))):
        raise SqlError(
            f"model.n_classes is {given}, and the label {label.column} has "
            f"{len(label.classes)} classes",
            places.get("model.n_classes"),
        )
    return given or len(label.classes)


def _label(plan: Plan, feed: Feed, count: int) -> str:
    """The expression of the labels."""
    label = plan.label
    value = f"columns[{literal(label.column)}]"
    if not count:
        return f"tf.cast({value}, tf.float32)"
    if label.type == "boolean":
        return f"tf.cast({value}, tf.int64)"
    if _indexed(label):
        feed.layer("IndexLookup(CLASSES)", "to_class")
        feed.helpers.add("class_of")
        return f"class_of({value})"
    feed.helpers.add("in_range")
    return f"in_range(tf.cast({value}, tf.int64), {count}, {literal(label.column)})"


def _metrics(kind: str, given: str, place: Place | None) -> str:
    known = METRICS[kind]
    by_class = {name.lower(): short for short, name in known.items()}
    names = [each.strip().lower() for each in given.split(",") if each.strip()]
    chosen = []
    for name in names or [*known][:2][: 1 if kind == "classes" else 2]:
        found = name if name in known else by_class.get(name)
        if found is None:
            raise SqlError(f"there is no metric {name}{near_or_all(name, [*known])}", place)
        chosen.append(f'"{found}": keras.metrics.{known[found]}()')
    return f"""\
def eval_metrics_fn():
    \"\"\"Over the whole validation data.\"\"\"
{listed("return {", dict.fromkeys(chosen), "}", 4)}
"""


# ------------------------------------------------------------ parts of the text


def _head(plan: Plan, model: str, feed: Feed) -> str:
    return f'''\
"""{model} that predicts {_shown(plan.label.column)}, as shoal sql has written it.

{_shown(plan.clause())}
"""

{"import re" + chr(10) * 2 if feed.helpers & {"before", "behind"} else ""}import keras
import tensorflow as tf
'''


def _shown(text: str) -> str:
    """A text as a docstring holds it."""
    plain = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in plain
    )


def _imports(feed: Feed, embedding: bool) -> str:
    names = sorted(
        {call.partition("(")[0] for call in feed.layers}
        | ({"Normalizer"} if feed.numbers else set())
    )
    lines = ["from shoal.layers import Embedding"] if embedding else []
    lines += [f"from shoal.preprocessing import {', '.join(names)}"] if names else []
    return "\n".join(lines) + "\n" if lines else ""


def _constants(plan: Plan, feed: Feed, values: Mapping[str, Any], kind: str) -> str:
    constants = {
        "model.hidden_units": "HIDDEN_UNITS",
        "model.dropout": "DROPOUT",
        "model.cross_layers": "CROSS_LAYERS",
        "optimizer.learning_rate": "LEARNING_RATE",
        "linear_optimizer.learning_rate": "LINEAR_LEARNING_RATE",
        "dnn_optimizer.learning_rate": "DNN_LEARNING_RATE",
    }
    lines = []
    if "class_of" in feed.helpers:
        lines += [listed("CLASSES = (", map(literal, plan.label.classes), ")")]
    if "crossed" in feed.helpers:
        lines += ['CROSSED = "\\x1f"  # between the parts of a cross: no text has it']
    if kind == "number":
        lines += [f"LABEL_MEAN, LABEL_STDDEV = {plan.label.mean!r}, {plan.label.stddev!r}"]
    lines += [f"{constants[n]} = {literal(v)}" for n, v in values.items() if v and n in constants]
    if feed.numbers:
        scales = (f"{literal(e.column)}: ({e.mean!r}, {e.stddev!r})" for e in feed.numbers)
        lines += ["", listed("SCALES = {", scales, "}")]
        lines += ['"""Mean and standard deviation of the columns of numbers."""']
    if masked := [each.column for each in feed.numbers if each.masked]:
        lines += ["", f"MASKED = {literal(tuple(masked))}"]
        lines += [
            '"""Columns of which the model is told where values were missing (--missing-mask)."""'
        ]
    layers = [f"{name} = {call}" for call, name in feed.layers.items()]
    if feed.numbers:
        layers.insert(0, "scalers = {name: Normalizer(*scale) for name, scale in SCALES.items()}")
    return "\n".join([*lines, *([""] if layers else []), *layers]) + "\n"


def _feed_batch(feed: Feed, label: str) -> str:
    lines = []
    if feed.numbers:
        lines.append("    numbers = [scale(columns[name]) for name, scale in scalers.items()]")
    if any(each.masked for each in feed.numbers):
        masks = 'tf.cast(columns[f"{name}_missing"], tf.float32)'
        lines.append(f"    numbers += [{masks} for name in MASKED]")
    lines.append(listed("features = {", feed.entries, "}", 4))
    lines += ['    if mode == "prediction":', "        return features"]
    lines.append(f"    return features, {label}")
    return "\n".join(
        [
            "def feed_batch(columns, mode, metadata):",
            '    """Columns of a minibatch to (features, labels)."""',
            *lines,
            "",
        ]
    )


def _custom_model(feed: Feed, lines: list[str], kind: str) -> str:
    outputs = {
        "binary": "keras.ops.sigmoid(logits)[:, 0]",
        "classes": "keras.ops.softmax(logits)",
        "number": "keras.layers.Rescaling(LABEL_STDDEV, LABEL_MEAN)(logits)[:, 0]",
    }
    return "\n".join(
        [
            "def custom_model():",
            '    """The model to train."""',
            listed("inputs = {", feed.inputs, "}", 4),
            *(f"    {line}" for line in lines),
            f"    return keras.Model(inputs, {outputs[kind]})",
            "",
        ]
    )


def _optimizer(values: Mapping[str, Any], linear_tables: bool) -> str:
    if "optimizer" in values:
        made = f"return keras.optimizers.{values['optimizer']}(LEARNING_RATE)"
        return f'def optimizer():\n    """The servers do its arithmetic."""\n    {made}\n'
    wide, deep = (
        f"keras.optimizers.{values[f'{part}_optimizer']}({part.upper()}_LEARNING_RATE)"
        for part in ("linear", "dnn")
    )
    tables = [f'"linear_*": {wide}'] if linear_tables else []
    made = listed("return {", [f'"default": {deep}', *tables], "}", 4)
    return (
        f'def optimizer():\n    """An optimizer by table; "default" is for the rest."""\n{made}\n'
    )
