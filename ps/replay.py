"""Doing a log's pushes again, after a checkpoint or from the beginning.

Owns what a log may be done again on, and which of its pushes are applied. That a push is
applied once is the register's to know, as when it came first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from shoal.proto import faults, frames
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.gradients import Ticket
from shoal.ps.logs import LogLostError, Sink, applied_now, reaches
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import ServerModel
from shoal.ps.unpack import unpack

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""Between tries to take a log."""


@dataclass
class Recovered:
    """What came of doing a log again.

    model: None if there is neither a checkpoint nor a log. count: pushes applied.
    base: of the log, which is to be written on; None: why not. sizes: step and bytes of each
    of its entries.
    """

    model: ServerModel | None
    count: int = 0
    base: pb.LogBase | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    why: str = ""


def recover(
    sink: Sink, server: int, servers: int, model: ServerModel | None, pushes: PushRegister
) -> Recovered:
    """Take the log of server `server` of `servers`, and do it again.

    model, pushes: of a checkpoint; None: there is none.
    """
    done = Recovered(model)
    give_up = time.monotonic() + sink.retry_seconds
    while True:
        try:
            _recover(sink, server, servers, pushes, done)
            return done
        except LogLostError as error:
            # What was applied until then is right, and is skipped the next time.
            done.why = f"its log could not be read: {error}"
            logger.warning("%s", done.why)
        if time.monotonic() > give_up:
            return done
        time.sleep(RETRY_SECONDS)


def _recover(sink: Sink, server: int, servers: int, pushes: PushRegister, done: Recovered) -> None:
    taken = sink.take()
    if taken is None:
        done.why = "its log is gone with the server that kept it"
        return
    if done.model is None and taken.base.HasField("model"):
        done.model = from_beginning(taken.base, server, servers)
    elif done.model is None or not reaches(taken.base, applied_now(pushes)):
        done.why = "its log does not reach back to the checkpoint"
        return
    done.sizes = []
    for step, size, applied in replay(taken.entries, done.model, pushes):
        done.count += applied
        done.sizes.append((step, size))
    done.base = taken.base


def from_beginning(base: pb.LogBase, server: int, servers: int) -> ServerModel:
    """The model as it was before the first push of a log that begins with it."""
    model = ServerModel(base.model, server, servers)
    _, (trainable, state) = frames.decode(base.initial, pb.InitializeDenseRequest)
    model.initialize_dense(trainable, state)
    return model


def replay(
    entries: Iterator[tuple[pb.LogEntry | pb.LogBase, bytes]],
    model: ServerModel,
    pushes: PushRegister,
) -> Iterator[tuple[int, int, bool]]:
    """Apply the entries that the server does not have yet.

    Yields of each entry its step, its bytes, and whether it was applied. Raises LogLostError
    if the log breaks off; what was applied until then is right, and may be gone on from.
    """
    for entry, frame in entries:
        if isinstance(entry, pb.LogBase):
            if not reaches(entry, applied_now(pushes)):
                raise LogLostError("it is damaged: some of its entries are not as written")
            continue
        push = unpack(frame)
        try:
            with pushes.admit(push.request) as fresh:
                if fresh:
                    model.apply(push.gradients, Ticket(entry.step, entry.staleness), again=True)
        except WireError as error:
            # Of an incarnation that was over when the checkpoint was taken, which has it.
            if error.kind != pb.FENCED:
                raise
            fresh = False
        yield entry.step, len(frame), fresh
        faults.point("log-replaying")
