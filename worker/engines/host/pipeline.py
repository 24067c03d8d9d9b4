"""From ranges of records to batches of NumPy's arrays, through the user's feed_batch.

Owns calling it: at first on records that tell the spec of its arrays and the columns that it
takes, later on each minibatch, and again record by record to find the one that it raises for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from shoal.base.nested import leaves, mapped
from shoal.config.groups.event_time import EventTime
from shoal.data.columns import records_in
from shoal.data.pieces import part as part_of
from shoal.data.reader import DataReader
from shoal.errors import UserCodeError, UserError
from shoal.files.patience import Patience
from shoal.proto import shoal_pb2 as pb
from shoal.worker.attribution import attribute, part
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines.host.given import (
    FEATURES,
    LABELS,
    WEIGHTS,
    Given,
    lengths,
    type_name,
)
from shoal.worker.engines.host.taken import TakenColumns, UnreadColumnError
from shoal.worker.input.batch import Batch
from shoal.worker.input.channel import read_ahead
from shoal.worker.input.elements import check_lengths, split, wrong_weights
from shoal.worker.input.modes import TRAINING
from shoal.worker.input.records import Records, Run
from shoal.worker.input.shuffling import Shuffled
from shoal.worker.reports.progress import Progress

Columns = dict[str, Any]

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
        arrays: Callable[[Any], Any] = lambda nested: nested,
    ) -> None:
        """Other arguments: as of the Protocol.

        arrays: makes the engine's arrays of nested arrays, contiguous and writable, and of texts
          as objects of bytes; runs in the thread that reads. It may keep their memory.

        Raises UserError for a module without feed_batch, for columns that there are not and for
        what feed_batch must not give; UserCodeError if it raises for each of the first records.
        """
        if module.feed_batch is None:
            raise UserError(
                f"{module.describe('feed')} takes a tf.data.Dataset, which only the engine of "
                "TensorFlow has: write feed_batch(columns, mode, metadata), which gets NumPy "
                "arrays of whole minibatches"
            )
        self._module = module
        self._mode = mode
        self._batch_size = batch_size
        self._progress = progress
        self._engines = arrays
        self._feed = module.describe(module.feed_name)
        self._feed_batch = module.feed_batch
        self._records = Records(reader, module, progress, patience, event_time)
        with self._records.reading("the columns"):
            self._metadata = reader.metadata
        self._parts = [Given(self._feed, part) for part in (FEATURES, LABELS, WEIGHTS)]
        sample, faults = self._records.first(mode)
        self._names = list(sample)
        self._taken: set[str] = set()
        found = self._first_batches(sample, faults, flag)
        self._records.use(frozenset(self._taken), sample, faults)
        self.features_spec, self.labels_spec, self.weights_spec = self._specs = [
            given.spec(list(parts))
            for given, parts in zip(self._parts, zip(*found, strict=True), strict=True)
        ]
        for spec in leaves(self.weights_spec):
            if spec is not None and spec.dtype.kind not in "iuf":
                raise wrong_weights(type_name(spec.dtype), self._feed)

    def _first_batches(
        self, sample: Columns, faults: Mapping[str, UserError], flag: str
    ) -> list[list[Any]]:
        """The parts that the function gives for the first records: for several, and for one.

        Notes the columns that it takes. Raises what it raises, if it does for all of them or for
        each alone, and what is wrong with a column that it takes.
        """
        found: list[list[Any]] = []
        sizes = []
        failed: Exception | None = None
        for columns in chain(self._records.beginnings(sample, faults), (sample,)):
            if len(found) == 2 or (found and columns is sample):
                break
            size = records_in(columns)
            given = TakenColumns(columns, self._names)
            what = self._feed if size > 1 else f"{self._feed}, for a single record,"
            try:
                found.append(self._called(given, what, self.first_source, 0, size))
                sizes.append(size)
            except (UserCodeError, UserError) as error:
                failed = failed or error
                cause = error.__cause__
                if isinstance(cause, KeyError) and cause.args[:1] and cause.args[0] in given.absent:
                    self._records.refuse_column(cause.args[0], f"{self._feed}: {flag}")
            for name in faults.keys() & given.taken:
                raise faults[name] from failed
            self._taken |= given.taken
        if failed is not None and (not found or (len(found) == 1 and sizes[0] > 1)):
            raise failed
        return found

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
                # Of records that came before it, the function took fewer columns.
                self._records.widen(error.names)
                logger.info(
                    "%s takes %s from record %d of %s on: it is read too, from now on",
                    self._feed,
                    ", ".join(sorted(error.names)),
                    records.start + done,
                    records.source,
                )

    def _from(self, records: pb.Range, done: int, shuffled: Shuffled | None) -> Iterator[Batch]:
        """The batches of a range without the first records of it.

        Raises UnreadColumnError where a column is taken that was not read.
        """
        size = records.end - records.start
        begin = done
        run = Run(part(records, begin, size - begin), shuffled)
        pieces = self._records.chunks(run, self._batch_size)
        while True:
            before = self._records.seconds
            try:
                columns = next(pieces, None)
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
                self._progress.spent(self._module.feed_name, time.perf_counter() - began)
            happened = run.times.of(done - begin, count) if self._records.has_times else None
            done += count
            yield Batch(features, labels, count, done - count, done, made_of, happened, weights)

    def _made(self, columns: Columns, run: Run, made_of: pb.Range) -> list[Any]:
        """Features, labels and weights of a minibatch, in the engine's arrays.

        made_of: its positions. Raises UserError and UserCodeError, held against the record that is
        at fault.
        """
        source, first = made_of.source, made_of.start
        with self._records.doing(f"{self._feed}, for a minibatch", source, first, made_of.end):
            try:
                what = f"{self._feed} on {source}, records {first} to {made_of.end - 1},"
                parts = self._fitted(columns, what, source, first)
                return [
                    mapped(lambda array: None if array is None else self._engines(array), each)
                    for each in parts
                ]
            except (UserError, UserCodeError) as error:
                self._raise_at_record(columns, run, made_of)
                attribute(error, made_of)
                raise

    def _raise_at_record(self, columns: Columns, run: Run, made_of: pb.Range) -> None:
        """Call the function again record by record, to name the one that it raises for."""
        for offset in range(records_in(columns)):
            position = made_of.start + offset
            record = run.record(position)
            at = f"{self._feed} on {made_of.source}, record {record}"
            try:
                self._fitted(part_of(columns, offset, offset + 1), at, made_of.source, record)
            except (UserError, UserCodeError) as error:
                attribute(error, part(made_of, offset, 1))
                raise

    def _fitted(self, columns: Columns, what: str, source: str, first: int) -> list[Any]:
        """The parts that the function gives for some records, of this pipeline's spec.

        what: the call, for its exceptions. first: number of the first record, for errors.
        """
        given = TakenColumns(columns, self._names)
        parts = self._called(given, what, source, first, records_in(columns))
        return [
            each.fitted(arrays, spec)
            for each, arrays, spec in zip(self._parts, parts, self._specs, strict=True)
        ]

    def _called(
        self, given: TakenColumns, what: str, source: str, first: int, records: int
    ) -> list[Any]:
        """The parts that the function gives for some columns: arrays, one element a record."""
        try:
            with user_code(what):
                element = self._feed_batch(given, self._mode, self._metadata)
        except (UserError, UserCodeError):
            if not given.unread:
                raise
        if given.unread:
            raise UnreadColumnError(given.unread)
        parts = split(element, self._mode, self._feed)
        made = [each.arrays(part) for each, part in zip(self._parts, parts, strict=True)]
        features, labels, weights = made
        self._parts[0].check_lengths(features, first, records, source)
        others = {"labels": lengths(labels), "weights": lengths(weights)}
        check_lengths(self._feed, source, first, records, records, others)
        return made
