"""Quantities of Kubernetes as numbers: cores of processors, bytes of memory."""

from __future__ import annotations

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
