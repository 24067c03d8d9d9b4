"""The declaration of flags: each field of the configuration describes its own flag.

The command line, the Python API and the page of flags are made from these declarations,
so they cannot drift apart. Owns the form of that declaration and the check of a value against it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar, dataclass_transform

from shoal.base.words import check_utf8, near
from shoal.errors import UserError

Subject = TypeVar("Subject")

COMMANDS = ("train", "evaluate", "predict")

_UNITS = {"_seconds": "SECONDS", "_mb": "MB", "_dir": "FOLDER"}
"""Ends of fields' names -> the kind of value, as help shows it."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def subject(options: type[Subject]) -> type[Subject]:
    """A class of fields that JobConfig has.

    It has none of the methods of a dataclass, as JobConfig makes its own: each takes the start of
    every process longer.
    """
    make = dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
    return make(options)


def option(
    help_text: str,
    default: Any = dataclasses.MISSING,
    commands: str = "",
    *,
    value: str = "",
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    repeated: bool = False,
) -> Any:
    """A field with a flag.

    commands: those that have the flag; all if empty. value: the kind of value in help, such as
    FOLDER. choices: the values that it may have; "" among them is the absence of the flag.
    least, above: what it must not be below, and must be above. repeated: the flag may be given
    several times; the field has the values with commas between them.
    """
    metadata = {
        "help": help_text,
        "commands": tuple(commands.split()) or COMMANDS,
        "value": value,
        "choices": choices,
        "least": least,
        "above": above,
        "repeated": repeated,
    }
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """The command-line spelling of a field: batch_size -> --batch-size."""
    return "--" + name.replace("_", "-")


def kind_of(field: dataclasses.Field[Any]) -> type:
    """The type of a field's values."""
    return str if field.default is dataclasses.MISSING else type(field.default)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default as help shows it: 300 for 300.0."""
    default: Any = field.default
    return int(default) if isinstance(default, float) and default.is_integer() else default


def value_of(field: dataclasses.Field[Any]) -> str:
    """The kind of value that help shows behind the flag: N, SECONDS, text|json."""
    said = field.metadata
    if said["choices"]:
        return "|".join(filter(None, said["choices"]))
    ends = [unit for end, unit in _UNITS.items() if field.name.endswith(end)]
    return said["value"] or (ends or ["TEXT" if kind_of(field) is str else "N"])[0]


def check_values(options: Any) -> None:
    """Each field of a dataclass against what it declares.

    Raises UserError naming the flag and what it allows.
    """
    for field in dataclasses.fields(options):
        name, value, said = field.name, getattr(options, field.name), field.metadata
        if isinstance(value, str):
            check_utf8(value, flag(name))
        choices = said.get("choices")
        if choices and value not in choices:
            known = [each for each in choices if each]
            raise UserError(
                f"{flag(name)} must be one of {', '.join(known)}, not {value!r}"
                + near(str(value), known)
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{flag(name)} must be a finite number, not {value}")
        if (least := said.get("least")) is not None and value < least:
            raise UserError(f"{flag(name)} must be at least {least}, not {value}")
        if (above := said.get("above")) is not None and value <= above:
            raise UserError(f"{flag(name)} must be above {above}, not {value}")
