"""Labels [batch] against predictions [batch, 1]: JAX would pair each with each.

An operation on the two has the shape [batch, batch], a mean over it is a number like any other, and
training goes on with it. Owns finding that in a function of the user's: it is traced once more, by
itself and with a batch of a size that nothing else has. Nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend import core

from shoal.base.nested import leaves, mapped
from shoal.worker.engines.jax.programs import MOVING
from shoal.worker.engines.keras_ops.pairs import LABELS, PREDICTIONS, advice, one_of_each_rank

BATCH = 1009
"""Records in the batch of the trace: no axis of a model has this size by chance."""


def pairs_all(function: Callable[[Any, Any], Any], labels: Any, predictions: Any) -> str | None:
    """Advice about a function that pairs each label with each prediction; None if it does not.

    labels, predictions: of a trace or a batch, of any structure.
    """
    pair = one_of_each_rank(labels, predictions)
    if pair is None:
        return None
    try:
        given = [mapped(_of_batch, each) for each in (labels, predictions)]
        jaxpr = jax.make_jaxpr(function)(*given).jaxpr
    except Exception:
        # What is wrong with the function itself is told where it is traced to be used.
        return None
    count = len(leaves(labels))
    origins = {
        var: frozenset({LABELS if place < count else PREDICTIONS})
        for place, var in enumerate(jaxpr.invars)
    }
    return advice(*pair, "JAX", "jnp.squeeze") if _has_square(jaxpr, origins, {}) else None


def _of_batch(array: Any) -> Any:
    shape = (BATCH, *array.shape[1:]) if array.shape else ()
    return jax.ShapeDtypeStruct(shape, array.dtype)


def _has_square(
    jaxpr: Any, origins: dict[Any, frozenset[str]], stretched: dict[Any, tuple[int, ...]]
) -> bool:
    """True if an operation makes [batch, batch] of a [batch] and a [batch, 1].

    origins: what each variable is computed from. stretched: the shapes of those that were repeated
    along an axis of the batch, before that. Labels against labels, or predictions against
    predictions, are meant: a loss of pairs is written so.
    """
    origins, stretched = dict(origins), dict(stretched)
    for equation in jaxpr.eqns:
        inputs = [each for each in equation.invars if not isinstance(each, core.Literal)]
        found = frozenset().union(*(origins.get(each, frozenset()) for each in inputs))
        name = equation.primitive.name
        inner = list(core.jaxprs_in_params(equation.params))
        if len(inner) == 1 and len(inner[0].invars) == len(equation.invars):
            pairs = [
                (outer, its)
                for outer, its in zip(equation.invars, inner[0].invars, strict=True)
                if not isinstance(outer, core.Literal)
            ]
            own = {its: origins.get(outer, frozenset()) for outer, its in pairs}
            if _has_square(
                inner[0], own, {its: stretched[outer] for outer, its in pairs if outer in stretched}
            ):
                return True
        for made in equation.outvars:
            origins[made] = found
            if name == "broadcast_in_dim" and _is_square(made.aval.shape) and inputs:
                stretched[made] = inputs[0].aval.shape
            elif name in MOVING | {"convert_element_type"} and inputs and inputs[0] in stretched:
                stretched[made] = stretched[inputs[0]]
        if not any(_is_square(made.aval.shape) for made in equation.outvars):
            continue
        sides = {
            (next(iter(origins[each])), side)
            for each in inputs
            if len(origins.get(each, ())) == 1
            and (side := _side(stretched.get(each, each.aval.shape))) is not None
        }
        if any(one[0] != two[0] and one[1] != two[1] for one in sides for two in sides):
            return True
    return False


def _is_square(shape: tuple[int, ...]) -> bool:
    return shape[:2] == (BATCH, BATCH)


def _side(shape: tuple[int, ...]) -> str | None:
    """The place of an array of this shape in [batch, batch]; None for one that does not."""
    if shape[:2] == (BATCH, 1):
        return "column"
    return "row" if shape[:2] == (1, BATCH) or shape == (BATCH,) else None
