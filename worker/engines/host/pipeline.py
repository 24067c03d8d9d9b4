"""From ranges of records to batches of NumPy's arrays, through the user's feed_batch.

Owns the position of each batch in its range, and finding the record that feed_batch raises for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from shoal.base.nested import mapped
from shoal.config.groups.event_time import EventTime
from shoal.data.columns import records_in
from shoal.data.pieces import part as part_of
from shoal.data.reader import DataReader
from shoal.errors import UserCodeError, UserError
from shoal.files.patience import Patience
from shoal.native.arrays import aligned_empty
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attribute, part
from shoal.worker.code.module import UserModule
from shoal.worker.engines.host.feed_batch import Columns, FeedBatch, Parts
from shoal.worker.engines.host.taken import UnreadColumnError
from shoal.worker.input.batch import Batch
from shoal.worker.input.channel import read_ahead
from shoal.worker.input.modes import TRAINING
from shoal.worker.input.records import Records, Run
from shoal.worker.input.shuffling import Shuffled
from shoal.worker.reports.progress import Progress

logger = logging.getLogger(__name__)


class HostPipeline:
    """Batches of one kind of data (training, evaluation or prediction).

    Each is nested as feed_batch gave it, in the arrays of the engine. features_spec, labels_spec,
    weights_spec: of ArraySpec, nested likewise; None for what a batch does not have.
    """

    def __init__(
        self,
        reader: DataReader,
        module: UserModule,
        mode: str,
        flag: str,
        batch_size: int,
        progress: Progress | None = None,
        patience: Patience | None = None,
        event_time: EventTime | None = None,
        *,
        arrays: Callable[[Any], Any] = lambda array: array,
    ) -> None:
        """Other arguments: as of the Protocol.

        arrays: makes the engine's of nested arrays, which are contiguous, writable, aligned and
          nobody else's; texts are bytes as objects, and what is not given None. Runs in the
          thread that reads.

        Raises UserError for a module without feed_batch, for columns that there are not and for
        what feed_batch must not give; UserCodeError if it raises for each of the first records.
        """
        if module.feed_batch is None:
            raise UserError(
                f"{module.describe('feed')} takes a tf.data.Dataset, which only the engine of "
                "TensorFlow has: write feed_batch(columns, mode, metadata), which gets NumPy "
                "arrays of whole minibatches"
            )
        self._feed_name = module.feed_name
        self._feed = module.describe(module.feed_name)
        self._mode = mode
        self._batch_size = batch_size
        self._progress = progress
        self._arrays = arrays
        self._records = Records(reader, module, progress, patience, event_time)
        self._feed_batch = FeedBatch(module, mode, flag, self._records)
        self.features_spec, self.labels_spec, self.weights_spec = self._feed_batch.specs

    @property
    def first_source(self) -> str:
        """The first source, by name."""
        return self._records.first_source

    def missing(self, source: str, record: int) -> list[str]:
        """The columns that are used and have no value in a record: those of floats, as NaN.

        Raises UserError for a record that cannot be read.
        """
        return self._records.missing(source, record)

    def batches(self, records: pb.Range, shuffled: Shuffled | None = None) -> Iterator[Batch]:
        """The batches of a range, in order.

        shuffled: the order whose positions the range has; None for that of the data.
        Raises UserError for data that cannot be read and for what feed_batch must not give,
        UserCodeError naming the record for an exception in feed_batch.
        """
        made = self._batches(records, shuffled)
        # Training reads ahead in a thread of its own, which sees what takes long.
        return made if self._mode == TRAINING else read_ahead(made, None)

    def _batches(self, records: pb.Range, shuffled: Shuffled | None) -> Iterator[Batch]:
        done = 0
        while True:
            try:
                for batch in self._from(records, done, shuffled):
                    done = batch.first + batch.size
                    yield batch
                return
            except UnreadColumnError as error:
                self._records.widen(error.names)
                logger.info(
                    "%s takes %s from record %d of %s on, and took nothing of it before: it is "
                    "read from now on",
                    self._feed,
                    ", ".join(sorted(error.names)),
                    records.start + done,
                    records.source,
                )

    def _from(self, records: pb.Range, done: int, shuffled: Shuffled | None) -> Iterator[Batch]:
        """The batches of a range without the first `done` records of it.

        Raises UnreadColumnError where a column is taken that was not read.
        """
        size = records.end - records.start
        begin = done
        run = Run(part(records, begin, size - begin), shuffled)
        chunks = self._records.chunks(run, self._batch_size)
        while True:
            before = self._records.seconds
            try:
                columns = next(chunks, None)
            except Exception as error:
                attribute(error, part(records, done, size - done))
                raise
            if columns is None:
                return
            began = time.perf_counter()
            count = records_in(columns)
            made_of = part(records, done, count)
            features, labels, weights = self._made(columns, run, made_of)
            if self._mode == TRAINING and self._progress is not None:
                self._progress.spent("read", self._records.seconds - before)
                self._progress.spent(self._feed_name, time.perf_counter() - began)
            happened = run.times.of(done - begin, count) if self._records.has_times else None
            first, done = done, done + count
            yield Batch(features, labels, count, first, done, made_of, happened, weights)

    def _made(self, columns: Columns, run: Run, made_of: pb.Range) -> Parts:
        """Features, labels and weights of a minibatch, in the engine's arrays.

        made_of: its positions. Raises UserError and UserCodeError, held against the record that is
        at fault.
        """
        source, first, end = made_of.source, made_of.start, made_of.end
        what = f"{self._feed} on {source}, records {first} to {end - 1},"
        with self._records.doing(f"{self._feed}, for a minibatch", source, first, end):
            try:
                return self._fed(columns, what, source, first)
            except (UserError, UserCodeError) as error:
                self._raise_at_record(columns, run, made_of)
                attribute(error, made_of)
                raise

    def _of_engine(self, array: Any) -> Any:
        return None if array is None else self._arrays(array)

    def _fed(self, columns: Columns, what: str, source: str, first: int) -> Parts:
        """The parts that feed_batch gives for some records, in the engine's arrays."""
        parts = self._feed_batch(columns, what, source, first)
        return [self._arrays(mapped(_own, each)) for each in parts]

    def _raise_at_record(self, columns: Columns, run: Run, made_of: pb.Range) -> None:
        """Call feed_batch again record by record, to name the one that it raises for."""
        for offset in range(records_in(columns)):
            record = run.record(made_of.start + offset)
            what = f"{self._feed} on {made_of.source}, record {record}"
            alone = part_of(columns, offset, offset + 1)
            try:
                self._fed(alone, what, made_of.source, record)
            except (UserError, UserCodeError) as error:
                attribute(error, part(made_of, offset, 1))
                raise


def _own(array: Any) -> Any:
    """A copy of an array: the function may go on writing to it, for the next minibatch."""
    if array is None or array.dtype.kind == "O":
        return None if array is None else array.copy()
    own = aligned_empty(array.shape, array.dtype)
    np.copyto(own, array)
    return own
