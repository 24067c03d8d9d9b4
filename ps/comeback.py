"""A server that is started again: what it restores, and which workers have met it since.

Owns the choice of the checkpoint, and the count of updates that are lost: those that the
server's earlier incarnation acknowledged after the checkpoint. Reading a share is
checkpoint.py's.
"""

from __future__ import annotations

import logging
import threading

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.manifests import CheckpointError
from shoal.checkpoints.storage import open_storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing
from shoal.ps.checkpoint import restore
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import ServerModel

logger = logging.getLogger(__name__)


def newest_share(
    plan: pb.RestoreReply, server: int, routing: Routing, pushes: PushRegister
) -> tuple[ServerModel | None, str]:
    """The model of the newest checkpoint of `plan` that is good, and what was done in words.

    None if there is none.
    """
    refused = []
    for number, nonce in zip(plan.checkpoints, plan.nonces, strict=True):
        try:
            checkpoint = Checkpoint(open_storage(plan.root), number, nonce)
            model = restore(checkpoint, server, routing, pushes)
        except (CheckpointError, OSError) as error:
            logger.error("checkpoint %d is refused: %s", number, error)
            refused.append(f"warning: a checkpoint is refused: {error}; ")
        else:
            return model, f"{''.join(refused)}it has restored checkpoint {number}"
    if plan.saved:
        return None, f"{''.join(refused)}it has no checkpoint; its rows are those of --restore-from"
    return None, (
        f"{''.join(refused)}warning: there is no good checkpoint; its rows have INITIAL VALUES"
    )


class Meetings:
    """Which workers have registered with this incarnation of the server.

    A worker that has not is sent to do it before anything else: so it learns that the
    server is another one, and the server what it had told the worker before.
    lost: updates that were acknowledged and are not there any more, of each worker.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._met: set[tuple[int, int]] = set()
        self.again = False
        self.lost: list[pb.LostPushes] = []

    def require(self, caller: pb.PushIdentity) -> None:
        """Raises WireError(NOT_REGISTERED) for a worker that has not met a restarted server."""
        if self.again and (caller.worker, caller.incarnation) not in self._met:
            raise WireError(
                pb.NOT_REGISTERED,
                f"worker {caller.worker} has not registered since this server was started again",
            )

    def meet(self, caller: pb.PushIdentity, pushes: PushRegister) -> None:
        """A worker registers; the last of its pushes that was acknowledged is `caller`."""
        with self._lock:
            who = caller.worker, caller.incarnation
            if self.again and who not in self._met:
                applied = pushes.applied(*who)
                if caller.sequence > applied:
                    self.lost.append(
                        pb.LostPushes(
                            worker=caller.worker,
                            incarnation=caller.incarnation,
                            after=applied,
                            upto=caller.sequence,
                        )
                    )
            self._met.add(who)
