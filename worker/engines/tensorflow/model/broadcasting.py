"""Labels [batch] against predictions [batch, 1]: TensorFlow would pair each with each.

An operation on the two has the shape [batch, batch], a mean over it is a number like any
other, and training goes on with it. Owns finding that in a function of the user's: the
function is traced once more, by itself and with a batch of a size that nothing else has, and
its operations are looked through. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from shoal.worker.engines.tensorflow.model.dependencies import SHAPES

BATCH = 1009
"""Records in the batch of the trace: no axis of a model has this size by chance."""


def pairs_all(function: Callable[[Any, Any], Any], labels: Any, predictions: Any) -> str | None:
    """Advice about a function that pairs each label with each prediction; None if it does not.

    Of operations in the function itself: not in one of Keras's or TensorFlow's that it calls by
    name as a tf.function. labels, predictions: of a trace or a batch, of any structure.
    """
    ours, theirs = tf.nest.flatten(labels), tf.nest.flatten(predictions)
    pair = next(
        (
            (label, prediction)
            for label in ours
            for prediction in theirs
            if {_rank_with_one(label), _rank_with_one(prediction)} == {1, 2}
        ),
        None,
    )
    if pair is None:
        return None
    try:
        specs = [tf.nest.map_structure(_of_batch, each) for each in (labels, predictions)]
        # The function beneath a tf.function: its operations are to be seen.
        inner = getattr(function, "python_function", function)
        with tf.init_scope():
            graph = tf.function(inner, autograph=False).get_concrete_function(*specs).graph
    except Exception:
        # What is wrong with the function itself is told where it is traced to be used.
        return None
    origins = [{"labels"}] * len(ours) + [{"predictions"}] * len(theirs)
    given = dict(zip((each.name for each in graph.inputs), origins, strict=False))
    return _advice(*pair) if _has_square(graph, given) else None


def _rank_with_one(tensor: Any) -> int | None:
    """1 of [batch], 2 of [batch, 1], None of any other."""
    shape = getattr(tensor, "shape", None)
    if not isinstance(shape, tf.TensorShape) or shape.rank not in (1, 2):
        return None
    return 2 if shape.rank == 2 and shape[1] == 1 else 1 if shape.rank == 1 else None


def _of_batch(tensor: Any) -> tf.TensorSpec:
    """The spec of a dense tensor, for BATCH records. Raises TypeError for any other."""
    if not isinstance(tensor, tf.Tensor):
        raise TypeError(type(tensor))
    shape = tensor.shape
    return tf.TensorSpec([BATCH, *shape[1:]] if shape.rank else shape, tensor.dtype)


def _has_square(graph: Any, given: dict[str, set[str]]) -> bool:
    """True if an operation makes [batch, batch] of a [batch] and a [batch, 1].

    Or [batch, batch, 1] of both with an axis more, as a loss gets them that has got one rank.

    given: what each input of the graph is computed from. Labels against labels, or
    predictions against predictions, are meant: a loss of pairs is written so.
    """
    origins = dict(given)
    for operation in graph.get_operations():  # in the order in which they were made
        inputs = list(operation.inputs)
        found: set[str] = set()
        if operation.type not in SHAPES:
            found = found.union(*(origins.get(each.name, ()) for each in inputs))
        for output in operation.outputs:
            origins.setdefault(output.name, found)
        shapes = [_static(each) for each in inputs]
        made = [_static(each) for each in operation.outputs]
        if found == {"labels", "predictions"} and any(
            [BATCH, *more] in shapes
            and [BATCH, 1, *more] in shapes
            and [BATCH, BATCH, *more] in made
            for more in ([], [1])
        ):
            return True
    return False


def _static(tensor: Any) -> list[int | None] | None:
    return None if tensor.shape.rank is None else tensor.shape.as_list()


def _advice(labels: Any, predictions: Any) -> str:
    of_labels, of_predictions = (
        "[batch]" if each.shape.rank == 1 else "[batch, 1]" for each in (labels, predictions)
    )
    longer, shorter = (
        ("predictions", "labels") if labels.shape.rank == 1 else ("labels", "predictions")
    )
    return (
        f"pairs each label with each prediction: the labels have the shape {of_labels}, the "
        f"predictions {of_predictions}, and TensorFlow makes [batch, batch] of them. Give both the "
        f"same shape there, with tf.squeeze({longer}, -1) or {shorter}[..., None]"
    )
