"""The calls that take a checkpoint: begin, write, drop.

Owns what is under way: at most one checkpoint, begun or being written. What is in a shard
is checkpoint.py's.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.checkpoints.folders import Attempt, folder_name
from shoal.checkpoints.formats import manifests
from shoal.errors import Error
from shoal.files.storage import open_storage
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.pools import started_pool
from shoal.proto.errors import WireError
from shoal.proto.values.positions import Seen
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.ownership import Ownership
from shoal.ps.saved.checkpoint import Cut, cut, write_empty_shards, write_shard
from shoal.ps.update_log.log import UpdateLog

logger = logging.getLogger(__name__)

NONCE = re.compile("[0-9a-f]{16}")
"""Of an attempt, as shoal/checkpoints/formats/schema.py has it."""

BEGUN_SECONDS = 120.0
"""How long rows stay fixed for a master that does not come back to have them written:
each row changed meanwhile costs the memory of a copy."""


WRITER_END_SECONDS = 20.0
"""For a writer to notice that it is not wanted: it looks after each piece of rows."""


class _DroppedError(Error):
    """The checkpoint that is being written is not wanted any more."""


@dataclass
class _UnderWay:
    number: int
    nonce: str
    model: ServerModel
    at: Cut
    timer: threading.Timer
    writing: bool = False
    dropped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def is_of(self, number: int, nonce: str) -> bool:
        """True if this is that attempt. The number alone may have come before."""
        return (self.number, self.nonce) == (number, nonce)

    def go_on(self) -> None:
        """Between two pieces of rows."""
        faults.point("shard-half-written")
        if self.dropped.is_set():
            raise _DroppedError


class Shards:
    """Takes the shards of server `server`.

    model: the present one. ownership: of its ids. root: path or URL of the folder of the job's
    checkpoints; "" where it takes none. update: tells the last one applied, of --sync. Raises
    OSError if the thread that writes cannot be had.
    """

    def __init__(
        self,
        server: int,
        model: Callable[[], ServerModel],
        ownership: Ownership,
        pushes: PushRegister,
        root: str,
        update: Callable[[], int] = lambda: 0,
    ) -> None:
        self.log: UpdateLog | None = None
        self.seen = Seen()
        self._server = server
        self._model = model
        self._ownership = ownership
        self._pushes = pushes
        self._root = root
        self._update = update
        self._lock = threading.Lock()
        self._under_way: _UnderWay | None = None
        self._cuts: dict[
            int, tuple[str, int]
        ] = {}  # of each, its nonce and the step it was made at
        # Always the same thread: malloc keeps for each thread what it has once used, and a piece of
        # rows takes megabytes.
        self._writer = started_pool(1, "write-shard")

    def begin(self, request: pb.BeginCheckpointRequest) -> pb.BeginCheckpointReply:
        """Fix what is there now; a repeated call changes nothing, another attempt replaces.

        Raises WireError: BAD_REQUEST for a number or a nonce that is none: they are parts of the
        names of files.
        """
        if request.number < 1 or not NONCE.fullmatch(request.nonce):
            raise WireError(
                pb.BAD_REQUEST, "the checkpoint has no number, or no nonce of 16 digits"
            )
        with self._lock:
            under_way = self._under_way
            if under_way is None or not under_way.is_of(request.number, request.nonce):
                if under_way is not None:
                    self._drop(under_way)
                model = self._model()
                timer = threading.Timer(
                    BEGUN_SECONDS, self._expire, (request.number, request.nonce)
                )
                timer.daemon = True
                try:
                    log, number, nonce = self.log, request.number, request.nonce
                    noted = (lambda at: log.cut(number, nonce, at)) if log else (lambda _: None)
                    at = cut(model, self._pushes, noted, self._update)
                    self._cuts[number] = nonce, at.dense.step
                except MemoryError as error:
                    raise WireError(pb.CHECKPOINT_FAILED, "no memory for it") from error
                under_way = _UnderWay(number, nonce, model, at, timer)
                timer.start()
                self._under_way = under_way
            return pb.BeginCheckpointReply(version=under_way.at.dense.version)

    def write(self, request: pb.WriteShardRequest) -> pb.WriteShardReply:
        """Write what `begin` fixed. Raises WireError(CHECKPOINT_FAILED)."""
        with self._lock:
            under_way = self._under_way
            if (
                under_way is None
                or not under_way.is_of(request.number, request.nonce)
                or under_way.writing
            ):
                raise WireError(
                    pb.CHECKPOINT_FAILED,
                    f"checkpoint {request.number} is not waiting to be written",
                )
            if not self._root:
                raise WireError(pb.CHECKPOINT_FAILED, "this server was given no folder for it")
            under_way.writing = True
            under_way.timer.cancel()
        faults.point("shard-begun")
        try:
            folder = open_storage(self._root).child(folder_name(request.number))
            attempt = Attempt(folder, request.number, request.nonce)
            routing, model, at = self._ownership.routing, under_way.model, under_way.at
            shard = self._writer.submit(
                write_shard,
                attempt,
                self._server,
                routing,
                model,
                at,
                under_way.go_on,
                journal=self.seen.to_json(),
            ).result()
            empty = write_empty_shards(attempt, self._server, routing, model.spec, at)
        except OSError as error:
            # The file's name where the system gives one.
            where = error.filename or self._root
            raise WireError(pb.CHECKPOINT_FAILED, f"{where}: {manifests.reason(error)}") from error
        except MemoryError as error:
            raise WireError(
                pb.CHECKPOINT_FAILED, "no memory for the rows that changed while it was written"
            ) from error
        except _DroppedError as error:
            raise WireError(pb.CHECKPOINT_FAILED, "it was given up") from error
        finally:
            # Also where the storage could not even be opened.
            under_way.model.thaw()
            under_way.ended.set()
            with self._lock:
                if self._under_way is under_way:
                    self._under_way = None
        faults.point("shard-written")
        logger.info("shard of checkpoint %d written: %d bytes", request.number, shard["bytes"])
        return pb.WriteShardReply(shard=json.dumps(shard), empty=map(json.dumps, empty.values()))

    def complete(self, request: pb.CompleteCheckpointRequest) -> pb.CompleteCheckpointReply:
        """A checkpoint is whole, and found by whoever restores."""
        if self.log is not None:
            self.log.completed(request.number, request.nonce)
        with self._lock:
            made = self._cuts.get(request.number)
            self._cuts = {n: each for n, each in self._cuts.items() if n > request.number}
        if made is not None and made[0] == request.nonce:
            self._model().has_saved(made[1])
        return pb.CompleteCheckpointReply()

    def drop(self, request: pb.DropCheckpointRequest) -> pb.DropCheckpointReply:
        """Give up a checkpoint, if it is under way."""
        self._expire(request.number, request.nonce)
        if self.log is not None:
            self.log.forget(request.number, request.nonce)
        return pb.DropCheckpointReply()

    def _expire(self, number: int, nonce: str) -> None:
        with self._lock:
            if self._under_way is not None and self._under_way.is_of(number, nonce):
                self._drop(self._under_way)

    def _drop(self, under_way: _UnderWay) -> None:
        """Under the lock. Raises WireError(NOT_READY) if the writer does not end in time."""
        under_way.timer.cancel()
        under_way.dropped.set()
        if not under_way.writing:
            under_way.model.thaw()
        elif not under_way.ended.wait(WRITER_END_SECONDS):
            raise WireError(
                pb.NOT_READY, f"checkpoint {under_way.number} is being written, and does not end"
            )
        self._under_way = None
