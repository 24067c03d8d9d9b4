"""Resources and quantities of Kubernetes, as texts and as numbers of cores and bytes."""

from __future__ import annotations

import math
import re

from shoal.errors import UserError

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


def parts_of(flag: str, text: str, form: str) -> dict[str, str]:
    """The values of NAME=VALUE,... by name. form: that of one, for the error.

    Raises UserError naming the flag.
    """
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if not name or not value:
            raise UserError(f"{flag}: {part!r} is not {form}")
        if name in found:
            raise UserError(f"{flag} has {name} twice: give it once")
        found[name] = value
    return found


def resource_of(name: str) -> str:
    """The resource as Kubernetes calls it, of which gpu is short for one."""
    return "nvidia.com/gpu" if name == "gpu" else name


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
