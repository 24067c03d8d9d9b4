"""What the functions of the Python API take, made of the fields that declare it; its messages.

The arguments are the flags of the command line, so help(shoal.train) is made of the same
fields as shoal train --help.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from shoal.config.flags import kind_of
from shoal.config.job import fields_of, option_fields
from shoal.config.options import GROUPS
from shoal.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])

FLAG = re.compile(
    r"""--([a-z][a-z0-9-]*[a-z0-9])(?:=([^\s,;:)]*[^\s,;:).])|[ ]('[^']*'|\d+|tab\b|csv\b))?"""
)
"""A flag in a message, and its value where it cannot be mistaken for the next word."""

SHOWN_VALUE = 60
"""Characters of a wrong value in a message."""


def documented(command: str) -> Callable[[Function], Function]:
    """Gives a function that takes **fields the signature and the help of a command's."""

    def decorate(function: Function) -> Function:
        keyword = inspect.Parameter.KEYWORD_ONLY
        known = fields_of(command)
        given = inspect.signature(function)
        parameters = [
            inspect.Parameter(
                field.name,
                keyword,
                default=(
                    inspect.Parameter.empty
                    if field.default is dataclasses.MISSING
                    else field.default
                ),
                annotation=kind_of(field).__name__,
            )
            for field in known
        ]
        own = [each for each in given.parameters.values() if each.kind is keyword]
        function.__signature__ = given.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *own]
        )
        lines = ["", "Arguments, which are the flags of the command line:"]
        for group in GROUPS:
            fields = [field for field in group.fields if field in known]
            lines += ["", f"{group.title}:"] * bool(fields)
            for field in fields:
                text = f"{field.name}: {in_python(field.metadata['help'])}"
                lines += textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="      ")
        function.__doc__ = inspect.cleandoc(function.__doc__ or "") + "\n" + "\n".join(lines) + "\n"
        return function

    return decorate


def checked(command: str, name: str, value: Any, kind: type) -> Any:
    """The value of an argument. Raises UserError if it is of another type."""
    if name == "csv_columns" and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is kind:
        return value
    if name.endswith("_data") and not isinstance(value, str | int | float | bool):
        what = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
        raise UserError(
            f"{name} is the path of a file, a folder or a pattern (str), not a {what}: write the "
            "data to a file first, such as frame.to_parquet('train.parquet') of pandas, and give "
            f"shoal.{command}({name}='train.parquet')"
        )
    short = reprlib.Repr()
    short.maxstring = short.maxother = SHOWN_VALUE
    raise UserError(f"{name} must be of type {kind.__name__}, not {short.repr(value)}")


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
        text = known[name] is str and not value.startswith("'")
        return f"{name}={value!r}" if text else f"{name}={value}"

    return FLAG.sub(argument, message)
