"""The help of the functions of the Python API, made of the fields that declare flags; its messages.

The arguments are the flags of the command line, so help(shoal.train) is made of the same
fields as shoal train --help.
"""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast, get_overloads

from shoal.base.words import near
from shoal.config import data_format, model_params, table_options
from shoal.config.flags import kind_of
from shoal.config.job import option_fields
from shoal.config.options import GROUPS
from shoal.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])

FLAG = re.compile(
    r"""--([a-z][a-z0-9-]*[a-z0-9])(?:=([^\s,;:)]*[^\s,;:).])|[ ]('[^']*'|\d+|tab\b|csv\b))?"""
)
"""A flag in a message, and its value where it cannot be mistaken for the next word."""

LISTS = ("csv_columns", "columns", "fill_missing", "missing_mask", "table")
"""Arguments that may be lists of what the flag has with commas between."""

NUMBERS = ("workers", "servers")
"""Arguments that may be a number, or what the flag has."""

MAPPINGS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "model_params": model_params.text_of,
    "table": table_options.text_of,
    "fill_missing": data_format.text_of,
}
"""Arguments that may be dicts, and what makes the flag's text of one."""

SHOWN_VALUE = 60
"""Characters of a wrong value in a message."""


def documented(
    command: str, like: Callable[..., Any] | None = None
) -> Callable[[Function], Function]:
    """Gives a function, whose arguments are a command's, the help of that command.

    An unknown argument is a UserError then, which names the likely one. The arguments of a
    function with overloads are those of the last one. like: another function of these, which has
    the arguments that this one is to have.
    """

    def decorate(function: Function) -> Function:
        overloads = get_overloads(function)
        signature = inspect.signature(like or (overloads[-1] if overloads else function))
        returned = inspect.signature(function).return_annotation
        signature = signature.replace(return_annotation=returned)
        parameters = signature.parameters

        @functools.wraps(function)
        def called(*positional: Any, **given: Any) -> Any:
            for name in given:
                if name not in parameters:
                    hint = near(name, parameters, most=1)
                    raise UserError(f"shoal.{command} has no argument {name}{hint}")
            bound = signature.bind(*positional, **given)
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        called.__signature__ = signature  # type: ignore[attr-defined]
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
