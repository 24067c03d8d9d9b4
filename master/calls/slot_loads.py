"""The amount of work in each routing slot, from the servers' counts.

Asks the servers, for `shoal rebalance`. The servers count (native/answerer.h);
job/moves/placement.py decides which slots move.
"""

from __future__ import annotations

import numpy as np

from shoal.master.calls.servers import ServerConnections, places_of
from shoal.master.job.moves.placement import Weights
from shoal.master.shared_job import SharedJob
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.identity import Identity
from shoal.proto.values.routing import SLOTS

LEAST = 1000
"""Ids that were counted, below which nothing is known of the slots of a server."""


class SlotLoads:
    """Asks the servers of `job`; shared by threads. Close it at the end. identity: the master's."""

    def __init__(self, job: SharedJob, identity: Identity | None = None) -> None:
        self._job = job
        self._servers = ServerConnections(job.config.token, identity)

    def close(self) -> None:
        """Give up what is under way."""
        self._servers.close()

    def weights(self) -> Weights:
        """The work of each slot, float64 [16384], of which the sum is 1.

        Half of it is the share of the ids that pulls asked for, half the share of the rows, which
        is the same for all slots, as ids are spread over them by a hash. Raises WireError for a
        server that does not answer.
        """
        places = self._job.look(lambda job, _: places_of(job.members.servers.values()))
        journal = self._job.position()
        loads = np.zeros(SLOTS)
        answers = dict(self._servers.statuses(places, journal, loads=True))
        if missing := sorted(each.index for each in places.keys() - answers.keys()):
            raise WireError(pb.BAD_REQUEST, f"ps-{missing[0]} does not answer: try again later")
        for status in answers.values():
            counted = np.array(status.loads, np.float64)
            if counted.size == SLOTS and counted.sum() >= LEAST and status.load_seconds > 0:
                loads += counted / status.load_seconds
        even = np.full(SLOTS, 1 / SLOTS)
        total = loads.sum()
        return even if not total else (loads / total + even) / 2
