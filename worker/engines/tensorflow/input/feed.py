"""From ranges of records to batches of tensors, through the user's feed.

Owns the tf.data pipeline and the position of each batch in its range. How records are read is
input/records.py's; what is done with a batch is model/model.py's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from shoal.config.groups.event_time import EventTime
from shoal.data.columns import records_in
from shoal.data.reader import DataReader, Metadata
from shoal.data.samples.samples import blank
from shoal.errors import UserCodeError, UserError
from shoal.files.patience import Patience
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attribute, part
from shoal.worker.code.by_value import Columns
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.tensorflow.input.chunks import MappedChunks, spec_of, tensors_of
from shoal.worker.engines.tensorflow.input.transformations import (
    makes_batches,
    misaligned,
    refusal,
    used_columns,
)
from shoal.worker.input.batch import Batch
from shoal.worker.input.elements import check_lengths, split, wrong_weights
from shoal.worker.input.modes import PREDICTION, TRAINING
from shoal.worker.input.records import Records, Run
from shoal.worker.input.shuffling import Shuffled
from shoal.worker.reports.progress import Progress

PREFETCHED_BATCHES = 2


class InputPipeline:
    """Batches of one kind of data (training, evaluation or prediction).

    Built once, so that feed is traced once; `batches` then runs it on any range.
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
    ) -> None:
        """flag: the command-line flag that names the data; stands in errors.

        progress: of the worker, is told of training's seconds of "read" and of the function, "feed"
          or "feed_batch", as batches are taken; its watch of what a thread is at. None for none.
        patience: with storage that fails while a range is read; None for none.
        event_time: which column has the time of a record; None for none.

        Raises UserError or UserCodeError if feed cannot be applied.
        """
        self._module = module
        self._mode = mode
        self._run = Run(pb.Range())
        self._feed = module.describe(module.feed_name)
        self._batch_size = batch_size
        self._feed_batch = module.feed_batch
        if isinstance(self._feed_batch, Columns):
            # AutoGraph would warn that it cannot convert it.
            self._feed_batch = tf.autograph.experimental.do_not_convert(self._feed_batch)
        # Records in one element of what _chunks gives; None: as the reader's chunks are.
        self._cut = None if module.feed_batch is None else batch_size
        self._records = Records(reader, module, progress, patience, event_time)
        self._sample, faults = self._records.first(mode)
        signature = spec_of(tensors_of(self._sample))
        chunks = tf.data.Dataset.from_generator(
            lambda: map(tensors_of, self._chunks()), output_signature=signature
        )
        with self._records.reading("the columns"):
            metadata = reader.metadata
        try:
            with user_code(self._feed):
                batched = self._fed(chunks, metadata)
        except UserCodeError as error:
            if self._run.error is not None:
                raise self._run.error from error
            # The commonest mistake deserves better than a traceback through tf.data.
            if "Unsupported return value from function passed to" in error.message:
                raise UserError(
                    f"{self._feed} gives map() a function that returns a list, or something else "
                    "that is no tensor: return features as a dict by name, or as a tuple"
                ) from error
            missing = re.search(r"KeyError: ['\"](.+?)['\"]", error.traceback)
            if missing and missing[1] not in metadata.column_names:
                self._records.refuse_column(missing[1], f"{self._feed}: {flag}")
            for name, fault in faults.items():
                if re.search(rf"(['\"]){re.escape(name)}\1", error.traceback):
                    # What it got is a stand-in.
                    raise fault from error
            raise
        taken = used_columns(self._elements, self._given)
        self._records.use(taken, self._sample, faults)
        self._progress = progress
        # Training reads ahead in a thread of its own (channel.py), which sees what takes long.
        self._batched: Iterable[Any] = batched
        if mode != TRAINING:
            self._batched = batched.prefetch(PREFETCHED_BATCHES)
        elif (feed_batch := self._feed_batch) is not None:
            self._batched = MappedChunks(
                self._chunks,
                lambda columns: feed_batch(columns, mode, metadata),
                chunks.element_spec,
            )
        self.features_spec, self.labels_spec, self.weights_spec = split(
            batched.element_spec, mode, self._feed
        )
        for spec in tf.nest.flatten(self.weights_spec):
            dtype = getattr(spec, "dtype", None)
            if spec is not None and not (dtype and (dtype.is_floating or dtype.is_integer)):
                raise wrong_weights(dtype.name if dtype else type(spec).__name__, self._feed)

    @property
    def first_source(self) -> str:
        """The first source, by name."""
        return self._records.first_source

    def _fed(self, chunks: Any, metadata: Metadata) -> Any:
        """The dataset of batches that the user's function makes of chunks of columns.

        Sets `_given`, what the function gets, `_elements`, of which `_raise_at_record` takes one
        a record, and `aligned`.
        """
        feed_batch = self._feed_batch
        if feed_batch is not None:
            self.aligned = True
            self._given = chunks
            self._elements = chunks.map(lambda columns: feed_batch(columns, self._mode, metadata))
            return self._elements
        assert self._module.feed is not None
        records = self._given = chunks.unbatch()
        self._elements = self._module.feed(records, self._mode, metadata)
        if not isinstance(self._elements, tf.data.Dataset):
            raise UserError(
                f"{self._feed} returned {type(self._elements).__name__}, not a tf.data.Dataset"
            )
        if (reason := refusal(self._elements, records)) is not None:
            raise UserError(f"{self._feed}, in mode {self._mode!r}, {reason}")
        if makes_batches(self._elements, records):
            raise UserError(
                f"{self._feed} makes batches in mode {self._mode!r}: remove that. shoal makes the "
                "batches (--batch-size). Code for whole batches belongs in "
                "feed_batch(columns, mode, metadata)"
            )
        what = misaligned(self._elements, records)
        self.aligned = what is None
        if self._mode == PREDICTION and what is not None:
            raise UserError(
                f"{self._feed} {what} in mode 'prediction': predictions could not be "
                "assigned to records. Do so in other modes only"
            )
        with user_code(f"batching what {self._feed} gave"):
            return self._elements.batch(self._batch_size)

    def batches(self, records: pb.Range, shuffled: Shuffled | None = None) -> Iterator[Batch]:
        """The batches of a range, in order.

        shuffled: the order whose positions the range has; None for that of the data.
        Raises UserError for data that cannot be read, UserCodeError naming the
        record for an exception in feed.
        """
        done = 0
        try:
            for batch in self._batches(records, shuffled):
                done = batch.first + batch.size
                yield batch
        except Exception as error:
            # The prefetch reads ahead: any of the rest may be at fault.
            rest = records.end - records.start - done
            attribute(error, part(records, done, rest) if self.aligned else records)
            raise

    def _batches(self, records: pb.Range, shuffled: Shuffled | None) -> Iterator[Batch]:
        self._run = run = Run(records, shuffled)
        done = 0
        iterator = iter(self._batched)
        while True:
            began, read = time.perf_counter(), self._records.seconds
            first = records.start + done if self.aligned else records.start
            last = min(first + self._batch_size, records.end) if self.aligned else records.end
            try:
                what = f"{self._feed}, for a minibatch"
                with self._records.doing(what, records.source, first, last):
                    element = next(iterator)
            except StopIteration:
                self._check_whole(run, done)
                return
            except Exception:
                if run.error is not None:
                    raise run.error from None
                self._raise_at_record(records, done)
                raise
            if self._mode == TRAINING and self._progress is not None:
                read = self._records.seconds - read
                self._progress.spent("read", read)
                # Not below 0, where feed itself reads ahead.
                took = max(0.0, time.perf_counter() - began - read)
                self._progress.spent(self._module.feed_name, took)
            features, labels, weights = split(element, self._mode, self._feed)
            size = int(tf.nest.flatten(features)[0].shape[0])
            if self._module.feed_batch is not None:
                self._check_size(records, done, size, labels, weights)
            done += size
            first = done - size
            made_of = part(records, first, size) if self.aligned else records
            happened = None
            if self._records.has_times:
                happened = run.times.of(first, size) if self.aligned else run.times.of_new()
            used_up = done if self.aligned else 0
            yield Batch(features, labels, size, first, used_up, made_of, happened, weights)

    def missing(self, source: str, record: int) -> list[str]:
        """The columns that are used and have no value in a record: those of floats, as NaN.

        Raises UserError for a record that cannot be read.
        """
        return self._records.missing(source, record)

    def _check_whole(self, run: Run, gave: int) -> None:
        """Raises UserError unless each record of a range was read, and as often as the others.

        gave: elements. Whatever the datasets of a feed are: one that keeps something from one task
        to the next does not read all of it.
        """
        records = run.records
        size = records.end - records.start
        if not run.read or run.read % size or (self.aligned and gave != size):
            raise UserError(
                f"{self._feed}, in mode {self._mode!r}, read {run.read} records and gave {gave} "
                f"elements of records {records.start} to {records.end - 1} of {records.source}: a "
                "dataset in it keeps records from one task to the next. Use map(), filter() or "
                "flat_map()"
            )

    def _check_size(
        self, records: pb.Range, done: int, size: int, labels: Any, weights: Any
    ) -> None:
        """Raises UserError if feed_batch gave more or fewer elements than it got records."""
        first = records.start + done
        others = {
            what: [
                each.shape[0]
                for each in tf.nest.flatten(those)
                if each is not None and each.shape.rank and each.shape[0] is not None
            ]
            for what, those in (("labels", labels), ("weights", weights))
        }
        given = min(self._batch_size, records.end - first)
        check_lengths(self._feed, records.source, first, given, size, others)

    def _raise_at_record(self, records: pb.Range, done: int) -> None:
        """Run feed again record by record to name the one that made it raise."""
        what = f"{self._feed} on {records.source}"
        if not self.aligned:
            what += f", records {records.start} to {records.end - 1}"
            with user_code(what):
                for _ in self._batched:
                    pass
            return
        if self._cut is not None:
            self._cut = 1
        iterator = iter(self._elements)
        for position in range(records.start, records.end):
            try:
                with user_code(f"{what}, record {self._run.record(position)}"):
                    next(iterator)
            except UserCodeError as error:
                attribute(error, part(records, position - records.start, 1))
                raise
        # Every record passes alone: they do not fit together.
        if self._cut is not None:
            self._cut = self._batch_size
        first = records.start + done
        with user_code(f"batching what {what} gave from record {first} on"):
            for _ in self._batched:
                pass

    def _chunks(self) -> Iterator[dict[str, Any]]:
        # Runs in a thread of TensorFlow, which would wrap an exception beyond
        # recognition: it is kept here for `batches` to raise.
        run = self._run
        records = run.records
        try:
            if not records.source:
                raise UserError(
                    f"{self._feed} reads the dataset while it is called, and no record is there "
                    "yet: return a dataset that is made of it, as dataset.map() does"
                )
            for columns in self._records.chunks(run, self._cut):
                yield self._completed(columns)
        except Exception as error:
            run.error = error
            raise

    def _completed(self, columns: dict[str, Any]) -> dict[str, Any]:
        """A chunk with something in the columns that were not read."""
        if self._records.used is None:
            return columns
        records = records_in(columns)
        return {
            name: columns[name] if name in columns else blank(column, records)
            for name, column in self._sample.items()
        }
