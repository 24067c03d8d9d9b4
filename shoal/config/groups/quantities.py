"""Quantities of Kubernetes as numbers: cores of processors, bytes of memory."""

from __future__ import annotations

import math
import re

QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")

UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTP", 1)
}


def number_of(quantity: str) -> float:
    """The number of a quantity, such as 0.5 for "500m". Raises ValueError if it is no quantity."""
    match = QUANTITY.fullmatch(quantity)
    if match is None:
        raise ValueError(f"{quantity!r} is no quantity")
    return float(match[1]) * UNITS[match[2] or ""]


MOST_MEMORY = 4.0
"""A pod that runs out of memory gets at most so many times what it asked for at first."""


def memory_steps(factor: float) -> int:
    """Count how often a pod's memory may grow by `factor` until it is MOST_MEMORY times as much."""
    return math.ceil(math.log(MOST_MEMORY) / math.log(factor)) if factor > 1 else 0


def grown(memory: str, factor: float, growth: int) -> str:
    """A quantity of memory after so many steps of growth."""
    if growth == 0:
        return memory
    size = number_of(memory) * min(factor**growth, MOST_MEMORY)
    return f"{math.ceil(size / 2**20)}Mi"
