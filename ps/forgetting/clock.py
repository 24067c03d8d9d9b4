"""A server's event clock, and the event times of its steps.

The clock is the highest event time of the pushes so far, a function of the pushes alone. No row
has a time: it has the step of its last push, and a list of some (step, time) per table that
expires turns a step into a time, to a 64th of the table's span. Owns both, and what is done about
times that jump. Removing rows is sweeps.py's. No I/O, no threads.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shoal.native.between import NEVER, Between

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import ClockState

Int64 = npt.NDArray[np.int64]

RESOLUTION = 64
"""Steps of a table's list within its span."""

SECOND = 1_000_000
"""In microseconds, as all times here are."""

CONFIRMING = 100
"""Pushes in a row that confirm a jump of the clock."""

LEAP = 4
"""Of the shortest span of a table, the part by which the clock goes on without being confirmed."""


@dataclass
class Timeline:
    """The known times of the steps, for one table.

    span: after which its rows expire. entries: (step, time), rising in both: all pushes before
    the step had the clock at that time or earlier. base: of the clock when the last entry was
    made. swept: the step up to which everything has been removed. planned: step of the last entry
    when a sweep was planned last.
    """

    span: int
    entries: list[tuple[int, int]] = field(default_factory=list)
    base: int = 0
    swept: int = 0
    planned: int = 0

    @property
    def resolution(self) -> int:
        """By how much an age may be off."""
        return max(1, self.span // RESOLUTION)

    def advance(self, step: int, before: int, now: int) -> None:
        """The clock went on from `before` to `now`, by the push of `step` or after it."""
        if now < self.base + self.resolution:
            return
        self.entries.append((step, before))
        self.base = now
        # What may expire is before the last entry that is old enough.
        first = self._expired(now)
        del self.entries[: max(0, first - 1)]

    def cut(self, now: int) -> int:
        """The step before which every row is older than the span; 0 for none."""
        count = self._expired(now)
        return self.entries[count - 1][0] if count else 0

    def due(self, now: int) -> bool:
        """True if a sweep is to be planned: at most one for each entry."""
        return bool(
            self.entries and self.entries[-1][0] > self.planned and self.cut(now) > self.swept
        )

    def until(self, now: int) -> int:
        """The first time at which there is another entry, or a sweep falls due that is not."""
        entry = self.base + self.resolution
        if self.due(now) or not self.entries or self.entries[-1][0] <= self.planned:
            return entry
        place = bisect_right(self.entries, self.swept, key=lambda entry: entry[0])
        return min(entry, self.entries[place][1] + self.span)

    def latest(self, step: int, now: int) -> int:
        """A time at which, or shortly before which, the push of `step` was."""
        place = bisect_right(self.entries, step, key=lambda entry: entry[0])
        return self.entries[place][1] if place < len(self.entries) else now

    def moved(self, steps: Int64, of: Timeline, now: int, end: int) -> Int64:
        """The steps of rows that are to be rows of this list, int64 [n].

        of, now: the list that they are of, and its clock. end: the last step there is. No row
        becomes older by it, and none younger by more than an entry's worth. A step that will do
        stays as it is: so all stay where the lists are the same.
        """
        theirs = np.array([step for step, _ in of.entries], np.int64)
        times = np.array([time for _, time in of.entries] + [now], np.int64)
        latest = times[np.searchsorted(theirs, steps, "right")]
        ours = np.array([step for step, _ in self.entries], np.int64)
        place = np.searchsorted(np.array([time for _, time in self.entries]), latest, "left")
        first = np.concatenate(([0], ours))[place]
        last = np.concatenate((ours - 1, [end]))[place]
        return np.clip(steps, first, np.maximum(first, last)).astype(np.int64)

    def _expired(self, now: int) -> int:
        """The number of entries that are at least a span before `now`."""
        return bisect_right(self.entries, now - self.span, key=lambda entry: entry[1])


@dataclass
class Jump:
    """Times beyond what is taken without being confirmed.

    step: of the first push. least: the lowest of their times. count: of pushes in a row.
    """

    step: int
    least: int
    count: int


class EventClock:
    """The clock of one server.

    Its time moves without it by pushes that are plain: see native/between.h and `until`.

    lines: of each table that expires, by its position. jump: what is not confirmed yet.
    """

    def __init__(self, spans: dict[int, int], between: Between | None = None) -> None:
        """spans: microseconds after which rows expire, by the table's position.

        between: has the time; None: nobody else moves it.
        """
        self._between = between or Between()
        self.lines = {position: Timeline(span) for position, span in spans.items()}
        self.jump: Jump | None = None
        self.leap = min(spans.values()) // LEAP if spans else 0

    @property
    def now(self) -> int | None:
        """Microseconds since 1970; None before the first push that has a time."""
        return self._between.now

    @now.setter
    def now(self, time: int | None) -> None:
        self._between.now = time

    @property
    def until(self) -> int:
        """The time from which on a push does more than to move the clock, as far as it is known."""
        now = self.now
        if now is None or self.jump is not None:
            return -NEVER
        return min((line.until(now) for line in self.lines.values()), default=NEVER)

    def note(self, step: int, time: int) -> None:
        """The push of `step`, the next one, has this event time."""
        if self.now is None:
            self.now = time
            for line in self.lines.values():
                line.base = time
            return
        ahead = time - self.now
        if self.leap and ahead > self.leap:
            step, time = self._jumped(step, time)
        elif ahead >= -self.leap:
            # Of the time the clock is at: the one before was an exception. What is far behind,
            # as of a worker that fills in the past, says nothing of that.
            self.jump = None
        behind = self.leap and ahead < -self.leap
        self._between.behind = self._between.behind + 1 if behind else 0
        if time > self.now:
            before, self.now = self.now, time
            for line in self.lines.values():
                line.advance(step, before, time)

    def _jumped(self, step: int, time: int) -> tuple[int, int]:
        """Returns the step and the time from which on the clock is there; its own before that."""
        assert self.now is not None
        if self.jump is None:
            self.jump = Jump(step, time, 0)
        jump = self.jump
        jump.count += 1
        jump.least = min(jump.least, time)
        if jump.count < CONFIRMING:
            return step, self.now
        self.jump = None
        return jump.step, jump.least

    @property
    def doubt(self) -> str:
        """The reason why nothing expires at the moment, in words; "" if all is as usual."""
        if self.jump is not None:
            assert self.now is not None
            ahead = _days(self.jump.least - self.now)
            return (
                f"the event time of {self.jump.count} pushes is {ahead} ahead of those before: no "
                f"row expires until {CONFIRMING} in a row are"
            )
        if (behind := self._between.behind) >= CONFIRMING:
            return (
                f"the event time of the last {behind} pushes is more than "
                f"{_days(self.leap)} behind the latest of all: no row expires until it has come "
                "there"
            )
        return ""

    def state(self) -> ClockState:
        """All of it, for `restore`."""
        jump = self.jump
        return {
            "now": self.now,
            "jump": None if jump is None else [jump.step, jump.least, jump.count],
            "behind": self._between.behind,
            "lines": [
                {
                    "table": position,
                    "span": line.span,
                    "entries": [[step, time] for step, time in line.entries],
                    "base": line.base,
                    "swept": line.swept,
                    "planned": line.planned,
                }
                for position, line in self.lines.items()
            ],
        }

    def restore(self, saved: ClockState) -> None:
        """Go on from what `state` gave, of a clock of the same tables.

        A table whose span is another now keeps its list, with ages as exact as they were.
        """
        self.now = saved["now"]
        self.jump = None if saved["jump"] is None else Jump(*saved["jump"])
        self._between.behind = saved["behind"]
        for line in self.lines.values():
            line.base = self.now or 0
        for each in saved["lines"]:
            if each["table"] not in self.lines:
                continue
            line = self.lines[each["table"]]
            line.entries = [(step, time) for step, time in each["entries"]]
            line.base = each["base"]
            if line.span == each["span"]:
                line.swept, line.planned = each["swept"], each["planned"]


def of_other_rows(state: ClockState) -> ClockState:
    """The state, changed in place, for a server with other rows: none of them was swept."""
    for line in state["lines"]:
        line["swept"] = line["planned"] = 0
    return state


def _days(time: int) -> str:
    days = time / (86_400 * SECOND)
    return f"{days:,.1f} days" if days >= 1 else f"{time / (3_600 * SECOND):,.1f} hours"
