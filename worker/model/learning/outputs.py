"""Outputs of a model, and their labels and losses, by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def leaves(outputs: Any) -> list[Any]:
    """The leaves of nested outputs; those of a dict, also an ordered one, by its sorted keys."""
    if isinstance(outputs, Mapping):
        return [leaf for name in sorted(outputs) for leaf in leaves(outputs[name])]
    if isinstance(outputs, list | tuple):
        return [leaf for each in outputs for leaf in leaves(each)]
    return [outputs]


def part_of(structure: Any, key: Any) -> Any:
    """The entry of labels or predictions for one output; the whole if it has no entries."""
    if isinstance(structure, Mapping | list | tuple):
        return structure[key]
    return structure


def output_name(key: Any) -> str:
    """An output as reports name it: its key in a dict, or output_0 and so on in a list."""
    return key if isinstance(key, str) else f"output_{key}"
