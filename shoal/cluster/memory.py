"""Memory of a pod that ran out of it: how much more the next one asks for."""

from __future__ import annotations

import math
import re

MOST_MEMORY = 4.0
"""A pod that runs out of memory gets at most so many times what it asked for at first."""

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGTP", 1)
}


def memory_steps(factor: float) -> int:
    """How often a pod's memory may grow by `factor` before it has MOST_MEMORY times as much."""
    return math.ceil(math.log(MOST_MEMORY) / math.log(factor)) if factor > 1 else 0


def grown(memory: str, factor: float, growth: int) -> str:
    """A quantity of memory after so many steps of growth."""
    number, unit = re.fullmatch(r"([\d.]+)([A-Za-z]*)", memory).groups()  # type: ignore[union-attr]
    if growth == 0 or unit not in _UNITS:
        return memory
    size = float(number) * _UNITS[unit] * min(factor**growth, MOST_MEMORY)
    return f"{math.ceil(size / 2**20)}Mi"
