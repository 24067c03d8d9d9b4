"""The plan for optimizer slots when the optimizer changes. Pure decisions.

Slots of one family of rules mean the same numbers, and are kept by name; others begin anew.
"""

from __future__ import annotations

from typing import Literal

from shoal.native.optimizers import OptimizerSpec

SlotSource = Literal["kept", "mean", "spread", "initial"]
"""A slot is as it was; the mean of the row's columns; the row's number in each column; initial."""

_FAMILIES = {
    "nesterov": "momentum",
    "rowwise_adagrad": "adagrad",
    "amsgrad": "adam",
    "rmsprop_momentum": "rmsprop",
    "rmsprop_centered": "rmsprop",
    "rmsprop_centered_momentum": "rmsprop",
    "torch_adagrad": "adagrad",
    "torch_rmsprop": "rmsprop",
    "torch_rmsprop_momentum": "rmsprop",
}


def slot_sources(
    before: OptimizerSpec, after: OptimizerSpec, *, rows: bool
) -> dict[str, SlotSource]:
    """The origin of each slot of `after` in those of `before`.

    rows: of rows of a table; False: of the dense block, where each number is by itself.
    """
    families = {_FAMILIES.get(each.rule, each.rule) for each in (before, after)}
    how: SlotSource = "kept"
    if len(families) > 1:
        how = "initial"
    elif before.kind != after.kind and "adagrad" in families:
        rowwise = after.kind == "rowwise_adagrad"
        how = "initial" if not rows else "mean" if rowwise else "spread"
    return {name: how if name in before.slot_names else "initial" for name in after.slot_names}
