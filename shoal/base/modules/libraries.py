"""Libraries that are loaded where they are first used, and need not be installed."""

from __future__ import annotations

import importlib
from typing import Any

from shoal.errors import UserError


def library(name: str, what: str, package: str) -> Any:
    """A library, by the name of its module.

    what: needs it, in words. package: to be installed. Raises UserError if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{what} needs {package}: pip install {package} ({error})") from error
