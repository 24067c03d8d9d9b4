"""Labels [batch] beside predictions [batch, 1]: which of them to mend, in words."""

from __future__ import annotations

from typing import Any

from shoal.base.nested import leaves

LABELS, PREDICTIONS = "labels", "predictions"


def one_of_each_rank(labels: Any, predictions: Any) -> tuple[Any, Any] | None:
    """A label and a prediction of which one is [batch] and one [batch, 1]; None if there is none.

    labels, predictions: of any structure.
    """
    return next(
        (
            (label, prediction)
            for label in leaves(labels)
            for prediction in leaves(predictions)
            if {_rank_with_one(label), _rank_with_one(prediction)} == {1, 2}
        ),
        None,
    )


def _rank_with_one(array: Any) -> int | None:
    """1 of [batch], 2 of [batch, 1], None of any other."""
    shape = getattr(array, "shape", None)
    if shape is None or len(shape) not in (1, 2):
        return None
    return 2 if len(shape) == 2 and shape[1] == 1 else 1 if len(shape) == 1 else None


def advice(labels: Any, predictions: Any, framework: str, squeeze: str) -> str:
    """Advice about a function that pairs these two. squeeze: the framework's function."""
    of_labels, of_predictions = (
        "[batch]" if len(each.shape) == 1 else "[batch, 1]" for each in (labels, predictions)
    )
    longer, shorter = (PREDICTIONS, LABELS) if len(labels.shape) == 1 else (LABELS, PREDICTIONS)
    return (
        f"pairs each label with each prediction: the labels have the shape {of_labels}, the "
        f"predictions {of_predictions}, and {framework} makes [batch, batch] of them. Give both "
        f"the same shape there, with {squeeze}({longer}, -1) or {shorter}[..., None]"
    )
