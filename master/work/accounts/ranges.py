"""Sets of whole numbers as ranges [start, end), sorted and apart from each other.

Owns the arithmetic; what the numbers count is their users' to know. Plain tuples: they are
part of a job's state.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def union(*parts: Iterable[Range]) -> Ranges:
    """All numbers that are in one of these; empty and overlapping ranges are fine."""
    joined: list[Range] = []
    for start, end in sorted(each for part in parts for each in part):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        elif end > start:
            joined.append((start, end))
    return tuple(joined)


def minus(whole: Iterable[Range], part: Iterable[Range]) -> Ranges:
    """The numbers of `whole` that are not in `part`."""
    left: list[Range] = []
    away = union(part)
    for start, end in union(whole):
        for first, last in away:
            if last <= start or first >= end:
                continue
            if first > start:
                left.append((start, first))
            start = last
        if end > start:
            left.append((start, end))
    return tuple(left)


def overlap(one: Iterable[Range], other: Iterable[Range]) -> Ranges:
    """The numbers that are in both."""
    first = union(one)
    return minus(first, minus(first, other))


def length(ranges: Iterable[Range]) -> int:
    """Count the numbers in the ranges."""
    return sum(end - start for start, end in ranges)
