"""Jaxprs: what their outputs follow from, and which of their inputs they read.

A jaxpr is JAX's program of a function that was traced. Owns the search in it; what is traced, and
what follows from the findings, is ids.py's and steps.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

MOVING = frozenset({"reshape", "squeeze", "expand_dims", "copy", "copy_p", "broadcast_in_dim"})
"""Operations that may leave all numbers of their first input in their order."""

_PARTS = frozenset({"slice", "dynamic_slice", "gather", "transpose", "rev"})
"""Operations that give some numbers of their first input, or all in another order."""

_DRAWING = ("random", "threefry", "rng_")
"""Parts of the names of operations that draw numbers."""

_COMPARING = frozenset({"eq", "ne"})


@dataclass(frozen=True, eq=False)
class Program:
    """The part of a jaxpr that some of its outputs need. used: whether it needs each input."""

    jaxpr: Any
    consts: Sequence[Any]
    used: list[bool]

    @classmethod
    def of(cls, closed: Any, outputs: Sequence[bool]) -> Program:
        """The part that `outputs`, of those of the jaxpr, need."""
        jaxpr = closed.jaxpr
        # Its constants as inputs, so that they stay in their order.
        inputs = [*jaxpr.constvars, *jaxpr.invars]
        names = jaxpr.debug_info._replace(arg_names=("",) * len(inputs))
        whole = jaxpr.replace(invars=inputs, constvars=[], debug_info=names)
        pruned, used = partial_eval.dce_jaxpr(whole, list(outputs))
        count = len(jaxpr.constvars)
        consts = [const for const, its in zip(closed.consts, used[:count], strict=True) if its]
        return cls(pruned, consts, list(used[count:]))

    def __call__(self, *inputs: Any) -> list[Any]:
        """The outputs for the inputs that are used."""
        found: list[Any] = jax.core.eval_jaxpr(self.jaxpr, [], *self.consts, *inputs)
        return found

    def same(self, other: Program) -> bool:
        """True if it computes the same of the same inputs."""
        return (
            self.used == other.used
            and str(self.jaxpr) == str(other.jaxpr)
            and all(map(np.array_equal, self.consts, other.consts))
        )

    @property
    def draws(self) -> bool:
        """True if it draws random numbers."""
        return any(any(part in name for part in _DRAWING) for name in _operations(self.jaxpr))

    def input_of(self, output: int) -> int | None:
        """The position of the used input whose numbers, as int64, an output has in their order."""
        made = {var: equation for equation in self.jaxpr.eqns for var in equation.outvars}
        var = self.jaxpr.outvars[output]
        while var in made:
            equation = made[var]
            var = equation.invars[0]
            if isinstance(var, core.Literal):
                return None
            widened = equation.primitive.name == "convert_element_type" and (
                str(equation.params["new_dtype"]) == "int64" and str(var.aval.dtype) == "int32"
            )
            moved = equation.primitive.name in MOVING and (
                var.aval.size == equation.outvars[0].aval.size
            )
            if not (widened or moved):
                return None
        inputs = self.jaxpr.invars[len(self.consts) :]
        return inputs.index(var) if var in inputs else None

    def with_cast_floats(self) -> tuple[Program, list[int]]:
        """The program with more outputs: floats of its inputs of which it makes integers.

        And the position of the used input of each. Floats that it computes with are not among them.
        """
        made = {var: equation for equation in self.jaxpr.eqns for var in equation.outvars}
        inputs = self.jaxpr.invars[len(self.consts) :]
        found: dict[Any, int] = {}
        for equation in self.jaxpr.eqns:
            floats = var = equation.invars[0] if equation.invars else None
            if not (_is_cast(equation, "integer") and _is_of(var, "floating")):
                continue
            while var in made and (
                made[var].primitive.name in MOVING | _PARTS or _is_cast(made[var], "floating")
            ):
                var = made[var].invars[0]
            if var in inputs:
                found[floats] = inputs.index(var)
        outputs = [*self.jaxpr.outvars, *found]
        names = self.jaxpr.debug_info._replace(result_paths=("",) * len(outputs))
        return replace(self, jaxpr=self.jaxpr.replace(outvars=outputs, debug_info=names)), list(
            found.values()
        )

    def reads(self, position: int) -> bool:
        """True if it uses an input's values otherwise than in a comparison with 0.

        position: among the used inputs.
        """
        zeros = {
            var
            for var, const in zip(self.jaxpr.invars, self.consts, strict=False)
            if getattr(const, "ndim", 0) == 0 and const == 0
        }
        return _reads(self.jaxpr, self.jaxpr.invars[len(self.consts) + position], zeros)


def _is_of(var: Any, kind: str) -> bool:
    return not isinstance(var, core.Literal) and bool(
        np.issubdtype(np.dtype(var.aval.dtype), getattr(np, kind))
    )


def _is_cast(equation: Any, kind: str) -> bool:
    return equation.primitive.name == "convert_element_type" and _is_of(equation.outvars[0], kind)


def _operations(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in core.jaxprs_in_params(equation.params):
            yield from _operations(inner)


def _reads(jaxpr: Any, var: Any, zeros: set[Any]) -> bool:
    """zeros: variables that are known to be 0."""
    if any(var is each for each in jaxpr.outvars):
        return True
    zeros = set(zeros)

    def is_zero(each: Any) -> bool:
        return each.val == 0 if isinstance(each, core.Literal) else each in zeros

    for equation in jaxpr.eqns:
        kept = equation.primitive.name in MOVING or (
            equation.primitive.name == "convert_element_type"
            and str(equation.params["new_dtype"]) in ("int32", "int64")
        )
        if kept and is_zero(equation.invars[0]):
            zeros.update(equation.outvars)
        if not any(var is each for each in equation.invars):
            continue
        others = [each for each in equation.invars if each is not var]
        if equation.primitive.name in _COMPARING and others and all(map(is_zero, others)):
            continue
        if kept:
            if _reads(jaxpr, equation.outvars[0], zeros):
                return True
            continue
        inner = list(core.jaxprs_in_params(equation.params))
        if len(inner) != 1 or len(inner[0].invars) != len(equation.invars):
            return True
        pairs = list(zip(equation.invars, inner[0].invars, strict=True))
        known = {its for outer, its in pairs if is_zero(outer)}
        if any(_reads(inner[0], its, known) for outer, its in pairs if outer is var):
            return True
    return False
