"""The limits of `--expect`: what a day's statistics may be.

Owns the names of measures, their defaults, and the form in which a user changes them.
shoal/data/samples/comparison.py computes the measures.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from shoal.base.words import near
from shoal.config.conditions import Condition, conditions
from shoal.errors import UserError

FLAG = "--expect"

EXAMPLE = "price:psi<=0.5"

ANY = "any"
"""In the place of a measure: nothing is expected of a column."""

ABSOLUTE = ("missing", "distinct", "min", "max", "mean", "median")
"""Measures of a column today, beside `records`."""

DEFAULTS = (
    "records_change<=50%,missing_rise<=5%,psi<=0.2,scale_change<=40%,outside<=1%,overlap>=20%,distinct_change<=50%,"
    "rate_change<=50%,length_change<=50%,span_change<=50%,gap>=-0.1,gap<=7"
)
"""What is expected of a day against an earlier one unless a user says otherwise."""

RELATIVE = tuple(dict.fromkeys(each.metric for each in conditions(DEFAULTS, FLAG, EXAMPLE)))
"""Measures of a day against an earlier one."""

OF_ALL = ("records", "records_change")
"""Measures of the data, not of a column."""


@dataclass(frozen=True)
class Limit:
    """A condition of a measure. column: of which it is; "" for each. own: the user gave it."""

    column: str
    condition: Condition
    own: bool

    @property
    def measure(self) -> str:
        """The name of the measure."""
        return self.condition.metric

    def __str__(self) -> str:
        return f"{self.column}:{self.condition}" if self.column else str(self.condition)

    def replaces(self, other: Limit) -> bool:
        """True if it says of the same what the other says: how much at most, or at least."""
        return (self.measure, self.condition.comparison[0]) == (
            other.measure,
            other.condition.comparison[0],
        )


class Expected:
    """The limits of all columns.

    text: of --expect. compares: whether there is an earlier day. Raises UserError for what is no
    limit, and for a measure that needs an earlier day where there is none.
    """

    def __init__(self, text: str = "", *, compares: bool) -> None:
        defaults = conditions(DEFAULTS, FLAG, EXAMPLE) if compares else ()
        self._limits = [Limit("", each, own=False) for each in defaults]
        self.free: set[str] = set()
        parts = [each.strip() for each in text.split(",")]
        for part in parts:
            column, colon, measure = part.rpartition(":")
            if colon and measure.strip() == ANY:
                self.free.add(column.strip())
                continue
            for condition in conditions(part, FLAG, EXAMPLE):
                self._limits.append(_limit(condition, compares=compares))

    def check_columns(self, known: Collection[str]) -> None:
        """Raise UserError for a column that neither day has."""
        for name in [*sorted(self.free), *(each.column for each in self._limits if each.column)]:
            if name not in known:
                raise UserError(
                    f"{FLAG}: there is no column {name!r}{near(name, known)}; the columns are "
                    f"{', '.join(known)}"
                )

    def of(self, column: str = "") -> Iterator[Limit]:
        """The limits of a column, or of the data as a whole for none."""
        mine = [
            each
            for each in self._limits
            if (each.measure in OF_ALL) == (not column) and each.column in ("", column)
        ]
        for each in mine:
            if not any(_before(each, other) for other in mine if other is not each):
                yield each


def _before(limit: Limit, other: Limit) -> bool:
    """True if the other limit counts in the place of this one."""
    rank = (bool(limit.column), limit.own)
    return other.replaces(limit) and (bool(other.column), other.own) > rank


def _limit(condition: Condition, *, compares: bool) -> Limit:
    column, _, measure = condition.metric.rpartition(":")
    known: Sequence[str] = (*ABSOLUTE, *OF_ALL, *RELATIVE)
    if measure not in known:
        raise UserError(
            f"{FLAG}: in {str(condition)!r}, there is no measure {measure!r}"
            f"{near(measure, known)}; there are {', '.join(sorted(set(known)))}"
        )
    if measure in RELATIVE and not compares:
        raise UserError(
            f"{FLAG}: {measure} compares with an earlier day: name its file with --against"
        )
    if measure in OF_ALL and column:
        raise UserError(f"{FLAG}: {measure} is no measure of a column: leave out {column + ':'!r}")
    condition = Condition(measure, condition.comparison, condition.value)
    return Limit(column.strip(), condition, own=True)
