"""Threads that report the figures of a job. The job neither waits for them nor fails by them.

Owns the thread, its end, and that trouble is told once. What is reported, and when, is of those
that derive from it: recorder.py, tensorboard.py, mlflow_run.py, kubeflow.py.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from shoal.errors import UserError, without_secrets

logger = logging.getLogger(__name__)


class Reporter(ABC):
    """Reports on a thread of its own while it is entered, and once more at the end.

    SECONDS: between two reports. END_SECONDS: for the last one. LOST: logged if it takes longer.
    trouble: what is the matter if a report fails. tell: is told that and why, once for each reason.
    """

    SECONDS: float
    END_SECONDS: float
    LOST: str

    def __init__(self, trouble: str, tell: Callable[[str], object]) -> None:
        self._trouble, self._tell = trouble, tell
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._report_at_times, name=type(self).__name__, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def wait(self) -> None:
        """After it was left: wait for the last report, for a limited time.

        Apart from that, so that the job's result does not wait for it.
        """
        if self._thread.ident is not None:
            self._thread.join(self.END_SECONDS)
            if self._thread.is_alive():
                logger.warning("%s", self.LOST)

    @abstractmethod
    def report(self, ended: bool) -> bool:
        """Report. Returns False if there was nothing to report.

        ended: for the last time. What it raises is told, and the next report tried all the same.
        """

    def pause(self) -> float:
        """Seconds to the next report."""
        return self.SECONDS

    def _report_at_times(self) -> None:
        told, ended = "", False
        while not ended:
            ended = self._ended.is_set()
            try:
                if self.report(ended):
                    told = ""
            except Exception as error:  # of packages that have many
                lines = str(error).strip().splitlines() or [type(error).__name__]
                if told != (told := without_secrets(lines[0])):
                    known = isinstance(error, (OSError, UserError))
                    logger.warning("%s: %s", self._trouble, told, exc_info=not known)
                    self._tell(f"{self._trouble}: {told}")
            if not ended:
                self._ended.wait(self.pause())
