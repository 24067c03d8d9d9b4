"""The work that a job has done at its servers: fences, updates, checkpoints, questions.

Executes the instructions that are calls to servers, each on a thread of its own kind, and tells
the job of the outcome. Asks the servers for their status all the time. Which calls these are is
servers.py's, the order of a checkpoint's is in the module that takes it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, assert_never

from shoal.master.calls.between_updates import BetweenUpdates
from shoal.master.calls.fences import Fences, Said
from shoal.master.calls.move_slots import MovingError, Servers, SlotMover
from shoal.master.calls.publish import DeltaPublisher, Position, PublishError
from shoal.master.calls.servers import Place, ServerConnections, places_of
from shoal.master.calls.take_checkpoint import CheckpointTaker, TakingError
from shoal.master.calls.update_thread import UpdateThread
from shoal.master.job import events
from shoal.master.job.instructions import (
    ApplyUpdate,
    ConfirmServers,
    FenceWorker,
    MoveSlots,
    PublishDelta,
    RemoveCheckpoints,
    SettleServers,
    TakeCheckpoint,
)
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState
from shoal.master.job.updates import Update
from shoal.master.job.view.status import position
from shoal.master.shared_job import SharedJob
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.phases import Phase
from shoal.master.work.record import ProcessorTime
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.pools import started_pool
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.identity import Identity
from shoal.proto.values.positions import position_json
from shoal.proto.values.routing import Routing

logger = logging.getLogger(__name__)

NOWHERE = Place("", None)

POLL_SECONDS = 1.0
"""Between questions to the servers for their version and staleness."""

AGAIN_SECONDS = 0.5
"""Before the servers are asked once more what they have, if one has not answered."""

ServerInstruction = (
    FenceWorker
    | ApplyUpdate
    | TakeCheckpoint
    | PublishDelta
    | ConfirmServers
    | MoveSlots
    | SettleServers
    | RemoveCheckpoints
)
"""What the job has done at its servers."""


def note_status(server: ServerId, status: pb.ServerStatus, job: Job, now: float) -> None:
    """A server has said this of itself.

    While it is being started it is not what it will be, and on Kubernetes it answers at the
    address of the one before.
    """
    member = job.members.server(server)
    if member is None or member.state != ProcessState.ALIVE:
        return
    if server not in job.members.servers:
        member.answered = now
        return
    doubted = member.told.clock_doubt
    slow_before = any(each.told.slow_tls for each in job.members.servers.values())
    job.servers.answered(server, status)
    if bool(status.clock_doubt) != bool(doubted):
        doubt = f"warning: {status.clock_doubt}" if status.clock_doubt else "rows expire again"
        job.on(events.Noted(f"{server}: {doubt}"), now)
    if status.slow_tls and not slow_before:
        slow = "warning: calls with certificates go through Python's ssl, slower"
        job.on(events.Noted(f"{server}: {slow}: {status.slow_tls}"), now)
    if said := job.servers.memory_told(server, status):
        job.on(events.Noted(said), now)
    member.answered = now
    absences = member.absences_before + status.absences
    if absences != member.absences or status.unprotected != member.unprotected:
        seconds = member.absent_seconds_before + status.absent_seconds
        job.on(events.ProtectionChanged(server, absences, seconds, status.unprotected), now)


def _start_of(server: ServerId, job: Job, now: float) -> Start | None:
    del now
    member = job.members.server(server)
    return None if member is None else Start(server, member.incarnation)


def _there(job: Job, table: pb.RoutingTable) -> Servers:
    """The places of the servers, for a move to this table."""
    members, present = job.members, Routing.from_message(table).present
    joining = [each for each in members.joining.values() if each.id.index in present]
    return Servers(
        places_of(members.servers.values()),
        places_of(joining),
        [FenceWorker(worker, over) for worker, over in members.fences()],
    )


def _begin_move(table: pb.RoutingTable, job: Job, now: float) -> int | None:
    """Begin a move; returns its attempt.

    None if another move is wanted, or an export has become due, since it was ordered.
    """
    if job.moves.ordered is not table:
        return None
    if job.work.follow_ups.idle and job.phases.phase is Phase.TRAINING:
        return job.on(events.MoveBegun(table), now)
    job.moves.called_off()
    return None


def _begin_saving(table: pb.RoutingTable, job: Job, now: float) -> bool:
    """Begin a checkpoint before a move; False if the move will not begin, as of `_begin_move`."""
    wanted = job.moves.ordered is table and job.phases.phase is Phase.TRAINING
    if wanted:
        job.on(events.CheckpointBegun(), now)
    return wanted


def _commit_move(
    table: pb.RoutingTable, places: Mapping[ServerId, Place], job: Job, now: float
) -> None:
    """Decide a move, whose rows are at these servers. Raises MovingError if they are others now.

    An incarnation that has registered since has the table of before.
    """
    if job.ended:
        raise MovingError("the job has ended")
    if _there(job, table).all != places:
        raise MovingError("a server died meanwhile")
    if job.members.fencing:
        raise MovingError("a worker died meanwhile")
    job.on(events.MoveCommitted(), now)


def _fenced(fence: FenceWorker, said: Mapping[ServerId, Said], job: Job, now: float) -> bool:
    # One may have registered since it was looked at last, and told already what it has: what the
    # incarnation before it had is no answer any more.
    servers = job.members.servers
    if said.keys() != servers.keys():
        return False
    if any(Place.of(servers[each]).incarnation != said[each].incarnation for each in said):
        return False
    # By index. One that is absent will have what the others have.
    pushes = [next(iter(said.values())).push] * job.moves.routing.servers
    for server, each in said.items():
        pushes[server.index] = each.push
    job.on(events.WorkerFenced(fence.worker, fence.incarnation, pushes), now)
    return True


def _fixed(job: Job, now: float) -> dict[str, Any]:
    job.on(events.CheckpointFixed(), now)
    return position(job, now)


def _position_of(job: Job, now: float) -> tuple[dict[ServerId, Place], Position]:
    del now
    places = places_of(job.members.servers.values())
    present = set(job.moves.routing.present)
    there = {server: place for server, place in places.items() if server.index in present}
    return there, Position(job.moves.routing, job.work.records[0], job.publishing.newest)


def _note_cores(told: ProcessorTime, job: Job, now: float) -> None:
    del now
    job.record.cores_in_use.add(told, training=job.phases.phase is Phase.TRAINING)


class ServerWork:
    """Done at the servers of `job`, until `ending` is set. identity: of the master.

    cores: tells the use of the machine's cores, which the job hears as often as of its servers.
    """

    def __init__(
        self,
        job: SharedJob,
        ending: threading.Event,
        identity: Identity | None = None,
        cores: Callable[[], ProcessorTime | None] = lambda: None,
    ) -> None:
        self._job = job
        self._cores = cores
        self._ending = ending
        self._servers = ServerConnections(job.config.token, identity)
        self._taker = CheckpointTaker(job.config, self._servers)
        self._publisher = DeltaPublisher(job.config, self._servers)
        self._between = BetweenUpdates(job, ending) if job.config.sync else None
        self._mover = SlotMover(self._servers, ending, self._between)
        self._updates = UpdateThread(ending)
        self._fences = Fences(self._servers, self.places, self.fenced, self._fencing_failed)
        self._threads = started_pool(5, "calls")

    def submit(self, instruction: ServerInstruction) -> None:
        """Start to execute an instruction; the job is told of the outcome."""
        match instruction:
            case FenceWorker():
                self._fences.submit(instruction)
            case ApplyUpdate(update):
                self._updates.submit(partial(self._apply_update, update))
            case TakeCheckpoint(final):
                self._threads.submit(self._job.attempt, partial(self._take_checkpoint, final))
            case PublishDelta(course):
                self._threads.submit(self._job.attempt, partial(self._publish, course))
            case ConfirmServers():
                self._threads.submit(self._job.attempt, self._confirm)
            case MoveSlots(table):
                saved = self._between if self._job.config.log_at_servers else None
                move = partial(self._move_saved, saved) if saved else self._move_slots
                self._threads.submit(self._job.attempt, partial(move, table))
            case SettleServers(decided):
                self._threads.submit(self._job.attempt, partial(self._settle_again, decided))
            case RemoveCheckpoints(numbers):
                self._threads.submit(self._taker.remove, numbers)
            case _:
                assert_never(instruction)

    def give_up_waiting(self) -> None:
        """Wait for no server any more, as the job has ended."""
        self._servers.give_up_waiting()

    def close(self) -> None:
        """End the threads; what has not begun is dropped."""
        self._threads.shutdown(cancel_futures=True)
        self._updates.close()
        self._fences.close()

    def close_connections(self) -> None:
        """Once nobody asks the servers any more."""
        self._servers.close()

    def places(self) -> dict[ServerId, Place]:
        """The places where all servers with slots are, or were last."""
        return self._job.apply(lambda job, _: places_of(job.members.servers.values()))

    def all_places(self) -> dict[ServerId, Place]:
        """The places of `places`, and of the servers that are to get slots."""
        return self._job.apply(lambda job, _: places_of(job.members.servers_and_joining))

    # ------------------------------------------------------------ status

    def poll(self) -> None:
        """Ask for the servers' status until the job ends."""
        while not self._ending.wait(POLL_SECONDS):
            self.poll_once()

    def poll_once(self) -> None:
        """Ask all servers for their status, and tell the job."""
        there = {server: place for server, place in self.all_places().items() if place.address}
        for server, status in self._servers.statuses(there, self._job.position()):
            start = self._job.look(partial(_start_of, server))
            if start is None:
                continue  # it has left meanwhile
            with contextlib.suppress(WireError):  # then the job has failed
                self._job.hear(start, status.journal)
                self._job.apply(partial(note_status, server, status))
        if (told := self._cores()) is not None:
            self._job.apply(partial(_note_cores, told))

    def shut_down(self, servers: list[ServerId], reason: str) -> None:
        """Ask these servers to end."""
        places = self.all_places()
        for server in servers:
            if (place := places.get(server, NOWHERE)).address:
                self._servers.shut_down(server, place, reason)

    def _confirm(self) -> None:
        places = self.places()
        has: dict[ServerId, tuple[LastPush, ...]] = {}
        for server, status in self._servers.statuses(places, self._job.position(), pushes=True):
            has[server] = tuple(map(LastPush.from_message, status.has))
        if len(has) < len(places):
            self._ending.wait(AGAIN_SECONDS)
        told = [has.get(server) for server in places]
        self._job.apply(events.ServersConfirmed(told))

    # ------------------------------------------------------------ checkpoints and updates

    def find_checkpoints(self) -> None:
        """Tell the job of the checkpoints that are there."""
        if self._job.config.command == "train":
            found = self._taker.found()
            if found or self._job.look(lambda job, _: job.checkpoints.kept.all):
                self._job.apply(events.CheckpointsFound(found))

    def _take_checkpoint(self, final: bool) -> None:
        self._job.apply(events.CheckpointBegun())
        self._finish_checkpoint(final)

    def _finish_checkpoint(self, final: bool) -> bool:
        """Take the checkpoint that was begun; return whether it is complete."""
        try:
            taken = self._taker.take(self.places(), self._fixed, self._undisturbed)
        except Exception as error:
            if not isinstance(error, TakingError):
                logger.exception("taking a checkpoint failed")
            reason = str(error) or type(error).__name__
            self._job.apply(events.CheckpointFailed(reason, final))
            return False
        logger.info("took %s", taken)
        self._job.apply(events.CheckpointTaken(taken, final))
        if self._job.config.keeps_log:
            # Not before whoever restores is told of it.
            for server, place in self.places().items():
                self._servers.complete_checkpoint(server, place, taken.number, taken.nonce)
        return True

    # ------------------------------------------------------------ deltas

    def look_at_published(self) -> None:
        """Look at the folder of --publish before anything is trained."""
        if self._job.config.publish:
            try:
                self._publisher.check()
            except PublishError as error:
                if error.for_good:
                    self._job.apply(events.DeltaFailed(str(error), for_good=True))
                else:
                    self._job.warn(str(error))

    def _publish(self, course: int | None) -> None:
        """Publish a delta. course: as of `PublishDelta`."""
        places, position = self._job.apply(_position_of)
        try:
            published = self._publisher.publish(places, position)
        except Exception as error:
            if not isinstance(error, PublishError):
                logger.exception("publishing a delta failed")
            why = str(error) or type(error).__name__
            for_good = isinstance(error, PublishError) and error.for_good
            self._job.apply(events.DeltaFailed(why, for_good))
        else:
            self._job.apply(events.DeltaPublished(published, course))

    # ------------------------------------------------------------ moves of slots

    def _move_saved(self, between: BetweenUpdates, message: pb.RoutingTable) -> None:
        """Move slots with no update from a checkpoint before that until the one that follows.

        Logs at servers end with a move, and with --sync a server that lacks an update ends the job.
        """
        try:
            with between.quiet():
                begun = self._job.apply(partial(_begin_saving, message))
                if begun and not self._finish_checkpoint(final=False):
                    raise MovingError("a checkpoint is to be taken before")
                self._move_slots(message)
                between.wait_saved()
        except MovingError as error:
            why = str(error)
            self._job.apply(events.MoveFailed(why))

    def _move_slots(self, message: pb.RoutingTable) -> None:
        before, there = self._job.apply(lambda job, _: (job.moves.routing, _there(job, message)))
        decided = False

        def committed(places: Mapping[ServerId, Place], job: Job, now: float) -> None:
            nonlocal decided
            _commit_move(message, places, job, now)
            decided = True  # whatever becomes of its writing: the job goes by it

        def commit(places: Mapping[ServerId, Place]) -> None:
            self._job.apply(partial(committed, places))

        attempt = self._job.apply(partial(_begin_move, message))
        if attempt is None:
            return
        try:
            moved = self._mover.move(before, message, attempt, there, commit)
        except Exception as error:
            if not isinstance(error, MovingError):
                logger.exception("moving rows failed")
            why = str(error) or type(error).__name__
            self._settle(why=why, decided=decided)
        else:
            self._mover.settle(self._table, self.all_places)
            took = moved.seconds, moved.paused
            self._job.apply(events.MoveEnded(moved.slots, moved.rows, moved.size, *took))

    def _settle_again(self, decided: bool) -> None:
        self._settle(why="the master was started again", decided=decided)

    def _settle(self, why: str, *, decided: bool) -> None:
        """Tell the servers that a move is over. decided: it was, and a later step failed."""
        self._mover.settle(self._table, self.all_places)
        self._job.apply(events.MoveEnded() if decided else events.MoveFailed(why))

    def _table(self) -> tuple[pb.RoutingTable, int]:
        return self._job.apply(lambda job, _: (job.moves.routing.to_message(), job.moves.attempt))

    def _fixed(self) -> dict[str, Any]:
        return self._job.apply(_fixed) | {"journal": position_json(self._job.position())}

    def _undisturbed(self, fix: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Call `fix` while no update of --sync is under way: all servers have the same ones."""
        if not self._job.config.sync:
            return fix()
        fixed = self._updates.between(
            lambda: self._job.apply(lambda job, _: job.updates.applying), fix
        )
        if fixed is None:
            raise TakingError("the job has ended")
        return fixed

    def _apply_update(self, update: Update) -> None:
        try:
            while (version := self._applied_by_all(update)) is None:
                # A server is away, and will be started again, or the job ends.
                if self._ending.wait(AGAIN_SECONDS):
                    return
            self._job.note(events.UpdateApplied(update.number, version))
        except Exception as error:
            logger.exception("update %d failed", update.number)
            message = f"update {update.number} failed: {error}"
            self._job.fail(Failure.internal(message, traceback.format_exc()))

    def _applied_by_all(self, update: Update) -> int | None:
        """The version after an update; None if a server cannot be reached now."""
        try:
            return self._servers.apply_update(self.places(), update)
        except PeerUnavailableError as error:
            logger.debug("update %d: %s", update.number, error)
        except WireError as error:
            if error.kind not in (pb.NOT_READY, pb.WRONG_PEER, pb.NOT_REGISTERED):
                raise
            logger.debug("update %d: %s", update.number, error)
        return None

    # ------------------------------------------------------------ fences

    def fenced(self, fence: FenceWorker, said: Mapping[ServerId, Said]) -> bool:
        """Tell the job that all servers refuse a worker; as `Fences` has it."""
        return self._job.apply(partial(_fenced, fence, said))

    def _fencing_failed(self, error: Exception) -> None:
        if self._ending.is_set():
            return
        logger.error("fencing a worker failed", exc_info=error)
        failure = Failure.internal(f"fencing a worker failed: {error}", traceback.format_exc())
        self._job.fail(failure)
