"""Mistakes that train without an error, and make a useless model: warnings of `shoal check`.

Owns the search in the loss's calls and in the first records. What cannot be trained at all is
refused by supported.py, or where it fails.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.base.nested import named_leaves
from shoal.data.shaped import MASK
from shoal.errors import UserCodeError, UserError
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.engines import backend_of_keras
from shoal.worker.input.batch import Batch
from shoal.worker.model.model import ServedModel

if TYPE_CHECKING:
    from shoal.worker.code.keras_internals import Crossentropy

RECORDS = 10_000
"""Records that are looked at, at most."""

SECONDS = 3.0
"""For which records are read, at most: some functions take long."""

FEW = 100
"""Of fewer records nothing is told."""

CLASSES = 20
"""Whole numbers of more values are taken for ids, which may be label and feature at once."""

TIMES = (datetime(2000, 1, 1, tzinfo=UTC).timestamp(), datetime(2040, 1, 1, tzinfo=UTC).timestamp())
"""Between which whole numbers are taken for times, in seconds or a smaller unit."""


def noting_losses(model: ServedModel) -> AbstractContextManager[Sequence[Crossentropy]]:
    """A context that notes the crossentropies of Keras that are computed; none for other models."""
    if not is_of_keras(model.model, "Model"):
        return nullcontext(())
    from shoal.worker.code.keras_internals import noting_crossentropies  # imports Keras

    return noting_crossentropies()


def of_loss(model: ServedModel, batch: Batch, traced: Sequence[Crossentropy]) -> list[str]:
    """List the mismatches of the loss with the labels or the model's output, each in a sentence.

    traced: the crossentropies of the traced training step, as `noting_losses` gives them.
    """
    if not is_of_keras(model.model, "Model"):
        return []
    from shoal.worker.code.keras_internals import all_layers  # imports Keras

    layers = [layer.name for layer in all_layers(model.model)]
    found = [
        f"{_by(made[1], layers)} is a {made[0]}, and the loss {each.name} has "
        "from_logits=True, which applies another one: remove one of the two"
        for each in traced
        if each.from_logits
        and (made := backend_of_keras().activation(each.predictions)) is not None
    ]
    # A loss may be made for graphs alone, and has been trained in one.
    with noting_losses(model) as called, suppress(Exception):
        # With the rows of training: others are all alike before it.
        predictions = model.predict_batch(batch.features, model.prepare(batch).inputs)
        model.loss(batch.labels, predictions, batch.weights)
    feed = model.module.describe(model.module.feed_name)
    for each in called:
        labels, given = _values(each.labels), _values(each.predictions)
        if labels is None or given is None:
            continue  # of a function that is traced once more
        # Of classes that there are not, TensorFlow tells.
        if not each.name.startswith("sparse") and (outside := _outside(labels)):
            found.append(
                f"{feed} gives labels from {outside}, and the loss {each.name} takes 0 to 1: make "
                f"0 to 1 of them in {model.module.feed_name}"
            )
        if not each.from_logits and (outside := _outside(given)):
            activation = "sigmoid" if each.name.startswith("binary") else "softmax"
            found.append(
                f"the model predicts {outside}, and the loss {each.name} takes chances from 0 to "
                f'1: give the last layer activation="{activation}", or the loss from_logits=True'
            )
    return list(dict.fromkeys(found))


def _by(scope: str, layers: Iterable[str]) -> str:
    """Name the layer of whose call a scope is; TensorFlow numbers scopes."""
    of = [each for each in layers if re.fullmatch(rf"{re.escape(each)}(_\d+)?", scope)]
    return f"the output of layer {max(of, key=len)!r}" if of else "the model's output"


def _values(tensor: Any) -> npt.NDArray[Any] | None:
    """The numbers of a tensor; None of one in a trace."""
    try:
        return np.asarray(tensor)
    except Exception:  # each framework has its own
        return None


def _outside(values: Any) -> str | None:
    """The least and the largest value, if one is not within 0 to 1."""
    least, largest = float(np.min(values)), float(np.max(values))
    return f"{least:.6g} to {largest:.6g}" if least < 0 or largest > 1 else None


def of_data(model: ServedModel, batches: Iterable[Batch], source: str, total: int) -> list[str]:
    """List likely mistakes of features and ids in the first records, each in a sentence.

    batches: of records of `source`. total: about how many records the whole data have.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    labels: dict[str, list[Any]] = defaultdict(list)
    ids: dict[tuple[str, int], list[Any]] = defaultdict(list)
    records = 0
    end = time.monotonic() + SECONDS
    # Training tells of a record that cannot be read, and may count it only.
    with suppress(UserError, UserCodeError):
        for batch in takewhile(lambda _: time.monotonic() < end, batches):
            pulled = model.pull(batch.features, training=False)
            records += batch.size
            for table, of_table in zip(model.tables, pulled.ids, strict=True):
                for call, inverse in enumerate(of_table.inverses):
                    ids[table, call].append(of_table.unique[inverse])
            taken = _taken(model.model, batch.features)
            for parts, structure in ((columns, taken), (labels, batch.labels)):
                for name, leaf in named_leaves(structure):
                    # Lists and sparse features are no arrays.
                    if not hasattr(leaf, "__array__"):
                        continue
                    values = np.asarray(leaf)
                    if values.size == batch.size:
                        parts[name].append(values.reshape(-1))
    if records < FEW:
        return []
    features = dict(_whole(columns, records))
    where = f"in each of the {records:,} records of {source} that were looked at"
    found = [
        f"feature {name!r} is {_value(values[0])} {where}: if it is so in all records, remove it"
        for name, values in features.items()
        if not name.endswith(MASK) and (values == values[0]).all()
    ]
    found += [
        f"feature {name!r} is the label, or stands for it, {where}: remove it from the features"
        for _, label in _whole(labels, records)
        for name, values in features.items()
        if _stands_for(values, label)
    ]
    for (table, _), given in ids.items():
        found += _of_ids(table, np.concatenate(given), features, total / records)
    return list(dict.fromkeys(found))


def _taken(model: Any, features: Any) -> Any:
    """The features that a model takes of a batch."""
    if not is_of_keras(model, "Model"):
        return features
    from shoal.worker.code.keras_internals import taken_features  # imports Keras

    return taken_features(model, features)


def _whole(parts: Mapping[str, list[Any]], records: int) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the parts that have one value for each record."""
    for name, each in parts.items():
        if sum(map(len, each)) == records:
            yield name, np.concatenate(each)


def _stands_for(values: npt.NDArray[Any], label: npt.NDArray[Any]) -> bool:
    """True if a feature is a label that is not always the same, or has a value for each class."""
    classes, of_label = np.unique(label, return_inverse=True)
    if not 1 < classes.size <= CLASSES:
        return label.dtype.kind == "f" and classes.size > 1 and np.array_equal(values, label)
    found, of_value = np.unique(values, return_inverse=True)
    return bool(np.unique(of_value * classes.size + of_label).size == found.size == classes.size)


def _value(value: Any) -> str:
    return repr(value.decode(errors="replace")) if isinstance(value, bytes) else f"{value}"


def _of_ids(
    table: str, ids: npt.NDArray[np.int64], features: Mapping[str, Any], scale: float
) -> list[str]:
    """List the problems of the ids of one call. scale: of all ids to those that were looked at."""
    same = [
        f" (feature {name!r})" for name, values in features.items() if np.array_equal(values, ids)
    ]
    what = f"ids of table {table!r}{same[0] if same else ''}"
    distinct = np.unique(ids)
    for unit in (1, 10**3, 10**6, 10**9) if distinct.size >= FEW else ():
        first, last = (float(each) / unit for each in (distinct[0], distinct[-1]))
        if TIMES[0] <= first and last < TIMES[1]:
            days = [datetime.fromtimestamp(each, UTC).date() for each in (first, last)]
            return [
                f"the {what} look like times, {days[0]} to {days[1]}: no row of a time is of use "
                "at another one; give the model its hour or weekday, or the time as a number"
            ]
    # Of ids that come twice each in the whole data, so many would have come before in this part.
    expected = ids.size / scale
    if expected >= FEW / 10 and ids.size - distinct.size < expected / 10:
        return [
            f"{distinct.size:,} of {ids.size:,} {what} are different: a row that is used once is "
            f"of no use to other records; leave the ids out, or give --table {table}.admit_after=2"
        ]
    return []
