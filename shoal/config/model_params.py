"""--model-params: values for parameters of the functions in a model's module, by name.

Owns their form as text, which the configuration keeps, and the refusal of one that nobody takes.
Which functions they reach is worker/code/params.py's.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shoal.base.words import near
from shoal.errors import UserError

FLAG = "--model-params"

ARGUMENTS = {
    "loss": "labels, predictions",
    "feed": "dataset, mode, metadata",
    "feed_batch": "columns, mode, metadata",
    "custom_data_reader": "path",
    "training_step": "model, features, labels",
    "scheduler": "optimizer",
}
"""Positional arguments that shoal itself gives to a function; none to the others."""

OF_TORCH = {"optimizer": "parameters"}
"""Those that a function gets too where PyTorch computes with the model."""

GIVEN = {name: text.count(",") + 1 for name, text in ARGUMENTS.items()}
"""How many they are."""

_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""


def params_of(text: str) -> dict[str, Any]:
    """The values by name: `dim=8,layers=[64,32],kind=deep` or, as ElasticDL has it, with `;`.

    A value that is a Python literal is that; any other is a string. Raises UserError.
    """
    found: dict[str, Any] = {}
    for part in _parts(text):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or not name.isidentifier():
            raise UserError(
                f"{FLAG} must be name=value,name=value, and {part.strip()!r} is not: put a value "
                "that holds a comma or semicolon into quotes or brackets"
            )
        if name in found:
            raise UserError(f"{FLAG} has {name} twice: give each name once")
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _parts(text: str) -> Iterator[str]:
    """The text cut at commas and semicolons that are neither in quotes nor in brackets."""
    part, quote, depth = "", "", 0
    for place, each in enumerate(text):
        if quote:
            escaped = (len(part) - len(part.rstrip("\\"))) % 2
            quote = "" if each == quote and not escaped else quote
        elif each in _QUOTES and _begins_value(part, depth):
            # Elsewhere it is an apostrophe, or one that nothing closes.
            quote = each if each in text[place + 1 :] else ""
        elif each in _OPENING:
            depth += 1
        elif each in _CLOSING:
            depth = max(0, depth - 1)
        elif each in ",;" and not depth:
            if part.strip():
                yield part
            part = ""
            continue
        part += each
    if part.strip():
        yield part


def _begins_value(part: str, depth: int) -> bool:
    return depth > 0 or part.rstrip().endswith("=")


def text_of(params: Mapping[str, Any]) -> str:
    """The same as text. Raises UserError for a value that a text cannot have."""
    for name, value in params.items():
        try:
            same = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            same = False
        if not isinstance(name, str) or not name.isidentifier() or not same:
            raise UserError(
                f"{FLAG}: {name}={value!r} cannot be kept in the job's configuration: a name must "
                "be that of a parameter, a value a number, a string, None, or a list, tuple or "
                "dict of these"
            )
    return ",".join(f"{name}={value!r}" for name, value in params.items())


def refusal(file: str, name: str, known: Collection[str]) -> UserError:
    """For a name that no function of a file takes. known: the parameters that there are."""
    there = f"; there are: {', '.join(sorted(known))}" if known else ""
    return UserError(
        f"{FLAG}: no function of {file} has a parameter {name}{near(name, known)}{there}"
    )
