"""Which server gets which routing slot: even shares, with as few moves as it takes. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Owners = npt.NDArray[np.uint16]
Weights = npt.NDArray[np.float64]


def balanced(
    owners: Owners,
    servers: int,
    weights: Weights | None = None,
    tolerance: float = 0.0,
    absent: Sequence[int] = (),
) -> Owners:
    """The owners of slots by which `servers` servers have equal shares, uint16 [n].

    owners: as they are, uint16 [n]; slots of servers beyond the number are shared out. weights: of
    each slot, float64 [n]; None: all weigh the same. tolerance: nothing is moved between servers
    whose shares differ from the mean by this part of it at most. absent: servers that are to have
    none.

    The heaviest slots go first, each from the fullest server to the emptiest, unless that would
    only turn the two about (a greedy rule, R. L. Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969).
    """
    weights = np.ones(owners.size) if weights is None else weights
    new = owners.copy()
    loads = np.bincount(owners, weights, minlength=servers)[:servers].astype(float)
    loads[list(absent)] = np.inf
    mean = math.fsum(weights.tolist()) / (servers - len(absent))
    left = np.flatnonzero((owners >= servers) | np.isin(owners, absent))
    for slot in left[np.argsort(-weights[left], kind="stable")].tolist():
        new[slot] = emptiest = int(np.argmin(loads))
        loads[emptiest] += weights[slot]
    for fullest in np.argsort(-loads, kind="stable").tolist():
        _relieve(new, loads, fullest, weights, mean, tolerance)
    return new


def _relieve(
    owners: Owners, loads: Weights, fullest: int, weights: Weights, mean: float, tolerance: float
) -> None:
    """Move slots from a server to the emptiest ones until its share is the mean."""
    slots = np.flatnonzero(owners == fullest)
    # A slot is moved where both servers are nearer to each other's load then.
    for slot in slots[np.argsort(-weights[slots], kind="stable")].tolist():
        target = int(np.argmin(loads))
        above, below = loads[fullest] - mean, mean - loads[target]
        if max(above, below) <= tolerance * mean or above <= 0:
            return
        if 2 * weights[slot] <= loads[fullest] - loads[target]:
            owners[slot] = target
            loads[fullest] -= weights[slot]
            loads[target] += weights[slot]
