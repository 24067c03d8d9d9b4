"""Giving the memory of removed rows back, on a thread, where it is much."""

from __future__ import annotations

import logging
import threading

from shoal.native.rowstore import RowStore

logger = logging.getLogger(__name__)

FREE_SHARE = 0.125
"""Of a table's records: if so many are free, their memory is given back."""


class Compactor:
    """Compacts tables, one at a time."""

    def __init__(self) -> None:
        self._compacting = threading.Lock()

    def consider(self, table: RowStore) -> None:
        """Compact a table if much of it is free, and none is being compacted."""
        free = table.free_rows
        if free <= FREE_SHARE * (free + len(table)) or not self._compacting.acquire(blocking=False):
            return

        def compact() -> None:
            try:
                table.compact()
            except MemoryError:
                logger.warning("no memory to give a table's free memory back")
            finally:
                self._compacting.release()

        threading.Thread(target=compact, name="compact", daemon=True).start()
