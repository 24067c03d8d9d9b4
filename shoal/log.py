"""Log lines of shoal's processes: one handler, one format, the process's name in it.

Only a process's main calls `configure`; everything else uses
`logging.getLogger(__name__)`. No line holds a credential of a URL.
"""

from __future__ import annotations

import logging
import sys

from shoal.errors import without_secrets

LEVELS = ("debug", "info", "warning", "error")


class _Formatter(logging.Formatter):
    """Leaves credentials out, also of tracebacks and of what other libraries log."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        return without_secrets(super().format(record))


def configure(role: str, level: str) -> None:
    """Write this process's log to standard error.

    role: the process's name, such as "worker-0"; it stands in every line.
    level: one of `LEVELS`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)-7s {role} %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
