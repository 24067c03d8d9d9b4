"""A server's own log: each push is in another place before the worker is answered.

Owns when a push counts as kept, what a checkpoint takes out of the log, and a new beginning after
the log was lost. Its state and whether it protects are unprotected.py's, its size is space.py's,
where it is kept a sink's (sinks.py); doing it again is replay.py's.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.positions import Seen
from shoal.proto.values.routing import Routing
from shoal.ps.model.gradients import Ticket
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.checkpoint import Cut
from shoal.ps.saved.progress import Progress
from shoal.ps.update_log.cuts import Cuts, Noted
from shoal.ps.update_log.replay import Fill, Restored, no_rows, recover
from shoal.ps.update_log.sinks import (
    LogLostError,
    LogTakenError,
    Sink,
    Standing,
    applied_now,
    identities,
)
from shoal.ps.update_log.space import LogSpace
from shoal.ps.update_log.unprotected import AT_BEGINNING, LogState, Protection

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
"""Between looks whether the log is still there, and tries to begin a lost one anew."""

UNSAVED_ROWS = "rows were loaded that are in no checkpoint yet"
MOVED_ROWS = "rows have moved, and no checkpoint has them yet"

Result = TypeVar("Result")


def _nothing() -> None:
    pass


def _is_open(wait: Callable[[], object]) -> bool:
    """Wait until a push is kept or the log is lost; True if pushes are still taken."""
    try:
        wait()
    except WireError:  # this incarnation is over
        return False
    return True


class UpdateLog:
    """The log of server `server`, kept in `sink`.

    space: of a log that has nothing yet. superseded: called if another incarnation of this server
        writes it.
    pending: with --sync, the gradients that wait. A push that is held, and an update, are entries
        then, and the log counts these itself: no step of the optimizers is taken by a gradient that
        waits. Whatever begins anew, or lets go of what a checkpoint has, gets the gradients that
        wait once more: no checkpoint has them.
    """

    def __init__(
        self,
        sink: Sink,
        server: int,
        incarnation: int,
        pushes: PushRegister,
        space: LogSpace,
        superseded: Callable[[], object],
        pending: PendingGradients | None = None,
    ) -> None:
        self._sink = sink
        self._server = server
        self._incarnation = incarnation
        self._pushes = pushes
        self._superseded = superseded
        self._pending = pending
        self._epoch = 0  # of the routing table of the rows that came
        self.division = 0, 0  # `dense` of a table, and its epoch
        self._place = 0  # of the last entry, with --sync
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._protection = Protection()
        self._space = space
        self._cuts = Cuts()
        self.seen = Seen()

    # ------------------------------------------------------------ pushes

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Enter with room for a push. Raises WireError(NOT_READY) if there is none.

        Not by waiting here: a push that waits holds a thread, and the checkpoint that makes
        room needs one.
        """
        with self._lock:
            self.check_room(size)
            reserved = self._sink.entry_bytes + size
            self._space.reserved += reserved
        try:
            yield
        finally:
            with self._lock:
                self._space.reserved -= reserved

    def check_room(self, size: int) -> None:
        """Raises WireError(NOT_READY) if there is no room for a push now."""
        if self._protection.written:
            self._space.check(self._sink.entry_bytes + size)

    def append(
        self,
        ticket: Ticket,
        frame: bytes | memoryview,
        *,
        sweep: bool = False,
        update: bool = False,
    ) -> Callable[[], object]:
        """Send a push on its way; the result waits until it is kept, or the log is lost.

        sweep: it is a part of a sweep. update: it is one of --sync.

        Raises WireError(NOT_READY) if this incarnation of the server is over.
        """
        with self._lock:
            if not self._protection.written:
                self._protection.exposed("no log was begun")
                return _nothing
            name = self._protection.name
            self._space.add(ticket.step, self._sink.entry_bytes + len(frame))
        entry = pb.LogEntry(
            step=ticket.step, staleness=ticket.staleness, sweep=sweep, update=update
        )
        return self._send(name, entry, frame)

    def _send(
        self, name: str, entry: pb.LogEntry, frame: bytes | memoryview
    ) -> Callable[[], object]:
        """Send an entry of the log `name` on its way; returns as `append`."""
        entry.log, entry.server, entry.incarnation = name, self._server, self._incarnation
        entry.journal.CopyFrom(self.seen.position)
        wait = self._of_sink(name, self._sink.append, entry, frame)
        return partial(self._of_sink, name, wait) if wait is not None else _nothing

    def begins(
        self, model: ServerModel
    ) -> Callable[[memoryview, int, int, int | None], tuple[int, int, Callable[[], bool] | None]]:
        """The log that Answerer.serve_model takes, for pushes that Python does not apply."""

        def begun(
            frame: memoryview, worker: int, pulled_version: int, time: int | None
        ) -> tuple[int, int, Callable[[], bool] | None]:
            with self.room(len(frame)):
                ticket = model.enter(worker, pulled_version, time)
                try:
                    wait = self.append(ticket, frame)
                except BaseException:
                    model.leave(None)
                    raise
            kept = None if wait is _nothing else partial(_is_open, wait)
            return ticket.step, ticket.staleness, kept

        return begun

    def append_held(self, frame: bytes | memoryview) -> Callable[[], object]:
        """Log a push that waits for its update, as `append` does."""
        return self.append(self._next(), frame)

    def append_update(self, request: pb.ApplyUpdateRequest) -> Callable[[], object]:
        """Log an update of --sync, as `append` does."""
        return self.append(self._next(), request.SerializeToString(), update=True)

    def _next(self) -> Ticket:
        with self._lock:
            self._place += 1
            return Ticket(self._place, 0)

    def _hold_again(self) -> None:
        """Log the gradients that wait for their update once more, and wait until they are kept.

        No push is under way, and no update.
        """
        with self._lock:
            written = self._protection.written
        if self._pending is not None and written:
            waits = [self.append_held(frame) for frame in self._pending.frames()]
            for wait in waits:
                wait()

    def _standing(self, paused: Iterable[dict[str, int]]) -> Standing:
        """The updates that are in the model now. paused: as `PushRegister.paused` gives it."""
        update = 0 if self._pending is None else self._pending.update
        return Standing(identities(paused), update, self._epoch)

    def append_move(
        self, step: int, frame: bytes | memoryview, epoch: int, kind: pb.MoveEntry
    ) -> Callable[[], object]:
        """Log a part of a move of slots, as `append` does.

        step: the last one. epoch: of the table that the move leads to. There is always room:
        pushes do not wait for rows that are in the log only until the next checkpoint.
        """
        if not self._sink.keeps_moves:
            return _nothing
        with self._lock:
            # No checkpoint before has these rows, whatever pushes it has.
            self._cuts.clear()
            self._epoch = max(self._epoch, epoch)
            if not self._protection.written:
                return _nothing
            name = self._protection.name
        # Between this step and the next one, and after the cut of any checkpoint before.
        place = step + 1 if self._pending is None else self._next().step
        return self._send(name, pb.LogEntry(step=place, move=epoch, moved=kind), frame)

    def holds(self, epoch: int) -> None:
        """The table of this epoch holds: what came for a later one has gone, or comes again."""
        with self._lock:
            self._epoch = min(self._epoch, epoch)

    def append_slices(self, step: int, epoch: int, dense: int) -> Callable[[], object]:
        """Log that the dense slices that came hold from here on. epoch, dense: the table's."""
        self.division = dense, epoch
        piece = pb.DensePiece(servers=dense)
        return self.append_move(step, piece.SerializeToString(), epoch, pb.SLICES_TAKEN)

    def append_sweep(self, step: int, frame: bytes) -> None:
        """Send a part of a sweep on its way.

        Nobody waits for it: it is kept before the push that comes after it.
        """
        # With --sync the log counts its own entries, and this one has its step beside that.
        ticket = Ticket(step, 0) if self._pending is None else Ticket(self._next().step, step)
        self.append(ticket, frame, sweep=True)

    def _of_sink(self, name: str, call: Callable[..., Result], *arguments: Any) -> Result | None:
        """Call the sink, and return its result; None if it finds that the log `name` is lost."""
        try:
            return call(*arguments)
        except LogLostError as error:
            with self._lock:
                self._protection.lost(name, f"its log is lost: {error}")
            return None
        except LogTakenError as error:
            # Also what was applied and not recorded: it must not be applied again.
            self._pushes.close()
            self._superseded()
            raise WireError(pb.NOT_READY, str(error)) from error

    # ------------------------------------------------------------ checkpoints

    def cut(self, number: int, nonce: str, cut: Cut) -> None:
        """A checkpoint's shard is fixed, and no push is under way."""
        with self._lock:
            name = self._protection.name if self._protection.written else ""
            step = cut.dense.step if self._pending is None else self._place
        standing = Standing(identities(cut.applied), cut.update, self._epoch)
        mark = self._of_sink(name, self._sink.mark, standing) if name else None
        with self._lock:
            self._cuts.note(number, Noted(nonce, name, step, standing, mark))
        self._hold_again()

    def forget(self, number: int, nonce: str) -> None:
        """A checkpoint will not be complete."""
        with self._lock:
            self._cuts.forget(number, nonce)

    def completed(self, number: int, nonce: str) -> None:
        """A checkpoint is complete and will be found: what is in it need not be in the log."""
        with self._lock:
            noted = self._cuts.complete(number, nonce)
            if noted is None or not self._protection.writes(noted.name):
                return
        self._of_sink(
            noted.name, self._sink.drop, noted.name, noted.step, noted.standing, noted.mark
        )
        with self._lock:
            if self._protection.writes(noted.name):
                self._space.drop(noted.step)
                self._protection.based()

    def describe(self, status: pb.ServerStatus) -> None:
        """Put what the master is to know into a status, which has the tables."""
        with self._lock:
            self._space.beside(sum(each.memory_bytes for each in status.tables))
            status.log_bytes = self._space.bytes
            status.unprotected = self._protection.told
            status.absences = self._protection.times
            status.absent_seconds = self._protection.seconds
            status.wants_checkpoint = self._protection.written and (
                self._protection.state is LogState.BASELESS or self._space.nearly_full
            )

    # ------------------------------------------------------------ beginning

    def begin(self, model: pb.ModelSpec, initial: bytes) -> None:
        """Begin with the model, whose first dense values are in the frame `initial`.

        Before the first push. Where that fails, it is as if the log was lost later.
        """
        with self._looking:
            self._begin(pb.LogBase(model=model, initial=initial), protects=True)

    def begin_with_rows(self) -> None:
        """Begin with a model whose rows were read from elsewhere, which no log has.

        Before the first push. It protects from the first checkpoint on.
        """
        with self._lock:
            self._protection.unlogged(UNSAVED_ROWS, AT_BEGINNING)
        self.look_after()

    def _begin(self, base: pb.LogBase, *, protects: bool) -> None:
        base.log = secrets.token_hex(8)
        base.server, base.incarnation, base.epoch = self._server, self._incarnation, self._epoch
        base.dense, base.dense_epoch = self.division
        base.journal.CopyFrom(self.seen.position)
        try:
            self._sink.begin(base)
        except (LogLostError, LogTakenError) as error:
            with self._lock:
                self._protection.unlogged(f"its log could not begin: {error}")
            if isinstance(error, LogTakenError):
                self._superseded()
            return
        with self._lock:
            self._protection.begun(base.log, protects=protects)
            self._space.hold(())

    def moved(self, epoch: int) -> None:
        """Begin another log, unless this one keeps moves; it protects from a checkpoint on.

        epoch: of the table by which rows have moved, and which holds. No push may be under way.
        """
        if self._sink.keeps_moves:
            return
        with self._looking, self._lock:
            self._cuts.clear()
            self._epoch = epoch
            if self._protection.state is LogState.EMPTY:
                return
            self._protection.unlogged(MOVED_ROWS, AT_BEGINNING)  # a checkpoint follows at once
        self.look_after()

    def assigned(self) -> None:
        """Rows were set, which is not in the log: it is to stand on what is there now.

        Before the answer; raises nothing where that fails.
        """
        with self._lock:
            self._cuts.clear()
            if self._protection.state is not LogState.PROTECTING:
                return
            self._protection.lost(self._protection.name, UNSAVED_ROWS)
        self.look_after()

    def look_after(self) -> None:
        """See whether the log is there; begin a lost one anew. Now and then, on a thread."""
        with self._looking:
            with self._lock:
                name, written = self._protection.name, self._protection.written
                lost = self._protection.state is LogState.LOST
            if written:
                self._of_sink(name, self._sink.check)
            elif lost:
                try:
                    self._sink.reach()
                except LogLostError as error:
                    logger.debug("the log cannot begin anew yet: %s", error)
                    return
                except LogTakenError:
                    self._superseded()
                    return
                with self._pushes.paused() as paused:
                    now = self._standing(paused)
                    base = pb.LogBase(applied=now.applied, update=now.update)
                    saved = self._cuts.saved
                    self._begin(base, protects=saved is not None and saved.has(base))
                    self._hold_again()

    def keep(self, stopped: threading.Event) -> None:
        """Look after the log until the server ends."""
        while not stopped.wait(CHECK_SECONDS):
            try:
                self.look_after()
            except Exception:
                logger.exception("looking after the log of updates")
        self._sink.close()

    # ------------------------------------------------------------ recovery

    def clear(self) -> None:
        """The job starts here, or was resumed: earlier logs are not of it."""
        self._sink.clear()

    def resumed(self, restored: bool) -> None:
        """The job goes on from a checkpoint, if one was `restored`; the log begins soon."""
        with self._lock:
            if restored:
                self._protection.unlogged("the job was resumed")

    def recover(
        self, restored: Restored, routing: Routing, progress: Progress, fill: Fill = no_rows
    ) -> tuple[ServerModel | None, int, bool, str]:
        """Do the log of an earlier incarnation again, and go on writing it.

        restored, routing, progress, fill: as `replay.recover` takes them. Returns the model, how
        many pushes were applied, whether these are all that were answered, and in words what was
        done.
        """
        done = recover(
            self._sink,
            self._server,
            routing,
            restored,
            self._pushes,
            progress,
            self._pending,
            fill,
        )
        self.seen.note(done.seen.position)
        with self._lock:
            self._epoch = done.epoch
        if done.base is None:
            with self._lock:
                if done.model is not None:
                    self._protection.unlogged(done.why)
                else:
                    self._protection.exposed(done.why)
            some = f"{done.count} updates of its log were done again; " if done.count else ""
            return done.model, done.count, False, f"{some}warning: {done.why}"
        done.base.applied.clear()
        done.base.applied.extend(applied_now(self._pushes))
        done.base.epoch = self._epoch
        if self._pending is not None:
            done.base.update = self._pending.update
            self._place = max((step for step, _ in done.sizes), default=0)
        name = done.base.log
        with self._lock:
            beside = self._sink.entry_bytes
            sizes = ((step, size and beside + size) for step, size in done.sizes)
            self._space.hold(sizes, after=done.step)
            self._protection.begun(name, protects=True)
        self._of_sink(name, self._sink.adopt, done.base, done.step, done.standing)
        if done.slices and done.model is not None:
            self.append_slices(done.model.step, routing.epoch, routing.dense)()
        self._hold_again()
        return done.model, done.count, True, f"{done.count} updates of its log were done again"
