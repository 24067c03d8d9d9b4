"""How a field of the configuration says what its flag is.

The command line is made of what the fields declare, so a field and its flag cannot
drift apart. Owns the form of that declaration; which fields there are is
job_options.py's and kubernetes_options.py's. Imports nothing of ours.
"""

from __future__ import annotations

import dataclasses
from typing import Any

COMMANDS = ("train", "evaluate", "predict")


def option(
    help_text: str,
    default: Any = dataclasses.MISSING,
    commands: str = "",
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
) -> Any:
    """A field with a flag.

    commands: those that have the flag; all if empty. choices: the values that it may have.
    least, above: what it must not be below, and must be above.
    """
    metadata = {
        "help": help_text,
        "commands": tuple(commands.split()) or COMMANDS,
        "choices": choices,
        "least": least,
        "above": above,
    }
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag(name: str) -> str:
    """The command-line spelling of a field: num_ps -> --num-ps."""
    return "--" + name.replace("_", "-")
