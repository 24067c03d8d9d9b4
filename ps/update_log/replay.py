"""Doing a log's pushes again, after a checkpoint or from the beginning.

Owns what a log may be done again on, and which of its pushes are applied. That a push is
applied once is the register's to know, as when it came first. Gradients of --sync are held again,
and those updates are applied that the model lacks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from shoal.errors import Error
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.plane.link import kept
from shoal.proto.values.positions import Seen
from shoal.proto.values.routing import Routing
from shoal.proto.wire import frames
from shoal.ps.model.checks import check_logged
from shoal.ps.model.gradients import Ticket, averaged
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.model.unpack import exactly, unpack
from shoal.ps.saved.progress import Progress
from shoal.ps.update_log.moved_again import Coming, HalfAppliedError, moved_again, name_of, whole
from shoal.ps.update_log.sinks import (
    Entries,
    Gap,
    LogDamagedError,
    LogLostError,
    Sink,
    Standing,
    applied_now,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
"""Between tries to take a log."""


Restored = Callable[[int | None], ServerModel | None]
"""Restores a checkpoint; None: there is none. Called with `dense` as `restore` takes it."""


Fill = Callable[[ServerModel], None]
"""Gives a model that has no rows yet those that it begins with."""


def no_rows(model: ServerModel) -> None:
    """Do nothing, as the Fill of a model that begins with no rows."""


class OtherDivisionError(Error):
    """The log is to be done again on a model restored anew. dense: as `restore` takes it."""

    def __init__(self, dense: int) -> None:
        super().__init__(f"the log begins on dense slices of {dense} servers")
        self.dense = dense


@dataclass
class Recovered:
    """The result of doing a log again.

    model: None if there is neither a checkpoint nor a log. count: pushes applied.
    base: of the log, which is to be written on; None: why not. sizes: step and bytes of each
    of its entries. step, standing: of the checkpoint that it was done again on; 0: of none, or
    with --sync, where the log counts its own entries. seen: how far the master's journal was, by
    the log. slices: dense slices hold that came by a move, which the log does not say. epoch: of
    the last routing table by which rows came to it.
    """

    model: ServerModel | None
    count: int = 0
    base: pb.LogBase | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list)
    why: str = ""
    step: int = 0
    standing: Standing = field(default_factory=Standing)
    seen: Seen = field(default_factory=Seen)
    slices: bool = False
    epoch: int = 0


def recover(
    sink: Sink,
    server: int,
    routing: Routing,
    restored: Restored,
    pushes: PushRegister,
    progress: Progress,
    pending: PendingGradients | None = None,
    fill: Fill = no_rows,
) -> Recovered:
    """Take the log of server `server` of `routing`, and do it again.

    restored: with `pushes` and `pending`. It is called again where a push could be applied in part
        only, so that the model has nothing of it.
    pending: gradients that wait, of a job with --sync. fill: of a model that the log begins with.
    """
    stop: HalfAppliedError | None = None
    dense = 0  # as the checkpoint was written: a log begins there
    give_up = 0.0
    while True:
        try:
            model = restored(dense)
            progress.begin("replay its log")
            give_up = give_up or time.monotonic() + sink.retry_seconds
            done = _recovered(
                sink, server, routing, model, pushes, progress, stop, pending, give_up, fill
            )
        except HalfAppliedError as error:
            logger.error("%s; restoring without it", error.why)
            stop = error
            pushes.restore([])
            continue
        except OtherDivisionError as error:
            dense = error.dense
            pushes.restore([])
            continue
        model = done.model
        divided = model is not None and model.dense.servers != routing.dense
        if divided or (model is not None and done.why and model.gained):
            # The log does not reach to where the servers divided the dense variables anew, or to
            # where rows came: what of the pushes to these is not there only the checkpoint knows.
            pushes.restore([])
            why = done.why or "its log does not have the dense slices that it got from others"
            model = restored(None)
            epoch = model.epoch if model is not None else 0
            return Recovered(model, why=why, seen=done.seen, epoch=epoch)
        return done


def _recovered(
    sink: Sink,
    server: int,
    routing: Routing,
    model: ServerModel | None,
    pushes: PushRegister,
    progress: Progress,
    stop: HalfAppliedError | None,
    pending: PendingGradients | None,
    give_up: float,
    fill: Fill,
) -> Recovered:
    step = model.step if model is not None and pending is None else 0
    epoch = model.epoch if model is not None else 0
    done = Recovered(model, step=step, standing=_there(pushes, pending, epoch), epoch=epoch)
    while True:
        try:
            _recover(sink, server, routing, pushes, progress, done, stop, pending, fill)
            return done
        except LogDamagedError as error:
            # It stays so however often it is read.
            done.why = f"its log is damaged: {error}"
            logger.error("%s", done.why)
            return done
        except LogLostError as error:
            # What was applied until then is right.
            done.why = f"its log could not be read: {error}"
            logger.warning("%s", done.why)
        if time.monotonic() > give_up:
            return done
        time.sleep(RETRY_SECONDS)


def _recover(
    sink: Sink,
    server: int,
    routing: Routing,
    pushes: PushRegister,
    progress: Progress,
    done: Recovered,
    stop: HalfAppliedError | None,
    pending: PendingGradients | None,
    fill: Fill,
) -> None:
    taken = sink.take()
    if taken is None:
        done.why = "its log is gone with the server that kept it, or has ended as rows moved"
        return
    if done.model is None and taken.base.HasField("model"):
        done.model = from_beginning(taken.base, server, routing)
        fill(done.model)
        progress.begin("replay its log")
    elif done.model is None or not _there(pushes, pending, done.model.epoch).has(taken.base):
        if taken.before:
            raise LogDamagedError(
                f"{taken.before}; what is after it does not reach back to the checkpoint"
            )
        done.why = "its log does not reach back to the checkpoint"
        return
    if taken.base.dense_epoch > done.model.epoch and taken.base.dense != done.model.dense.servers:
        # The log begins after the dense variables were divided anew, as a job was resumed.
        raise OtherDivisionError(taken.base.dense)
    done.sizes = []
    done.seen.note(taken.base.journal)
    entries = _noting(taken.entries, done.seen)
    coming = Coming(done.model)
    try:
        for step, size, applied in replay(entries, done.model, pushes, stop, pending, coming):
            progress.advance(size)
            done.count += applied
            done.sizes.append((step, size))
    finally:
        done.epoch = coming.epoch
    if done.model.dense.servers != routing.dense:
        # The move was decided, and the server ended before it heard of that.
        done.slices = coming.hold(routing.epoch, routing.dense)
    done.base = taken.base


def _there(pushes: PushRegister, pending: PendingGradients | None, epoch: int) -> Standing:
    """The updates that the model has now. epoch: of the table by which its last rows came."""
    return Standing(applied_now(pushes), 0 if pending is None else pending.update, epoch)


def _noting(entries: Entries, seen: Seen) -> Entries:
    for entry, frame in entries:
        if not isinstance(entry, Gap):
            seen.note(entry.journal)
        yield entry, frame


def from_beginning(base: pb.LogBase, server: int, routing: Routing) -> ServerModel:
    """The model as it was before the first push of a log that begins with it.

    routing: has the server's slots, and says how many have dense slices if the log does not.
    Raises LogDamagedError if it is not one.
    """
    try:
        model = ServerModel(base.model, server, base.dense or routing.dense, routing.slots(server))
        model.gained = routing.epoch > max(1, base.dense_epoch)
        _, arrays = frames.decode(base.initial, pb.InitializeDenseRequest)
        model.dense.initialize(*exactly(arrays, 2))
    except WireError as error:
        raise LogDamagedError(f"its first values cannot be used: {error}") from error
    return model


def replay(
    entries: Entries,
    model: ServerModel,
    pushes: PushRegister,
    stop: HalfAppliedError | None = None,
    pending: PendingGradients | None = None,
    coming: Coming | None = None,
) -> Iterator[tuple[int, int, bool]]:
    """Apply the entries that the server does not have yet, as they were applied first.

    stop: where not to go beyond, and why. pending: as `recover` takes it. coming: has the dense
    slices of a move that the log does not see the end of. Yields of each entry its
    step, its bytes, and whether it is a push or an update that was applied. Raises
    HalfAppliedError, and LogDamagedError for a log that ends before its end; LogLostError if it
    breaks off. What was applied until then is right, and may be gone on from: per worker it is a
    beginning of what was applied first.
    """
    gap = ""
    coming = coming or Coming(model)
    missing, unknown = 0, False
    for at, (entry, frame) in enumerate(entries):
        if isinstance(entry, Gap):
            gap, missing = gap or entry.where, missing + entry.entries
            unknown |= not entry.entries
        elif isinstance(entry, pb.LogBase):
            # Behind a gap nobody knows whether all of a move was done again.
            if _there(pushes, pending, model.epoch if gap else coming.epoch).has(entry):
                # All that is before it is there, from the log or from the checkpoint.
                gap, missing, unknown = "", 0, False
            elif not gap:
                gap, unknown = "some of its entries are not as written", True
        elif gap:
            missing += 1
        elif stop is not None and at == stop.at:
            gap, missing = stop.why, 1
        else:
            try:
                if entry.move:
                    applied = moved_again(at, entry, frame, model, pushes, pending, coming)
                elif pending is None:
                    applied = _done_again(at, entry, frame, model, pushes)
                else:
                    applied = _held_again(at, entry, frame, model, pushes, pending)
            except HalfAppliedError:
                raise
            except Exception as error:
                logger.exception("an entry of the log cannot be done again")
                gap, missing = f"{name_of(entry, frame)} cannot be done again: {error}", 1
                continue
            # A move's entries do not count against --log-mb.
            size = 0 if entry.move else len(frame)
            yield entry.step, size, applied and not (entry.sweep or entry.move)
            faults.point("log-replaying")
    if gap:
        updates = f"{missing:,} updates" if missing else "the updates"
        raise LogDamagedError(
            f"{gap}; {'at least ' * (unknown and missing > 0)}{updates} from there on cannot be "
            "done again"
        )


def _done_again(
    at: int, entry: pb.LogEntry, frame: bytes | memoryview, model: ServerModel, pushes: PushRegister
) -> bool:
    """Apply an entry, if it is not in the model already.

    Raises HalfAppliedError; WireError and ValueError before anything is changed.
    """
    if entry.sweep:
        return _swept_again(at, entry, frame, model, entry.step)
    push = unpack(frame)
    if _before_move(push.request, model):
        return False
    check_logged(push, model)
    if entry.step < 1 or entry.staleness < 0:
        raise ValueError(f"its step is {entry.step}, its staleness {entry.staleness}")
    try:
        with pushes.admit(push.request) as fresh:
            if fresh:
                with whole(at, entry, frame):
                    model.apply(push.gradients, Ticket(entry.step, entry.staleness), again=True)
    except WireError as error:
        # Of an incarnation that was over when the checkpoint was taken, which has it.
        if error.kind != pb.FENCED:
            raise
        fresh = False
    return fresh


def _swept_again(
    at: int, entry: pb.LogEntry, frame: bytes | memoryview, model: ServerModel, step: int
) -> bool:
    """Do a part of a sweep again, if it is not in the model already. Raises as `_done_again`."""
    if fresh := step > model.step:
        try:
            model.sweep_again(step, frame)
        except MemoryError as error:
            why = f"{name_of(entry, frame)} cannot be done again: {error!r}"
            raise HalfAppliedError(at, why) from error
    return fresh


def _before_move(push: pb.PushRequest, model: ServerModel) -> bool:
    """True if a push is from before a move that is in the model: it is in it, or never will be.

    A log may begin before a checkpoint. The slices of such a push are not the server's any more.
    """
    return push.routing_epoch < max(model.epoch, model.moments.dense_epoch)


def _held_again(
    at: int,
    entry: pb.LogEntry,
    frame: bytes | memoryview,
    model: ServerModel,
    pushes: PushRegister,
    pending: PendingGradients,
) -> bool:
    """Do an entry of --sync again: hold a gradient, or apply an update that is not in the model.

    An update that is there takes its gradients away all the same: they may be in the log once more,
    from the time when a checkpoint was taken. Raises as `_done_again`.
    """
    if entry.sweep:
        return _swept_again(at, entry, frame, model, entry.staleness)
    if not entry.update:
        own = kept(memoryview(frame))  # the gradients lie in it
        push = unpack(own)
        if _before_move(push.request, model):
            return False
        check_logged(push, model)
        # Its age is not known: the clock may be another machine's.
        gradients = replace(push.gradients, pulled_time=model.time())
        pending.hold(push.request, gradients, own)
        pushes.held_before(push.request)
        return False
    request = pb.ApplyUpdateRequest.FromString(bytes(frame))
    named = pending.named(request)
    if named is not None:
        with whole(at, entry, frame):
            model.apply_update(averaged(named), again=True)
    pending.applied(request)
    return named is not None
