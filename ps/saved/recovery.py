"""A server that is started again: what it restores, and which workers have met it since.

Owns the choice of the checkpoint, and that the master hears what each worker had been told
by earlier incarnations: what of it is lost is the master's to say. Reading a shard is
checkpoint.py's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.errors import Error
from shoal.files.storage import Storage
from shoal.native.answering import Answerer
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError, WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.progress import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sources:
    """The places a server restores from, by its own configuration; paths or URLs, "" for none.

    checkpoints: the folder of the job's checkpoints. saved: the argument of --restore-from.
    continued: the argument of --continue-from. first_rows: the rows that the user's model brings.
    """

    checkpoints: str = ""
    saved: str = ""
    continued: str = ""
    first_rows: str = ""

    @property
    def beginning(self) -> str:
        """The flag that names what the job begins with; empty for none."""
        if self.continued:
            return "--continue-from"
        return "--restore-from" if self.saved else ""


class RefusedError(Error):
    """Checkpoint `number`, which all servers are to restore, is not good."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


def newest_shard(
    plan: pb.RestoreReply,
    sources: Sources,
    server: int,
    routing: Routing,
    pushes: PushRegister,
    progress: Progress,
    opened: Callable[[str], Storage],
    pending: PendingGradients,
    *,
    dense: int | None = None,
) -> tuple[ServerModel | None, int, str]:
    """The model of the newest checkpoint of `plan` that is good, its number, and what was done.

    The last in words. None and 0 if there is none. pending: is told which update of --sync is the
    last one in the model. dense: as `restore` takes it. sources: where the checkpoints are.
    opened: opens the folder at a path or URL, and has patience with its storage: an older
    checkpoint is taken for damage or a missing file only.
    Raises RefusedError where all servers are to restore the same one, and it is not good;
    StoppedError if the server is to end, StorageError at the end of that patience.
    """
    from shoal.ps.saved.restoring import restore  # late: few servers restore, and it needs pyarrow

    refused = []
    pending.begin(0)
    for number, nonce in zip(plan.checkpoints, plan.nonces, strict=True):
        try:
            faults.point("before-checkpoint-read")
            checkpoint = Checkpoint(opened(sources.checkpoints), number, nonce)
            model = restore(checkpoint, server, routing, pushes, progress, dense=dense)
        except (CheckpointError, OSError) as error:
            logger.error("checkpoint %d is refused: %s", number, error)
            if plan.whole_job:
                raise RefusedError(number, str(error)) from error
            refused.append(f"warning: a checkpoint is refused: {error}; ")
        else:
            pending.begin(max(each.get("update", 0) for each in checkpoint.shards))
            return model, number, f"{''.join(refused)}it has restored checkpoint {number}"
    if sources.beginning:
        said = f"it has no checkpoint; its rows are those of {sources.beginning}"
        return None, 0, f"{''.join(refused)}{said}"
    said = "warning: there is no good checkpoint; its rows have INITIAL VALUES"
    return None, 0, f"{''.join(refused)}{said}"


class RegisteredWorkers:
    """Which workers have registered with this incarnation of the server.

    A worker that has not is sent to do it before anything else: so it learns that the
    server is another one, and the master what the server had told the worker before, ahead of
    any push of it that could hide what is missing.

    again: the server was started again. tell: has the master hear of a worker's last push
    that was acknowledged; None where nobody needs to.
    """

    def __init__(self, answerer: Answerer | None = None) -> None:
        """answerer: of the server's pulls, is told which workers it may answer."""
        self._lock = threading.Lock()
        self._answerer = answerer
        # By worker, the newest incarnation: one before it is over, and has nothing left to tell.
        self._met: dict[int, int] = {}
        self.again = False
        self.tell: Callable[[pb.LastPush], object] | None = None

    @property
    def again(self) -> bool:
        """The server was started again; set before it is open."""
        return self._again

    @again.setter
    def again(self, again: bool) -> None:
        with self._lock:
            self._again = again
            if self._answerer is not None:
                self._answerer.forget_workers(again)
                for worker, incarnation in self._met.items():
                    self._answerer.meet(worker, incarnation)

    def require(self, caller: pb.PushIdentity) -> None:
        """Raises WireError(NOT_REGISTERED) for a worker that has not met a restarted server."""
        if self.again and not self._has_met(caller):
            raise WireError(
                pb.NOT_REGISTERED,
                f"worker {caller.worker} has not registered since this server was started again",
            )

    def meet(self, acknowledged: pb.LastPush) -> None:
        """A worker registers; the last of its pushes that was acknowledged.

        Raises WireError(NOT_READY) if the master cannot hear of it now.
        """
        who = acknowledged.identity
        if self.tell is not None and not self._has_met(who):
            try:
                self.tell(acknowledged)
            except CallError as error:
                raise WireError(
                    pb.NOT_READY, f"the master has not heard of worker {who.worker} yet: {error}"
                ) from error
        with self._lock:
            newest = max(who.incarnation, self._met.get(who.worker, -1))
            self._met[who.worker] = newest
            if self._answerer is not None:
                self._answerer.meet(who.worker, newest)

    def _has_met(self, who: pb.PushIdentity) -> bool:
        return who.incarnation <= self._met.get(who.worker, -1)
