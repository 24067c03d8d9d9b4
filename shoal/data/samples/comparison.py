"""A day's statistics against an earlier day's: each expectation that does not hold, in a sentence.

Owns which measures are held against which limits, and the sentences. The measures are measures.py's
and times.py's, the limits shoal/config/expected.py's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.words import counted
from shoal.config.expected import ABSOLUTE, Expected, Limit
from shoal.data.samples.analysis import FORMAT
from shoal.data.samples.measures import (
    DEVIATIONS,
    OFTEN,
    Statistics,
    Told,
    change,
    deviation,
    distribution,
    frequent,
    has_numbers,
    is_rate,
    kind_of,
    mean_lengths,
    missing_share,
    names_records,
    only_value,
    outside,
    quantile_at,
    rate,
    scale,
    share_of_others,
)
from shoal.data.samples.times import clock_of, times
from shoal.errors import UserError


@dataclass(frozen=True)
class Finding:
    """An expectation that does not hold. column: "" for the data. limit: "" for what has none."""

    column: str
    sentence: str
    limit: str = ""

    def __str__(self) -> str:
        what = f"column {self.column!r}: " if self.column else ""
        return f"{what}{self.sentence}{f' (expected: {self.limit})' if self.limit else ''}"


@dataclass
class Comparison:
    """findings: what does not hold. notes: what a user may want to know."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_statistics(path: str, flag: str) -> dict[str, Any]:
    """The statistics in a file of `shoal analyze`. Raises UserError naming the flag."""
    try:
        told = json.loads(Path(path).read_text())
    except OSError as error:
        raise UserError(f"{flag}: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{flag}: {path} is not JSON, as shoal analyze writes it") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise UserError(
            f"{flag}: {path} was not written by shoal analyze: its format is not {FORMAT}"
        )
    if not _is_whole(told):
        raise UserError(f"{flag}: {path} was changed since shoal analyze wrote it: write it again")
    return told


def _is_whole(told: Mapping[str, Any]) -> bool:
    """True if all is there that is compared."""
    columns = told.get("columns")
    if not isinstance(told.get("records"), int) or not isinstance(columns, dict):
        return False
    try:
        for each in columns.values():
            words = each.get("vocabulary", {"values": [], "counts": [], "complete": True})
            numbers = [each["min"], each["max"], each["mean"]] if "quantiles" in each else []
            sizes = [each["values"], each["missing"], each["distinct"], *words["counts"]]
            np.asarray([*sizes, *numbers, *each.get("quantiles", [])], np.float64)
            words["complete"], each["type"], {*words["values"]}
            if len(words["values"]) != len(words["counts"]) or min(sizes) < 0:
                return False
    except (LookupError, TypeError, ValueError, AttributeError):
        return False
    return True


def compare(
    now: Mapping[str, Any], before: Mapping[str, Any] | None, expected: Expected
) -> Comparison:
    """Hold a day's statistics against the limits, and against an earlier day's.

    before: None without one. Raises UserError if a limit names no column, or asks a column for
    what it has not.
    """
    found = Comparison()
    earlier = {} if before is None else before["columns"]
    expected.check_columns(list(dict.fromkeys([*now["columns"], *earlier])))
    if before is not None:
        found.findings += _same(now, before)
    for limit in expected.of():
        found.findings += _of_data(limit, now, before)
    for name in dict.fromkeys([*earlier, *now["columns"]]):
        if name in expected.free:
            continue
        if name not in now["columns"]:
            found.findings.append(Finding(name, "it is not there any more"))
            continue
        if before is not None and name not in earlier:
            found.notes.append(f"column {name!r} is new, and compared with nothing")
        column = _Column(name, now["columns"][name], earlier.get(name))
        column.hold(list(expected.of(name)), found)
    return found


def _same(now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Finding]:
    same = (now["records"], now["columns"]) == (before["records"], before["columns"])
    if now["records"] and same:
        yield Finding("", "all statistics are the earlier ones: are they the same data?")


def _of_data(
    limit: Limit, now: Mapping[str, Any], before: Mapping[str, Any] | None
) -> Iterator[Finding]:
    records = now["records"]
    if limit.measure == "records":
        if not limit.condition.holds(records):
            yield Finding("", f"there are {counted(records, 'record')}", str(limit))
    elif before is not None and not limit.condition.holds(change(records, before["records"])):
        was = before["records"]
        yield Finding("", f"there are {counted(records, 'record')}, and were {was:,}", str(limit))


class _Column:
    """A column of both days, or of today alone."""

    def __init__(self, name: str, now: Statistics, before: Statistics | None) -> None:
        self._name, self._now, self._before = name, now, before

    def hold(self, limits: list[Limit], found: Comparison) -> None:
        """Add what does not hold."""
        told = self._today(limits)
        if self._before is not None:
            reason = self._incomparable(self._before)
            if reason:
                found.findings.append(Finding(self._name, reason))
            else:
                told |= self._against(self._before)
        for limit in limits:
            if limit.measure not in told:
                if limit.column and limit.measure not in ABSOLUTE and told:
                    found.notes.append(f"column {self._name!r} has no {limit.measure}")
                continue
            value, sentence, chance = told[limit.measure]
            # Chance only ever lets more pass.
            kept = value - chance if limit.condition.comparison[0] == "<" else value + chance
            if not limit.condition.holds(kept):
                found.findings.append(Finding(self._name, sentence, str(limit)))

    # ------------------------------------------------------------ today alone

    def _today(self, limits: list[Limit]) -> Told:
        """The measures of today that a limit asks for. Raises UserError for one it cannot have."""
        told: Told = {}
        for measure in {limit.measure for limit in limits} & set(ABSOLUTE):
            value = self._measure(measure)
            if value is None:
                if any(limit.measure == measure and limit.column for limit in limits) and (
                    self._now["values"] and not has_numbers(self._now)
                ):
                    raise UserError(
                        f"--expect: column {self._name!r} of type {self._now['type']} has no "
                        f"{measure}"
                    )
                value = math.nan  # of no value at all
                if not any(limit.measure == measure and limit.column for limit in limits):
                    continue  # of all columns of numbers, and this is none
            told[measure] = (value, f"its {measure} is {value:.6g}", 0.0)
        return told

    def _measure(self, measure: str) -> float | None:
        if measure == "missing":
            return missing_share(self._now)
        if measure == "median":
            quantiles = self._now.get("quantiles")
            return None if quantiles is None else quantile_at(quantiles, 0.5)
        value = self._now.get(measure)
        return None if value is None else float(value)

    # ------------------------------------------------------------ against the earlier day

    def _incomparable(self, before: Statistics) -> str:
        """The reason, in a sentence, why there is nothing to compare; "" if there is."""
        now = self._now
        if not now["values"] and before["values"]:
            return f"all values are missing, and {before['values']:,} were there"
        kinds = kind_of(now), kind_of(before)
        if now["values"] and before["values"] and kinds[0] != kinds[1]:
            return f"it is of type {now['type']}, and was of {before['type']}"
        if (
            now["distinct"] == 1 < before["distinct"]
            and share_of_others(before) * now["values"] >= OFTEN
        ):
            return f"it has one value only, {only_value(now)}, and had {before['distinct']:,}"
        return ""

    def _against(self, before: Statistics) -> Told:
        now = self._now
        told: Told = {}
        share, was = missing_share(now), missing_share(before)
        sentence = f"{share:.1%} of the values are missing, and {was:.1%} were"
        told["missing_rise"] = (share - was, sentence, DEVIATIONS * deviation(was, now, before))
        if not now["values"] or not before["values"]:
            return told
        if lengths := mean_lengths(now, before):
            sentence = f"lists have {lengths[0]:.4g} elements on average, and had {lengths[1]:.4g}"
            told["length_change"] = (change(*lengths), sentence, 0.0)
        if (clock := clock_of(before)) is not None:
            return told | times(now, before, clock)
        if is_rate(now) and is_rate(before):
            return told | rate(now, before)
        if names_records(now) and names_records(before):
            return told
        several: list[Callable[..., Told]] = [frequent, distribution, scale, outside]
        for measures in several:
            for name, each in measures(now, before).items():
                if name not in told or each[0] - each[2] > told[name][0] - told[name][2]:
                    told[name] = each
        return told
