"""The measures of columns of times: how long a day is, and how it follows the earlier one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shoal.data.samples.measures import Statistics, Told, change, has_numbers, quantile_at

_TIMES = (
    datetime(2015, 1, 1, tzinfo=UTC).timestamp(),
    datetime(2100, 1, 1, tzinfo=UTC).timestamp(),
)
"""Integers of such seconds, or parts of them, since 1970 are taken for times."""

_LONGEST = timedelta(days=32).total_seconds()
"""Of the data of one day, if integers in it are to be taken for times."""

_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}

DAY = 86_400.0


@dataclass(frozen=True)
class Clock:
    """The unit of a column of times: how many are a second. days: it has whole days."""

    per_second: float
    days: bool = False

    def seconds(self, value: float) -> float:
        """Seconds since 1970."""
        return value * DAY if self.days else value / self.per_second

    def shown(self, value: float) -> str:
        """Day and hour of UTC, as far as there are such."""
        try:
            moment = datetime.fromtimestamp(self.seconds(value), UTC)
        except (ValueError, OverflowError, OSError):
            return f"{value:.6g}"
        return f"{moment:%Y-%m-%d}" if self.days else f"{moment:%Y-%m-%d %H:%M}"


def clock_of(column: Statistics) -> Clock | None:
    """The unit of a column of times, by its type or by its numbers; None if it has none."""
    kind = str(column["type"])
    if kind.startswith("date32"):
        return Clock(1.0, days=True)
    if kind.startswith("date64"):
        return Clock(1e3)
    if kind.startswith("timestamp["):
        return Clock(_UNITS[kind.removeprefix("timestamp[").partition("]")[0].partition(",")[0]])
    if not has_numbers(column) or "list" in kind:
        return None
    for unit in _UNITS.values():
        least, most = column["min"] / unit, column["max"] / unit
        if _TIMES[0] <= least <= most < _TIMES[1] and 0 < most - least <= _LONGEST:
            return Clock(unit)
    return None


def times(now: Statistics, before: Statistics, clock: Clock) -> Told:
    """The measures of times: how long the data's time is, and how it follows the earlier one."""
    (begin, end), (began, ended) = (
        tuple(quantile_at(each["quantiles"], rank) for rank in (0.01, 0.99))
        for each in (now, before)
    )
    told: Told = {}
    span, was = clock.seconds(end - begin), clock.seconds(ended - began)
    if span != was and was > 0:
        sentence = f"its times span {_long(span)}, and spanned {_long(was)}"
        told["span_change"] = (change(span, was), sentence, 0.0)
    one = DAY if clock.days else 0.0  # a date is the whole day
    length = max(was + one, 1.0)
    gap = (clock.seconds(begin) - clock.seconds(ended) - one) / length
    sentence = (
        f"its times begin at {clock.shown(begin)}, {_long(abs(gap) * length)} "
        f"{'after' if gap > 0 else 'before'} the earlier ones ended, at {clock.shown(ended)}"
    )
    told["gap"] = (gap, sentence, 0.0)
    return told


def _long(seconds: float) -> str:
    """A length of time with two digits."""
    for size, unit in ((DAY, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} seconds"
