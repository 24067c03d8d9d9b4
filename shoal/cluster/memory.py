"""Memory of a pod that ran out of it: how much more the next one asks for."""

from __future__ import annotations

import math

from shoal.config.groups.quantities import number_of

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
