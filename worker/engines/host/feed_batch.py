"""The user's feed_batch, called with NumPy's columns, for arrays of one spec.

Owns the first calls, which tell the spec of its arrays and the columns that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from shoal.base.feeding import giving_arrays
from shoal.base.nested import leaves
from shoal.data.columns import records_in
from shoal.errors import UserCodeError, UserError
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
from shoal.worker.input.elements import check_lengths, split, wrong_weights
from shoal.worker.input.modes import PREDICTION
from shoal.worker.input.records import Records

Columns = dict[str, Any]

Parts = list[Any]
"""Features, labels and weights, nested arrays or their specs; None for what there is not."""


class FeedBatch:
    """Calls the function. specs: of what it gives."""

    def __init__(self, module: UserModule, mode: str, flag: str, records: Records) -> None:
        """Call it with the first records, and have nothing read from now on but what it takes.

        flag: names the data in errors. Raises UserError for columns that there are not and for
        what it must not give, UserCodeError if it raises for each of the first records.
        """
        assert module.feed_batch is not None
        self._function = module.feed_batch
        self._name = module.describe(module.feed_name)
        self._mode = mode
        self._flag = flag
        self._records = records
        with records.reading("the columns"):
            self._metadata = records.reader.metadata
        self._parts = [Given(self._name, part) for part in (FEATURES, LABELS, WEIGHTS)]
        sample, faults = records.first(mode)
        self._columns = list(sample)
        self._taken: set[str] = set()
        found = self._first(sample, faults)
        records.use(frozenset(self._taken), sample, faults)
        self.specs: Parts = [
            given.spec(list(each))
            for given, each in zip(self._parts, zip(*found, strict=True), strict=True)
        ]
        for spec in leaves(self.specs[-1]):
            if spec is not None and spec.dtype.kind not in "iuf":
                raise wrong_weights(type_name(spec.dtype), self._name)

    def __call__(self, columns: Columns, what: str, source: str, first: int) -> Parts:
        """The parts that the function gives for some records, of the specs.

        what: the call, for its exceptions. first: number of the first record, for errors.
        Raises UserError, UserCodeError; UnreadColumnError for columns that were not read.
        """
        given = TakenColumns(columns, self._columns)
        parts = self._called(given, what, source, first, records_in(columns))
        return [
            each.fitted(arrays, spec)
            for each, arrays, spec in zip(self._parts, parts, self.specs, strict=True)
        ]

    def _first(self, sample: Columns, faults: Mapping[str, UserError]) -> list[Parts]:
        """The parts that the function gives for several records, and for one alone.

        Of the first records those that can be read; where there is none, of the sample.
        """
        together: Parts | Exception | None = None
        alone: list[Parts | Exception] = []
        good: list[Parts] = []
        for columns in self._records.beginnings(faults):
            outcome = self._tried(columns, faults)
            if records_in(columns) > 1:
                together = outcome
            else:
                alone.append(outcome)
            if isinstance(outcome, list):
                good.append(outcome)
            if len(good) == 2 and not _failed(together):
                return good
        failed = [each for each in alone if _failed(each)]
        if isinstance(together, list) and alone and len(failed) == len(alone):
            raise failed[0]  # the last minibatch of a task may have one record
        if _failed(together) and not failed:
            raise together  # no record is at fault
        if good:
            return good[:2]
        failed = [each for each in (together, *alone) if _failed(each)]
        for each in (together, *alone):
            if not failed and isinstance(each, UnreadColumnError):
                self._records.check_first(each.names)
        last = self._tried(sample, faults)
        if isinstance(last, Exception):
            raise failed[0] if failed else last
        return [last]

    def _tried(self, columns: Columns, faults: Mapping[str, UserError]) -> Parts | Exception:
        """The parts that the function gives for some of the first records, or what it raises.

        Notes the columns that it takes. Raises UserError for one that there is not, or faulty.
        """
        size = records_in(columns)
        what = self._name if size > 1 else f"{self._name}, for a single record,"
        given = TakenColumns(columns, self._columns)
        outcome: Parts | Exception
        try:
            outcome = self._called(given, what, self._records.first_source, 0, size)
        except (UserCodeError, UserError, UnreadColumnError) as error:
            outcome = error
        self._taken |= given.taken
        for name in faults.keys() & given.taken:
            raise faults[name]
        cause = getattr(outcome, "__cause__", None)
        if isinstance(cause, KeyError) and cause.args[:1] and cause.args[0] in given.absent:
            self._records.refuse_column(cause.args[0], f"{self._name}: {self._flag}")
        return outcome

    def _called(
        self, given: TakenColumns, what: str, source: str, first: int, records: int
    ) -> Parts:
        """The parts that the function gives for some columns: arrays, one element a record."""
        try:
            with user_code(what), giving_arrays():
                element = self._function(given, self._mode, self._metadata)
        except (UserError, UserCodeError):
            if not given.unread:
                raise
        if given.unread:
            raise UnreadColumnError(given.unread)
        parts = split(element, self._mode, self._name)
        if self._mode == PREDICTION:
            made = [self._parts[0].arrays(parts[0]), None, None]
        else:
            made = [each.arrays(part) for each, part in zip(self._parts, parts, strict=True)]
        features, labels, weights = made
        self._parts[0].check_lengths(features, first, records, source)
        others = {"labels": lengths(labels), "weights": lengths(weights)}
        check_lengths(self._name, source, first, records, records, others)
        return made


def _failed(outcome: Any) -> TypeGuard[Exception]:
    """True if the function raised, with all columns that it took."""
    return isinstance(outcome, Exception) and not isinstance(outcome, UnreadColumnError)
