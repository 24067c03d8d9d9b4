"""The law by which servers draw first rows, found by calling what would fill a weight.

A `Recorded` tensor has a shape and no memory. It notes the operations that fill it, as those of
torch.nn.init do, so that a table of any size costs nothing before its rows are needed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec

aten = torch.ops.aten

FAR = 6.0
"""Standard deviations from the mean beyond which a normal law is not cut by a bound: one number
in 500 million is out there."""

_ITSELF = (torch.Tensor.data.__get__, torch.Tensor.detach, torch.detach)

_VIEWS = (aten.detach.default, aten.alias.default)

_DRAWING = (aten.normal_.default, aten.uniform_.default)

_FILLING = (aten.zero_.default, aten.fill_.Scalar)

_MOVING = (
    *(aten.mul_.Scalar, aten.mul_.Tensor, aten.add_.Scalar, aten.add_.Tensor),
    *(aten.div_.Scalar, aten.div_.Tensor, aten.sub_.Scalar, aten.sub_.Tensor),
)
"""Operations with a number on what was drawn."""


class Recorded(torch.Tensor):
    """A weight without values.

    law: of what filled it last; None if servers have none for that. given: what was copied into
    it, if that was last. used: makes the error of a computation with its values, of the name of an
    operation.
    """

    law: InitializerSpec | None = None
    given: torch.Tensor | None = None
    used: Callable[[str], UserError] | None = None

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, used: Callable[[str], UserError]
    ) -> Recorded:
        """A weight of a shape."""
        made: Recorded = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype)
        made.used = used
        return made

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def __repr__(self, **_: Any) -> str:
        return f"Recorded({tuple(self.shape)})"

    def __deepcopy__(self, memo: Any) -> Recorded:
        assert self.used is not None
        made = Recorded(self.shape, self.dtype, self.used)
        made.law, made.given = self.law, self.given
        memo[id(self)] = made
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """`.data` and detach() are the weight itself; all else as without this class."""
        if func in _ITSELF:
            return args[0]
        with torch.no_grad():  # a weight of torch.nn.init's is filled so, and `.data` too
            return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note what fills the weight. Raises UserError for any other operation."""
        del types
        mine = args[0] if args else None
        if not isinstance(mine, Recorded):
            raise _refused(next((each for each in args if isinstance(each, Recorded)), None), func)
        if func in _VIEWS:
            return mine
        numbers = _numbers(func, args, kwargs or {})
        if func is aten.copy_.default:
            mine.law, mine.given = None, args[1].detach()
        elif func in _DRAWING or func in _FILLING:
            mine.law, mine.given = _law(func, numbers), None
        elif func in _MOVING and len(numbers) and mine.law is not None:
            mine.law = _moved(mine.law, func, numbers[0])
        else:
            raise _refused(mine, func)
        return mine


def _refused(weight: Any, func: Any) -> Exception:
    name = func.overloadpacket.__name__
    used = getattr(weight, "used", None)
    return RuntimeError(f"{name} of a weight without values") if used is None else used(name)


def _numbers(func: Any, args: Any, kwargs: Any) -> tuple[float, ...]:
    """The numbers that an operation was given after its tensor, defaults included."""
    found = []
    for place, each in enumerate(func._schema.arguments[1:], 1):
        value = args[place] if place < len(args) else kwargs.get(each.name, each.default_value)
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        found.append(float(value))
    return tuple(found)


def _law(func: Any, numbers: Sequence[float]) -> InitializerSpec:
    if func is aten.zero_.default:
        return InitializerSpec("zeros")
    if func is aten.fill_.Scalar:
        return InitializerSpec("constant", {"value": numbers[0]})
    if func is aten.uniform_.default:
        return InitializerSpec("uniform", {"minval": numbers[0], "maxval": numbers[1]})
    return InitializerSpec("normal", {"mean": numbers[0], "stddev": numbers[1]})


def _moved(law: InitializerSpec, func: Any, number: float) -> InitializerSpec:
    """The law of numbers that were drawn, and then moved or multiplied by a number."""
    name = func.overloadpacket.__name__
    if name in ("div_", "mul_"):
        factor, moved = (1 / number if name == "div_" else number), 0.0
    else:
        factor, moved = 1.0, (-number if name == "sub_" else number)
    values = {
        each: value * abs(factor) if each == "stddev" else value * factor + moved
        for each, value in law.parameters.items()
    }
    if law.kind == "zeros":
        return InitializerSpec("constant", {"value": moved}) if moved else law
    if law.kind == "uniform":
        low, high = sorted(values.values())
        values = {"minval": low, "maxval": high}
    return InitializerSpec(law.kind, values)


def _truncated(mean: float, stddev: float, low: float, high: float) -> InitializerSpec | None:
    """The law of torch.nn.init.trunc_normal_; None for a cut that servers do not have."""
    named = {"mean": mean, "stddev": stddev}
    below, above = (mean - low) / stddev, (high - mean) / stddev
    if min(below, above) >= FAR:
        return InitializerSpec("normal", named)
    if math.isclose(below, 2, rel_tol=1e-6) and math.isclose(above, 2, rel_tol=1e-6):
        return InitializerSpec("truncated_normal", named)
    return None


@contextmanager
def noting_truncated() -> Iterator[None]:
    """Note trunc_normal_, too, which looks at the numbers that it has drawn."""
    name = "_no_grad_trunc_normal_"
    inner = getattr(torch.nn.init, name, None)
    if inner is None:  # refused then, as what computes with the weight
        yield
        return

    @functools.wraps(inner)
    def noted(tensor: Any, mean: float, std: float, a: float, b: float, **options: Any) -> Any:
        if not isinstance(tensor, Recorded):
            return inner(tensor, mean, std, a, b, **options)
        tensor.law, tensor.given = _truncated(mean, std, a, b), None
        return tensor

    setattr(torch.nn.init, name, noted)
    try:
        yield
    finally:
        setattr(torch.nn.init, name, inner)


LAWS = (
    "normal_, uniform_, zeros_, ones_, constant_, xavier_uniform_, xavier_normal_, "
    "kaiming_uniform_, kaiming_normal_, and trunc_normal_ with bounds two standard deviations "
    "from the mean or more than six"
)
"""Functions of torch.nn.init whose law servers have."""


def law_by(function: Callable[[torch.Tensor], Any], dim: int, what: str) -> InitializerSpec:
    """The law of a function that fills a weight in place, such as those of torch.nn.init.

    The weight that it gets is [1, dim], as a table that grows has no number of rows. what: whose,
    for errors. Raises UserError for a law that servers do not have.
    """

    def used(operation: str) -> UserError:
        return UserError(
            f"{what}: init computes with the weight itself ({operation}), which servers, who "
            f"draw each row by itself, do not have: give a function that fills it, of {LAWS}"
        )

    weight = Recorded((1, dim), torch.float32, used)
    with torch.no_grad(), noting_truncated():
        function(weight)
    if weight.law is None:
        raise UserError(
            f"{what}: init fills the weight by no law that servers have: give a function of "
            f"torch.nn.init of these: {LAWS}; with arguments by functools.partial"
        )
    return weight.law
