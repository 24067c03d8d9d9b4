"""Words of messages: numbers with their nouns, lengths of time, sizes, and likely spellings."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from shoal.errors import UserError

_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))

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


def size(count: float) -> str:
    """A number of bytes in its largest unit: 9.8 GB, 12.0 MB, 512 bytes."""
    return part_of(None, count)


def part_of(done: float | None, total: float) -> str:
    """A part of a number of bytes, in the unit of all of it: 3.1 of 9.8 GB."""
    unit, name = next(((u, n) for u, n in _SIZES if total >= u), (1, "bytes"))
    shown = [f"{each / unit:.{int(unit > 1)}f}" for each in (done, total) if each is not None]
    return f"{' of '.join(shown)} {name}"


def one_line(text: str, most: int) -> str:
    """Text of another program, in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 4]} ..."


def shown(name: str) -> str:
    """A name, in quotes where it holds what is not seen, as a space in front."""
    return name if name.split() == [name] and name.isprintable() else repr(name)


def check_utf8(name: str, what: str) -> None:
    """Raises UserError for a name whose bytes are not UTF-8, or were taken for another encoding.

    what: the flag that gives it. Nothing else can be written down, or told another process.
    """
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what}: the name {name!a} is not in UTF-8: set PYTHONUTF8=1 or LC_ALL=C.UTF-8 "
            "for shoal, or rename it"
        ) from error


def near(name: str, known: Iterable[str], most: int = 2) -> str:
    """A question whether one of the names that are known was meant, or nothing.

    most: how many names it has at most. Upper and lower case count as the same.
    """
    folded: dict[str, list[str]] = {}
    for each in known:
        folded.setdefault(each.lower(), []).append(each)
    found = difflib.get_close_matches(name.lower(), [*folded], n=most)
    close = [shown(each) for key in found for each in folded[key]][:most]
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def near_or_all(name: str, known: Sequence[str]) -> str:
    """The hint of `near`; if no name is close, all that are known."""
    return near(name, known) or f"; there are: {', '.join(map(shown, known)) or 'none'}"
