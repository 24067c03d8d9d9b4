"""--tensorboard-dir: the figures of a job over time as event files, for TensorBoard.

Owns the files and the names in them. job/view/sample.py makes the figures; recorder.py decides when
they are written. No TensorFlow is needed.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from shoal.files.storage import Storage, open_storage
from shoal.master.figures.reporter import Reporter
from shoal.master.job.view.sample import EVALUATION, SCALARS
from shoal.master.work.evaluation.evaluation import EvaluationResult
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.distribution import Distribution
from shoal.proto.values.norms import BOUNDS

logger = logging.getLogger(__name__)

STALENESS = "training/staleness"
"""The histogram of the staleness of the pushes since the one before."""

ROW_NORMS = "tables/row_norm/"
"""Before the name of a table: the histogram of its rows that were looked at since then."""


NO_NORMS: Mapping[tuple[int, str], pb.Distribution] = {}
"""Of servers that look at no pushes."""


class EventFiles:
    """Writes one event file of a job, in the folder of its name below a path or URL.

    A master or a resumption after this one writes a file of its own beside it, which TensorBoard
    shows as the same run. Methods raise OSError.
    """

    def __init__(
        self,
        location: str,
        job_name: str,
        parameters: Mapping[str, Any],
        work: Path,
        tell: Callable[[str], object],
    ) -> None:
        """parameters: shown as hyperparameters. work: a folder of ours, for uploads.

        tell: is told of uploads that fail.

        Raises OSError, and UserError if a variable that a URL names is not set.
        """
        # Late: only jobs with this flag need it.
        from tensorboardX.event_file_writer import EventsWriter

        self._parameters: Mapping[str, Any] | None = parameters
        self._before = Distribution()
        self._norms_before: dict[tuple[int, str], pb.Distribution] = {}
        folder = work if "://" in location else Path(location, job_name)
        storage = open_storage(location).child(job_name) if folder is work else None
        folder.mkdir(parents=True, exist_ok=True)
        # Two masters may begin within the second that the name has.
        self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        path = Path(self._writer._file_name)
        self.uploads = _Uploads(path, storage, tell).__enter__() if storage else None

    def add(
        self,
        when: float,
        sample: Mapping[str, Any],
        staleness: Distribution,
        evaluation: EvaluationResult | None = None,
        row_norms: Mapping[tuple[int, str], pb.Distribution] = NO_NORMS,
    ) -> None:
        """Write the figures of a moment, at the version that the model has then.

        when: seconds since 1970. sample, staleness, row_norms: as `sample_of`, `staleness` and
        `row_norms` give them. evaluation: one that has ended, written at its own version.
        """
        step = sample["version"]
        for name, tag in SCALARS.items():
            if (value := sample.get(name)) is not None and math.isfinite(value):
                self._scalar(tag, value, step, when)
        if evaluation is not None:
            self._hyperparameters([EVALUATION + name for name in evaluation.metrics], when)
            for name, value in evaluation.metrics.items():
                self._scalar(EVALUATION + name, value, evaluation.version, when)
        self._staleness(staleness, step, when)
        self._row_norms(row_norms, step, when)
        self._writer.flush()

    def _scalar(self, tag: str, value: float, step: int, when: float) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        # Not by the library's own function, which changes names.
        self._write(Summary(value=[Summary.Value(tag=tag, simple_value=value)]), step, when)

    def _staleness(self, staleness: Distribution, step: int, when: float) -> None:
        before, self._before = self._before, staleness
        new, total = _since(staleness.histogram, staleness.sum, before.histogram, before.sum)
        # Bucket i has the values of i binary digits.
        limits = [float(2**i - 1) for i in range(len(new))]
        middles = [0.0, *(1.5 * 2 ** (i - 1) - 0.5 for i in range(1, len(new)))]
        self._histogram(STALENESS, new, total, limits, middles, step, when)

    def _row_norms(
        self, norms: Mapping[tuple[int, str], pb.Distribution], step: int, when: float
    ) -> None:
        counts: dict[str, list[int]] = {}
        sums: dict[str, float] = {}
        for (server, table), now in norms.items():
            before = self._norms_before.get((server, table), pb.Distribution())
            new, total = _since(list(now.buckets), now.sum, list(before.buckets), before.sum)
            both = zip_longest(counts.get(table, []), new, fillvalue=0)
            counts[table] = [one + other for one, other in both]
            sums[table] = sums.get(table, 0.0) + total
        # Not replaced whole: a server that is started anew tells nothing for a while.
        self._norms_before |= norms
        limits = [*BOUNDS, BOUNDS[-1] * BOUNDS[-1] / BOUNDS[-2]]
        middles = [BOUNDS[0] / 2, *(math.sqrt(low * high) for low, high in pairwise(limits))]
        for table, new in counts.items():
            self._histogram(
                ROW_NORMS + table, new, sums[table], limits[: len(new)], middles, step, when
            )

    def _histogram(
        self,
        tag: str,
        counts: list[int],
        total: float,
        limits: list[float],
        middles: list[float],
        step: int,
        when: float,
    ) -> None:
        """total: sum of the values. limits: the largest value of each bucket."""
        from tensorboardX.summary import histogram_raw

        if not any(counts):
            return
        squares = sum(count * middle**2 for count, middle in zip(counts, middles, strict=False))
        used = [i for i, count in enumerate(counts) if count]
        least, most = limits[used[0] - 1] if used[0] else 0.0, limits[used[-1]]
        # From the first bucket on that has any: TensorBoard draws it from the least value.
        first = used[0]
        summary = histogram_raw(
            tag, least, most, sum(counts), total, squares, limits[first:], counts[first:]
        )
        self._write(summary, step, when)

    def _hyperparameters(self, metrics: list[str], when: float) -> None:
        """Once, as TensorBoard keeps the first: with the metrics that are to be compared."""
        if self._parameters is None:
            return
        from tensorboardX.summary import hparams

        names = dict.fromkeys(["training/loss", "training/samples_per_second", *metrics], 0.0)
        for summary in hparams(dict(self._parameters), names):
            self._write(summary, 0, when)
        self._parameters = None

    def _write(self, summary: Any, step: int, when: float) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=when, step=step, summary=summary))

    def close(self) -> None:
        """Complete the file, and begin to upload it if it goes to a URL."""
        self._hyperparameters([], time.time())
        self._writer.close()
        if self.uploads is not None:
            self.uploads.__exit__()


class _Uploads(Reporter):
    """Uploads a file to a URL, where files cannot grow: the whole of it each time."""

    SECONDS, END_SECONDS = 30.0, 60.0

    def __init__(self, path: Path, storage: Storage, tell: Callable[[str], object]) -> None:
        super().__init__(f"uploading the event file to {storage.location} failed", tell)
        self.LOST = f"the last upload to {storage.location} does not end"
        self._path, self._storage = path, storage

    def report(self, ended: bool) -> bool:
        """See Reporter."""
        if ended:
            logger.info("the last upload to %s is under way", self._storage.location)
        self._storage.make()
        with self._storage.write(self._path.name) as file:
            file.write(self._path.read_bytes())
        return True


def _since(
    counts: list[int], total: float, before: list[int], total_before: float
) -> tuple[list[int], float]:
    """The growth of a histogram's counts and sum; all of them if the histogram began anew."""
    if len(before) > len(counts):
        return counts, total
    new = [now - then for now, then in zip_longest(counts, before, fillvalue=0)]
    # A server that was started again counts from the start.
    return (counts, total) if min(new, default=0) < 0 else (new, total - total_before)
