"""The help of the functions of the Python API, made of the fields that declare flags; its messages.

The arguments are the flags of the command line, so help(shoal.train) is made of the same
fields as shoal train --help.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from shoal.base.words import near
from shoal.config import model_params, table_options
from shoal.config.flags import kind_of
from shoal.config.groups import data_format
from shoal.config.job import fields_of, option_fields
from shoal.config.options import GROUPS
from shoal.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])

FLAG = re.compile(
    r"""--([a-z][a-z0-9-]*[a-z0-9])(?:=([^\s,;:)]*[^\s,;:).])|[ ]('[^']*'|\d+|tab\b|csv\b))?"""
)
"""A flag in a message, and its value where it cannot be mistaken for the next word."""

LISTS = ("csv_columns", "columns", "fill_missing", "missing_mask", "table")
"""Arguments that may be lists of what the flag has with commas between."""

NUMBERS = ("workers", "servers", "row_cache", "volcano")
"""Arguments that may be a number, or what the flag has."""

MAPPINGS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "model_params": model_params.text_of,
    "table": table_options.text_of,
    "fill_missing": data_format.text_of,
}
"""Arguments that may be dicts, and what makes the flag's text of one."""

OF_RESULTS = ("continue_from", "restore_from")
"""Paths that may be the result of a job."""

BY_VALUE: dict[str, tuple[str, Any]] = {
    "model": ("Any", None),
    "loss": ("Any", None),
    "loss_weights": ("Any", None),
    "optimizer": ("Any", None),
    "training_step": ("Callable[..., Any] | None", None),
    "scheduler": ("Callable[..., Any] | None", None),
    "feed": ("Callable[..., Any] | None", None),
    "feed_batch": ("Callable[..., Any] | None", None),
    "metrics": ("Any", None),
    "callbacks": ("Any", None),
    "class_weight": ("Mapping[int, float] | None", None),
    "label": ("str | None", None),
    "sample_weight": ("str | None", None),
    "validation_split": ("float", 0.0),
}
"""Arguments of train that are no flags: type and default."""

SHOWN: dict[str, tuple[str, Any]] = {
    "display": ("Display | None", None),
    "verbose": ("int | str", "auto"),
    "wait": ("bool", True),
}
"""Those of every command."""

SHOWN_VALUE = 60
"""Characters of a wrong value in a message."""


def signature_of(command: str) -> inspect.Signature:
    """The arguments of a command's function, keyword-only: its own, and its flags.

    Annotations are texts, in the words of `shoal.api.calls`. check has the arguments of train.
    """
    flags_of = "train" if command == "check" else command
    flags = {field.name: (_annotation(field), _default(field)) for field in fields_of(flags_of)}
    own = BY_VALUE if flags_of == "train" else {}
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in (own | flags | SHOWN).items()
    ]
    return inspect.Signature(parameters)


def _annotation(field: dataclasses.Field[Any]) -> str:
    """The types that an argument may have."""
    name, value = field.name, field.metadata["value"]
    if value == "DATA":
        return "Data"
    if value in ("FOLDER", "JOB|FOLDER", "LINK") or name.endswith("_dir"):
        return "AnyPath | JobResult" if name in OF_RESULTS else "AnyPath"
    if name in NUMBERS:
        return "int | str"
    more = [" | Sequence[str]"] * (name in LISTS) + [" | Mapping[str, Any]"] * (name in MAPPINGS)
    return kind_of(field).__name__ + "".join(more)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is dataclasses.MISSING:
        return ""
    return int(field.default) if field.name in NUMBERS else field.default


def documented(command: str) -> Callable[[Function], Function]:
    """Gives a function the arguments of a command, and their help.

    An unknown argument is a UserError then, which names the likely one.
    """

    def decorate(function: Function) -> Function:
        signature = signature_of(command)
        parameters = signature.parameters

        @functools.wraps(function)
        def called(*positional: Any, **given: Any) -> Any:
            for name in given:
                if name not in parameters:
                    hint = near(name, parameters, most=1)
                    raise UserError(f"shoal.{command} has no argument {name}{hint}")
            bound = signature.bind(*positional, **given)
            bound.apply_defaults()
            return function(**bound.arguments)

        returned = inspect.signature(function).return_annotation
        called.__signature__ = signature.replace(  # type: ignore[attr-defined]
            return_annotation=returned
        )
        lines = ["", "Arguments, which are the flags of the command line:"]
        for group in GROUPS:
            fields = [field for field in group.fields if field.name in parameters]
            lines += ["", f"{group.title}:"] * bool(fields)
            for field in fields:
                text = f"{field.name}: {in_python(field.metadata['help'])}"
                lines += textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="      ")
        called.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n" + "\n".join(lines) + "\n"
        return cast(Function, called)

    return decorate


def checked(name: str, value: Any, kind: type) -> Any:
    """The value of an argument. Raises UserError if it is of another type."""
    if name in MAPPINGS and isinstance(value, Mapping):
        value = MAPPINGS[name](value)
    elif name in LISTS and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        value = _joined(name, [*map(str, value)])
    if name in NUMBERS and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is kind:
        return value
    short = reprlib.Repr()
    short.maxstring = short.maxother = SHOWN_VALUE
    raise UserError(f"{name} must be of type {kind.__name__}, not {short.repr(value)}")


def _joined(name: str, parts: Sequence[str]) -> str:
    """The parts of a list as the flag has them. Raises UserError where they would be others."""
    for part in parts:
        if "," in part:
            raise UserError(
                f"{name}: {part!r} holds a comma, which would make it two: give one without"
            )
    return ",".join(parts)


def in_python(message: str) -> str:
    """A message whose flags are arguments: --overwrite is overwrite=True."""
    known = {field.name: kind_of(field) for field in option_fields()}

    def argument(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        if name not in known:
            return found[0]
        if known[name] is bool:
            return f"{name}=True" + (f" {found[3]}" if found[3] else "")
        value = found[2] or found[3]
        if not value:
            return name
        text = known[name] is str and not value.startswith("'") and not value.isdecimal()
        return f"{name}={value!r}" if text else f"{name}={value}"

    return FLAG.sub(argument, message)
