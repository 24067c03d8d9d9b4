"""How much of a move may be made at once, where servers keep each other's logs. No I/O.

Rows that come to a server are in its log until a checkpoint has them, which another server keeps in
its memory. Where that server is short of memory, which may be why rows move at all, they move in
several steps, each followed by a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shoal.master.job.members.members import ServerMember
from shoal.master.job.moves.placement import Owners
from shoal.master.work.ids import ServerId
from shoal.proto.values.routing import SLOTS, Routing, holder_index

ROOM = 0.5
"""Of a server's free memory: rows that move to it, and rows that training makes, need some too."""

LEAST = SLOTS // 64
"""Slots that a step moves however little memory is free."""


def first_step(before: Routing, owners: Owners, members: Mapping[ServerId, ServerMember]) -> Owners:
    """The owners of slots after the first step to `owners`, uint16 [16384]; these if one will do.

    members: the servers that have slots now, with their memory as they told it last.
    """
    moving = np.flatnonzero(owners != before.owners)
    count = max(LEAST, int(_share(before, owners, moving, members) * moving.size))
    if count >= moving.size:
        return owners
    # Evenly of all that moves, so that each server gets and gives its part.
    places = np.arange(moving.size + 1) * count // moving.size
    now = places[1:] > places[:-1]
    after = before.owners.copy()
    after[moving[now]] = owners[moving[now]]
    return after


def _share(
    before: Routing,
    owners: Owners,
    moving: npt.NDArray[np.int64],
    members: Mapping[ServerId, ServerMember],
) -> float:
    """The part of a move for which the keepers of logs have memory; at least 1: for all."""
    kept: dict[int, float] = {}
    for server, member in members.items():
        from_here = owners[moving[before.owners[moving] == server.index]]
        of_slot = _table_bytes(member) / max(1, before.slots(server.index))
        for target in from_here.tolist():
            keeper = holder_index(target, before.dense)
            kept[keeper] = kept.get(keeper, 0.0) + of_slot
    share = 1.0
    for keeper, size in kept.items():
        told = members[ServerId(keeper)].told
        if told.memory_limit and size:
            free = told.memory_limit - told.memory_bytes
            share = min(share, ROOM * max(0, free) / size)
    return share


def _table_bytes(member: ServerMember) -> int:
    return sum(table.memory_bytes for table in member.told.tables)
