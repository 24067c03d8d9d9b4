"""Giving the memory of removed rows back, on a thread, where it is much."""

from __future__ import annotations

import logging
import threading
from collections import deque

from shoal.native.rowstore import RowStore

logger = logging.getLogger(__name__)

FREE_SHARE = 0.125
"""Of a table's records: if so many are free, their memory is given back."""


class Compactor:
    """Compacts tables, one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RowStore] = deque()
        self._running = False

    def consider(self, table: RowStore) -> None:
        """Compact a table if much of it is free, after those that were considered before."""
        free = table.free_rows
        if free <= FREE_SHARE * (free + len(table)):
            return
        with self._lock:
            if table not in self._waiting:
                self._waiting.append(table)
            if self._running:
                return
            try:
                threading.Thread(target=self._compact, name="compact", daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                # The table waits: it comes first where one is considered the next time.
                logger.warning("there is no thread to give free memory back: %s", error)
                return
            self._running = True

    def _compact(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                table = self._waiting.popleft()
            try:
                table.compact()
            except Exception as error:
                logger.warning("a table's free memory is not given back: %r", error)
