"""Spans of time as text: "14d", "36h", "90s".

Owns the units. A span is kept as its text; what counts in seconds asks here.
"""

from __future__ import annotations

import re

UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Seconds in each, the longest first."""

FORM = "a number with a unit: 2w, 14d, 36h, 90m or 600s"

_SPAN = re.compile(r"([0-9]{1,9})([wdhms])")
_LONGEST = 100 * 366 * 86_400


def seconds_of(text: object) -> int:
    """The seconds in a span such as "14d". Raises ValueError for what is none."""
    found = _SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
    seconds = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST:
        raise ValueError(f"{text!r} is not {FORM}")
    return seconds


def span_of(seconds: int) -> str:
    """The shortest text of a span that `seconds_of` reads again; weeks are told in days."""
    unit = next(unit for unit, size in UNITS.items() if unit != "w" and seconds % size == 0)
    return f"{seconds // UNITS[unit]}{unit}"
