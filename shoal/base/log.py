"""Log lines of shoal's processes: one handler, as text or JSON, with job, process and task.

Only a process's main calls `configure`; everything else uses
`logging.getLogger(__name__)`. No line holds a credential of a URL.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from shoal.errors import without_secrets

logger = logging.getLogger(__name__)


class _Fields(logging.Filter):
    """Adds job, role, index and task of this process to each record; lets all pass."""

    def __init__(self, job: str, role: str, index: int | None, task: Callable[[], int]) -> None:
        super().__init__()
        self._fields = {"job": job, "role": role, "index": index}
        self._task = task

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields."""
        vars(record).update(self._fields, task=self._task())
        return True


class _Text(logging.Formatter):
    """Time, level, job, process, task if there is one, logger and message."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the library's name
        """The line without its traceback."""
        fields = vars(record)
        process = fields["role"] if fields["index"] is None else "{role}-{index}".format(**fields)
        who = [fields["job"], process, f"task {fields['task']}" if fields["task"] else ""]
        where = " ".join(each for each in who if each)
        return f"{record.asctime} {record.levelname:<7} {where} {record.name}: {record.message}"

    def usesTime(self) -> bool:  # noqa: N802
        """Always."""
        return True

    def format(self, record: logging.LogRecord) -> str:
        """The line and its traceback, without credentials of other libraries' lines either."""
        return without_secrets(super().format(record))


class _Json(logging.Formatter):
    """An object per line. Fields without a value are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback is one of its fields."""
        fields = vars(record)
        when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        texts = [self.formatException(record.exc_info)] if record.exc_info else []
        texts += [self.formatStack(record.stack_info)] if record.stack_info else []
        line: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "job": fields["job"] or None,
            "role": fields["role"],
            "index": fields["index"],
            "task": fields["task"] or None,
            "message": without_secrets(record.getMessage()),
            "exception": without_secrets("\n".join(texts)) or None,
        }
        return json.dumps({name: value for name, value in line.items() if value is not None})


def configure(
    role: str,
    level: str,
    form: str = "text",
    *,
    job: str = "",
    index: int | None = None,
    task: Callable[[], int] = int,
) -> None:
    """Write this process's log to standard error.

    role: of the process, such as "worker". index: which of them it is; None where there is only
    one. job: its name; "" if the process serves none. task: gives the number of the task that the
    process is at, 0 for none. level and form: the values of --log-level and --log-format.

    With "json", warnings and uncaught exceptions become such lines, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Fields(job, role, index, task))
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if form == "json":
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_of_thread


def _log_uncaught(*error: Any) -> None:
    logger.critical("the process ends", exc_info=error)


def _log_uncaught_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread else "unknown"
        error = (args.exc_type, args.exc_value, args.exc_traceback)
        logger.error("thread %s ends", name, exc_info=error)
