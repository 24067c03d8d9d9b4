"""Writes shoal/api/__init__.pyi: the arguments of the Python API, for editors and type checkers.

After a change of a flag: `python tests/docs/signatures.py`.
"""

import inspect
from pathlib import Path

import shoal.api
from shoal.config.flags import COMMANDS

STUB = Path(shoal.api.__file__).with_suffix(".pyi")

HEAD = """\
# Written by tests/docs/signatures.py.
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from shoal.api.calls import AnyPath, Data
from shoal.api.jobs import Job
from shoal.client.show.display import Display
from shoal.result import JobResult
"""


def stub():
    """The text of the file."""
    lines = [HEAD]
    for command in COMMANDS:
        lines += [
            f"@overload\ndef {command}(*, wait: Literal[False], **arguments: Any) -> Job: ..."
        ]
        lines += [f"@overload\ndef {command}(\n    *,"]
        parameters = inspect.signature(getattr(shoal.api, command)).parameters
        for name, each in parameters.items():
            kind = "Literal[True]" if name == "wait" else each.annotation
            default = repr(each.default).replace("'", '"')
            if isinstance(each.default, int) and each.default >= 10**6:
                default = f"{each.default:_}"
            lines.append(f"    {name}: {kind} = {default},")
        lines.append(") -> JobResult: ...")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    STUB.write_text(stub())
