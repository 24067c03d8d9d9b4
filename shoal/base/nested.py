"""Nested dicts, tuples and lists of values, as batches and their specs are, without a framework.

A leaf is whatever is no dict, tuple or list, None included. Values of a dict come in the sorted
order of their keys, as TensorFlow, Keras and JAX have them. Where two keys cannot be compared,
they come in the order of the dict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def mapped(function: Callable[..., Any], nested: Any, *others: Any) -> Any:
    """The results of `function` for each leaf, nested as `nested` is.

    others: nested alike; their leaves are further arguments. The function is called in the order
    of `leaves`. A dict keeps the order of its keys, a named tuple its type.

    Raises ValueError where another one is nested otherwise.
    """
    for other in others:
        _check_alike(nested, other)
    if isinstance(nested, Mapping):
        keys = _in_order(nested)
        of = {key: mapped(function, *(each[key] for each in (nested, *others))) for key in keys}
        return {key: of[key] for key in nested}
    if isinstance(nested, tuple | list):
        made = [mapped(function, *each) for each in zip(nested, *others, strict=True)]
        return _as_sequence(nested, made)
    return function(nested, *others)


def leaves(nested: Any) -> list[Any]:
    """The leaves, from left to right."""
    return [leaf for _, leaf in named_leaves(nested)]


def named_leaves(nested: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves by their paths: keys and positions, as outer/inner; "" for a single leaf."""
    if isinstance(nested, Mapping):
        for key in _in_order(nested):
            yield from named_leaves(nested[key], f"{path}/{key}" if path else str(key))
    elif isinstance(nested, tuple | list):
        for position, each in enumerate(nested):
            yield from named_leaves(each, f"{path}/{position}" if path else str(position))
    else:
        yield path, nested


def _as_sequence(given: Any, values: list[Any]) -> Any:
    """The values as a tuple, named tuple or list, whichever `given` is."""
    if isinstance(given, list):
        return values
    return type(given)(*values) if hasattr(given, "_fields") else tuple(values)


def _in_order(nested: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(nested)
    except TypeError:
        return list(nested)


def _check_alike(nested: Any, other: Any) -> None:
    kinds = [_kind(each) for each in (nested, other)]
    if kinds[0] is not kinds[1]:
        raise ValueError(f"{type(nested).__name__} and {type(other).__name__}")
    if kinds[0] is Mapping and nested.keys() != other.keys():
        raise ValueError(f"{', '.join(map(str, nested))} and {', '.join(map(str, other))}")
    if kinds[0] is not None and len(nested) != len(other):
        raise ValueError(f"{len(nested)} and {len(other)} values")


def _kind(value: Any) -> type | None:
    return next((kind for kind in (Mapping, tuple, list) if isinstance(value, kind)), None)
