"""The loss of every training step, as a CSV file in the job's folder (--step-losses).

Owns the file. The workers tell of their steps with their heartbeats.
"""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterable
from pathlib import Path

from shoal.proto import shoal_pb2 as pb

COLUMNS = ("worker", "incarnation", "step", "task", "records_done", "version", "loss")


class StepLosses:
    """Appends steps to `path`, each once; shared by threads.

    Steps of one worker are in their order; those of different workers come by heartbeat.
    A file that an earlier master of the job wrote is gone on with.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._last: dict[tuple[int, int], int] = {}
        self._file = path.open("a+", newline="")
        self._file.seek(0)
        whole = 0
        while (line := self._file.readline()).endswith("\n"):  # else cut by a kill
            whole = self._file.tell()
            row = line.split(",")
            if row[0] != COLUMNS[0]:
                self._last[int(row[0]), int(row[1])] = int(row[2])
        self._file.truncate(whole)
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not whole:
            self._writer.writerow(COLUMNS)

    def add(self, worker: int, incarnation: int, steps: Iterable[pb.StepLoss]) -> None:
        """Write those steps of a worker that it has not told of before."""
        with self._lock:
            if self._file.closed:
                return
            last = self._last.get((worker, incarnation), 0)
            for each in steps:
                if each.step > last:
                    last = each.step
                    where = worker, incarnation, last, each.task, each.records_done
                    self._writer.writerow((*where, each.version, repr(each.loss)))
            self._last[worker, incarnation] = last
            self._file.flush()

    def close(self) -> None:
        """Close the file; what comes later is left out."""
        with self._lock:
            self._file.close()
