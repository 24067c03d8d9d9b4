"""The search in a traced graph of torch.fx for what its outputs are computed from."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

aten = torch.ops.aten

RESHAPING = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
        *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default),
        *(aten.contiguous.default, aten.flatten.using_ints, aten.view_copy.default),
        *(aten.unsqueeze_copy.default, aten.squeeze_copy.default, aten.squeeze_copy.dim),
        *(aten.squeeze_copy.dims, aten.alias_copy.default, aten.detach_copy.default),
        *(aten._reshape_copy.default, aten.lift_fresh_copy.default),
    }
)
"""Operations that leave all numbers of their first input in their order."""

PARTS = frozenset(
    {
        *(aten.select.int, aten.slice.Tensor, aten.transpose.int, aten.t.default),
        *(aten.permute.default, aten.expand.default, aten.unbind.int, aten.split.Tensor),
        *(aten.split_with_sizes.default, aten.index_select.default, operator.getitem),
        *(aten.select_copy.int, aten.slice_copy.Tensor, aten.transpose_copy.int),
        *(aten.t_copy.default, aten.permute_copy.default, aten.expand_copy.default),
        *(aten.unbind_copy.int, aten.split_copy.Tensor, aten.split_with_sizes_copy.default),
    }
)
"""Operations that give some numbers of their first input, or all in another order."""

SHAPES = frozenset(
    {
        *(aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int),
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
        *(aten.empty_like.default, aten.new_zeros.default, aten.new_ones.default),
        *(aten.new_full.default, aten.new_empty.default),
    }
)
"""Operations that do not look at the values they are given."""


def needed(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node and all that it is computed from, shapes too."""
    found, waiting = {node}, [node]
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def values_of(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node and all whose values it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.target in SHAPES:
            continue
        for source in each.all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def writes(graph: torch.fx.Graph) -> bool:
    """True if a tensor that the outputs are computed from is written to."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    kept = needed(output)
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        written = node.args[0]
        while isinstance(written, torch.fx.Node):
            if written in kept:
                return True
            of = getattr(written.target, "_schema", None)
            views = of is not None and any(each.alias_info for each in of.returns)
            written = written.args[0] if views and written.args else None
    return False


def draws(node: torch.fx.Node) -> bool:
    """True for an operation that draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def source_of(node: Any, features: list[torch.fx.Node]) -> int | None:
    """The position of the feature whose numbers a node has in their order; None for none."""
    while node not in features:
        if not isinstance(node, torch.fx.Node) or node.target not in RESHAPING:
            return None
        if node.target is aten._to_copy.default and node.kwargs.get("dtype") != torch.int64:
            return None
        node = node.args[0]
    return features.index(node)


def cast_floats(
    outputs: Iterable[torch.fx.Node], features: list[torch.fx.Node]
) -> list[tuple[torch.fx.Node, int]]:
    """The floats of features that become integers on the way to outputs.

    Each with the position of its feature. Floats that were computed with are the model's own.
    """
    found = {}
    for node in set().union(*map(values_of, outputs)):
        if node.target is not aten._to_copy.default or _is_float(node):
            continue
        floats = source = node.args[0]
        while source.target in RESHAPING | PARTS:
            source = source.args[0]
        if source in features and _is_float(floats):
            found[floats] = features.index(source)
    return sorted(found.items(), key=lambda each: each[1])


def _is_float(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()
