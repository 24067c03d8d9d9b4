"""Labels [batch] against predictions [batch, 1]: PyTorch would pair each with each.

Owns finding that in a function of the user's: it is called once more, with zeros, a batch of a size
that nothing else has, and a note of each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.base.nested import leaves, mapped
from shoal.worker.engines.keras_ops.pairs import LABELS, PREDICTIONS, advice, one_of_each_rank

BATCH = 1009
"""Records in the batch of the call: no axis of a model has this size by chance."""


def pairs_all(function: Callable[[Any, Any], Any], labels: Any, predictions: Any) -> str | None:
    """Advice about a function that pairs each label with each prediction; None if it does not.

    labels, predictions: of a batch, of any structure.
    """
    pair = one_of_each_rank(labels, predictions)
    if pair is None:
        return None
    given = [mapped(_of_batch, each) for each in (labels, predictions)]
    origins = {
        LABELS: [each for each in leaves(given[0]) if isinstance(each, torch.Tensor)],
        PREDICTIONS: [each for each in leaves(given[1]) if isinstance(each, torch.Tensor)],
    }
    noting = _Noting(origins)
    try:
        with torch.no_grad(), noting:
            function(*given)
    except Exception:
        # What is wrong with the function itself is told where it is called to be used.
        return None
    return advice(*pair, "PyTorch", "torch.squeeze") if noting.found else None


def _of_batch(array: Any) -> Any:
    if not isinstance(array, torch.Tensor):
        return array
    return torch.zeros((BATCH, *array.shape[1:]) if array.shape else (), dtype=array.dtype)


class _Noting(TorchDispatchMode):
    """Notes an operation that makes [batch, batch] of a [batch] and a [batch, 1].

    Labels against labels, or predictions against predictions, are meant: a loss of pairs is
    written so. found: whether there was one.
    """

    def __init__(self, origins: dict[str, list[torch.Tensor]]) -> None:
        super().__init__()
        self.found = False
        # What each tensor is computed from; held, as an address may be another's later.
        self._held = [each for some in origins.values() for each in some]
        self._origins = {id(each): {name} for name, some in origins.items() for each in some}
        self._stretched: dict[int, tuple[int, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        outputs = func(*args, **(kwargs or {}))
        origins = set().union(*(self._origins.get(id(each), set()) for each in inputs))
        for made in _tensors(outputs):
            self._held.append(made)
            self._origins[id(made)] = origins
            if tuple(made.shape[:2]) != (BATCH, BATCH):
                continue
            if len(inputs) == 1:
                self._stretched[id(made)] = self._shape(inputs[0])
            sides = {
                (next(iter(self._origins[id(each)])), side)
                for each in inputs
                if len(self._origins.get(id(each), ())) == 1
                and (side := _side(self._shape(each))) is not None
            }
            self.found |= any(
                one[0] != two[0] and one[1] != two[1] for one in sides for two in sides
            )
        return outputs

    def _shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """The shape that a tensor had before it was repeated along an axis of the batch."""
        return self._stretched.get(id(tensor), tuple(tensor.shape))


def _tensors(outputs: Any) -> Iterator[torch.Tensor]:
    return (each for each in tree_leaves(outputs) if isinstance(each, torch.Tensor))


def _side(shape: tuple[int, ...]) -> str | None:
    """The place of an array of this shape in [batch, batch]; None for one that does not."""
    if shape[:2] == (BATCH, 1):
        return "column"
    return "row" if shape[:2] == (1, BATCH) or shape == (BATCH,) else None
