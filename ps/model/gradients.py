"""The contents of a push, unpacked, and the other values that its effect depends on.

Owns no values: applying a push is tables.py's, unpacking it unpack.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.native import averaging

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Gradients:
    """One push, unpacked.

    tables: position of each table -> (ids int64 [n], gradients float32 [n, dim])
    dense: gradient of the trainable slice and change of the non-trainable one,
        both float32, or None.
    own_pushes: of the pushes that came since the pull, those of the same worker.
    sender: the worker, its incarnation, and the push's sequence.
    table_rates: learning rates of all tables, by position; empty: all have `learning_rate`.
    event_time: microseconds since 1970; None without one.
    """

    tables: dict[int, tuple[Int64, Float32]]
    dense: tuple[Float32, Float32] | None
    learning_rate: float
    pulled_version: int
    pulled_time: float
    modulate_rate: bool = False
    own_pushes: int = 0
    sender: tuple[int, int, int] = (0, 0, 0)
    table_rates: Sequence[float] = ()
    event_time: int | None = None


@dataclass(frozen=True)
class Ticket:
    """The values that a push's effect depends on beside its gradients.

    step: of the optimizers, from 1, of no other push. staleness: in pushes.
    """

    step: int
    staleness: int

    def others(self, push: Gradients) -> int:
        """The pushes of other workers in the staleness of `push`.

        A worker's own pushes since the pull follow one another, as with one worker alone: it
        is those of others that a push is in conflict with.
        """
        return max(0, self.staleness - push.own_pushes)


@dataclass(frozen=True)
class Update:
    """The average of several gradients, as one update of --sync.

    tables, dense, table_rates: as `Gradients`.
    pulled: version and time of the pull of each gradient. event_times: of those that have one.
    """

    tables: dict[int, tuple[Int64, Float32]]
    dense: tuple[Float32, Float32] | None
    learning_rate: float
    pulled: list[tuple[int, float]]
    table_rates: Sequence[float] = ()
    event_times: Sequence[int] = ()


def averaged(gradients: Sequence[Sequence[Gradients]]) -> Update:
    """The average of gradients that were checked.

    gradients: of each the pushes that brought it; at least one. All count alike, and a row
    that some of them lack is divided by their number too. The rates are those of the newest.
    """
    pushes = [push for parts in gradients for push in parts]
    divisor = len(gradients)
    tables = {}
    for position in sorted({position for push in pushes for position in push.tables}):
        rows = [push.tables[position] for push in pushes if position in push.tables]
        tables[position] = averaging.mean_of_rows(rows, divisor)
    dense = None
    if parts := [push.dense for push in pushes if push.dense is not None]:
        gradient, change = (
            averaging.mean_of_vectors(list(vectors), divisor)
            for vectors in zip(*parts, strict=True)
        )
        dense = gradient, change
    newest = max(pushes, key=lambda push: push.pulled_version)
    return Update(
        tables,
        dense,
        newest.learning_rate,
        [(parts[0].pulled_version, parts[0].pulled_time) for parts in gradients],
        newest.table_rates,
        [each[0].event_time for each in gradients if each[0].event_time is not None],
    )
