"""Which ids a batch needs of each table: deduplicated, grouped by server. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.native import ids as native_ids
from shoal.proto.values.routing import Routing

Int64 = npt.NDArray[np.int64]

_PROBED = 16
"""Ids that are compared first: tables of different columns differ in the first few."""


@dataclass(frozen=True)
class TableIds:
    """The ids that one batch needs of one table.

    unique: int64 [u], grouped by server.
    offsets: int64 [servers + 1]; server s gets unique[offsets[s]:offsets[s+1]].
    inverses: one a call of the table's layers, int32, positions in `unique`.
    """

    unique: Int64
    offsets: Int64
    inverses: list[npt.NDArray[np.int32]]


def slice_of_server(offsets: Int64, server: int) -> slice:
    """The slice of ids that are grouped by server which is one server's; offsets: as TableIds'."""
    return slice(int(offsets[server]), int(offsets[server + 1]))


def group_tables(calls: Sequence[Sequence[Int64]], routing: Routing) -> list[TableIds]:
    """The ids of each table, of the calls of its layers.

    Tables that are called with the same ids, such as the linear and the embedding part
    of a DeepFM, share one object: it is made, sent and found once.
    """
    grouped: list[TableIds] = []
    for own in calls:
        same = next((i for i in range(len(grouped)) if _alike(calls[i], own)), None)
        grouped.append(group_ids(own, routing) if same is None else grouped[same])
    return grouped


def _alike(calls: Sequence[Int64], others: Sequence[Int64]) -> bool:
    pairs = [pair for pair in zip(calls, others, strict=False) if pair[0] is not pair[1]]
    return (
        len(calls) == len(others)
        and all(a.size == b.size for a, b in pairs)
        and all(np.array_equal(a[:_PROBED], b[:_PROBED]) for a, b in pairs)
        and all(np.array_equal(a, b) for a, b in pairs)
    )


def group_ids(calls: Sequence[Int64], routing: Routing) -> TableIds:
    """Deduplicate the ids of all calls of one table and group them by server."""
    joined = calls[0] if len(calls) == 1 else np.concatenate(calls)
    unique, inverse, offsets, _ = native_ids.unique_by_server(
        joined, routing.owners, routing.servers
    )
    ends = np.cumsum([call.size for call in calls])
    return TableIds(unique, offsets, np.split(inverse, ends[:-1]))
