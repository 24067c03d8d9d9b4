"""Numbers with their nouns, and lengths of time, as messages have them."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 server`, `2 servers`. plural: if an s is not enough."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """A length of time in its largest unit: 40 s, 12 min, 3 h, 2 d."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
