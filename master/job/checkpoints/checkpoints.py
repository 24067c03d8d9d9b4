"""The time of each checkpoint, and the state of the one under way: pure decisions.

Owns the policy of --checkpoint-steps and --checkpoint-seconds, and the state of the checkpoint
under way. kept_checkpoints.py owns those that are complete, last_checkpoint.py the patience with
the last one. Taking one is take_checkpoint.py's; a shard's content is the servers'.
No I/O, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from shoal.base.transitions import Transitions
from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.checkpoints.drains import Drains
from shoal.master.job.checkpoints.kept_checkpoints import KeptCheckpoints
from shoal.master.job.checkpoints.last_checkpoint import LastCheckpoint
from shoal.master.job.events import Taken
from shoal.master.job.heard import hears, uses_heard
from shoal.master.job.instructions import RemoveCheckpoints, TakeCheckpoint
from shoal.master.job.state import JobState
from shoal.master.work.ids import Start
from shoal.master.work.phases import Phase

RETRY_SECONDS = 5.0
"""Before a checkpoint that a server asks for is tried again."""

LONG_SECONDS = 1.0
"""A checkpoint that takes less holds nobody up for long."""

CLOSE = 3
"""So many long ones in a row, each sooner after the one before than it takes, are worth a word."""


class Taking(enum.Enum):
    """The state of the next checkpoint."""

    IDLE = "none is under way"
    BEGUN = "one has begun, and has what was trained until then"


TRANSITIONS = Transitions(
    "the checkpoint under way",
    {
        # It may fail before it begins. And one that was under way as the master ended, or the job
        # was resumed, may end when it is known no longer.
        Taking.IDLE: {Taking.BEGUN, Taking.IDLE},
        Taking.BEGUN: {Taking.IDLE},
    },
)


@hears("_version", "_time")
class Schedule:
    """The times at which checkpoints are due, by steps and seconds, as the job is configured."""

    def __init__(self, config: JobConfig) -> None:
        self._steps = config.checkpoint_steps
        self._seconds = config.checkpoint_seconds
        self._version: int | None = None  # of the last one, or when it began to count
        self._time = 0.0

    def begin_anew(self) -> None:
        """Count from the next question on."""
        self._version = None

    def ordered(self, version: int, now: float) -> None:
        """A checkpoint is taken of about this version."""
        self._version, self._time = version, now

    def due(self, version: int, now: float) -> bool:
        """True if the model's version, or the time, asks for one."""
        if self._version is None:
            self.ordered(version, now)
        assert self._version is not None
        by_steps = self._steps and version // self._steps > self._version // self._steps
        return bool(by_steps or (self._seconds and now - self._time >= self._seconds))


@hears("_ordered", "_wanted", "_yields")
class Checkpoints:
    """The checkpoints of one job.

    kept: those that are there. count: how many were taken. failures: how many could not be.
    last_failure: why, of the last of them. drains: servers that wait for one before they end.
    refused: the number of the one that the job was resumed from, and why it is not good; None: no
    server has said so.
    """

    def __init__(self, config: JobConfig, state: JobState) -> None:
        self._phases = state.phases
        self._work = state.work
        self._record = state.record
        self._members = state.members
        self._instructions = state.instructions
        self._moves = state.moves
        self._enabled = self.enabled(config)
        self._exports = bool(config.output)
        # What the job begins with is in no checkpoint of its own until the first one.
        self._needs_first = bool(config.begins_with)
        self._taking = Taking.IDLE
        self._ordered = False  # one is to begin
        self._yields = False  # after one, a move has the turn
        self._schedule = Schedule(config)
        self._wanted = self._needs_first
        self._asked_after = 0.0
        self._mark = False  # the next one, or the one under way, is of the best evaluation
        self._last = LastCheckpoint(config.storage_patience_seconds)
        self.drains = Drains()
        self.kept = KeptCheckpoints(config.keep_checkpoint_max)
        self.count = 0
        self.failures = 0
        self._taken_at: float | None = None
        self._close = 0  # the last ones in a row that are as CLOSE says
        self.last_failure = ""
        self.refused: tuple[int, str] | None = None

    @staticmethod
    def enabled(config: JobConfig) -> bool:
        """True if the job takes checkpoints at all."""
        return config.command == "train" and bool(
            config.checkpoint_steps or config.checkpoint_seconds
        )

    @property
    def under_way(self) -> bool:
        """True if a checkpoint is being taken."""
        return self._ordered or self._taking is not Taking.IDLE

    @property
    def servers_drain(self) -> bool:
        """True if a server waits for a checkpoint, or was told of it and has not ended yet."""
        return self.drains.pending or self.drains.leaving(self._members.alive_servers)

    def age(self, now: float) -> float | None:
        """Seconds since the newest one was taken; before the first, since training began.

        None where no one is taken, or before training.
        """
        if not self._enabled:
            return None
        if self._taken_at is None:
            began = self._record.training_started
            return None if began is None else now - began
        return now - self._taken_at

    def _go(self, target: Taking) -> None:
        self._taking = TRANSITIONS.step(self._taking, target)
        self._ordered = False

    def found(self, event: events.CheckpointsFound, _: float) -> None:
        """Checkpoints that the job took before its master was started."""
        self.kept.found(event.there)
        self._phases.newest_checkpoint = self.kept.newest

    def master_restarted(self) -> None:
        """End the one that was under way; the time since the last one is not known."""
        self._follow_evaluations()
        self._forget()
        self._wanted = self._mark or (self._needs_first and not self.count)

    def resumed(
        self, restored: Taken | None, given_up: Sequence[int], *, same_servers: bool
    ) -> None:
        """The job goes on from this checkpoint.

        given_up: numbers of others that are there, which are damaged, or of a past that is
        not this job's any more. same_servers: so many as before, or it is known all the same what
        older checkpoints have; else nobody is to go on from one.
        """
        self.refused = None
        self._forget()
        # An evaluation of the course before leads to nothing more.
        self._wanted, self._mark = self._needs_first and restored is None, False
        self._last.resumed()
        newest = restored.number if restored is not None else 0
        self.kept.resumed(newest, given_up, older=same_servers)
        self._phases.newest_checkpoint = self.kept.newest

    def _forget(self) -> None:
        """Other processes go on: the checkpoint under way ended with those that took it.

        So did the order for one, which a server may have made before this master looked at the
        others: it would be taken beside the next one.
        """
        kept = [each for each in self._instructions if not isinstance(each, TakeCheckpoint)]
        self._instructions[:] = kept
        self._go(Taking.IDLE)
        self.drains = Drains()  # who still waits asks again
        self._schedule.begin_anew()

    def begun(self, _event: events.CheckpointBegun, _: float) -> None:
        """The checkpoint under way has what was trained until now."""
        self._follow_evaluations()
        self._go(Taking.BEGUN)
        self._wanted = self._moves.wants_checkpoint = False
        self._work.copies.checkpoint_begun()
        # Only one that is begun after training has all that was trained.
        self._last.begun(self._phases.returns if self._phases.saves else None)

    def fixed(self, event: events.CheckpointFixed, now: float) -> None:
        """All servers have fixed what they hold: the journal says when."""

    def tick(self, now: float) -> None:
        """Order a checkpoint if one is due, and all servers are there to take it."""
        self._follow_evaluations()
        self._order(now)

    @uses_heard
    def _order(self, now: float) -> None:
        # While rows move, none of the servers has all that is its own, and nothing else.
        if self.under_way or self._moves.under_way or not self._members.servers_ready:
            return
        if self.drains.leaving(self._members.alive_servers):
            return  # its successor is to take it
        moves = self._moves.pending or self._moves.departures.serving(self._members)
        urgent = self._phases.saves or self.drains.wanted
        if (self._yields and moves and not urgent) or not self._due(now):
            return
        self._ordered = True
        self._wanted = False
        self.drains.begun()
        self._schedule.ordered(self._newest, now)
        self._instructions.append(TakeCheckpoint(final=self._phases.saves))

    def _follow_evaluations(self) -> None:
        """Take up what the evaluations led to.

        At any time between two events of the journal it leads to the same: `tick` is none.
        """
        follow = self._work.follow_ups
        if self._taking is Taking.BEGUN:
            return  # what is under way may have begun before the evaluation's values
        if follow.checkpoint_wanted:
            self._wanted, self._mark = True, follow.best_checkpoint
        elif follow.best_checkpoint and self._phases.saves:
            self._mark = True  # training is over: the one to come is of these values
        elif follow.best_checkpoint and self.kept.all:
            self.kept.best = self.kept.newest  # taken at the end of training: of these values
        follow.checkpoint_wanted = follow.best_checkpoint = False

    @property
    def _newest(self) -> int:
        members = self._members.servers.values()
        return max(self._phases.version, *(member.version for member in members))

    def _due(self, now: float) -> bool:
        if self._phases.saves:
            return now >= self._last.after
        if self._phases.phase != Phase.TRAINING or not self._enabled:
            return False
        due = self._schedule.due(self._newest, now)
        asked = now >= self._asked_after and any(
            member.wants_checkpoint for member in self._members.servers.values()
        )
        moved = self._moves.wants_checkpoint
        drains = self.drains.wanted and not self._moves.departures.serving(self._members)
        drains = drains and now >= self._asked_after
        return due or asked or self._wanted or moved or drains

    def moves_had_their_turn(self) -> None:
        """No move has been ordered that could be: another checkpoint may follow the last one."""
        self._yields = False

    def draining(self, start: Start, now: float) -> str | None:
        """A server was told to end, and takes no more pushes.

        What came of the checkpoint that it waits for, in words; None while it has to wait.
        """
        if self._phases.phase != Phase.TRAINING and not self._phases.saves:
            return "nothing is trained now"
        if not self._enabled and not self._phases.saves:
            return "the job takes no checkpoints: what it has acknowledged is lost"
        if not self.drains.known(start):
            self._record.note(now, f"{start.process} is told to end; first a checkpoint is taken")
        outcome = self.drains.ask(start)
        self.tick(now)
        return outcome

    def taken(self, event: events.CheckpointTaken, now: float) -> None:
        """A checkpoint is complete; the surplus of older ones goes."""
        taken = event.taken
        self._go(Taking.IDLE)
        for member in self._members.servers.values():
            member.wants_checkpoint = False  # until it says so again
        self.count += 1
        if not event.final:
            self._note_close(taken.seconds, now)
        self._taken_at = now
        self._moves.unsaved = False
        self._keep(taken)
        self.drains.taken(f"all that it has acknowledged is in checkpoint {taken.number}")
        if self._mark:
            self.kept.best, self._mark = taken.number, False
        if surplus := self.kept.surplus():
            self._instructions.append(RemoveCheckpoints(surplus))
        copies = self._work.copies
        copies.checkpoint_taken(taken.number, [each.number for each in self.kept.all])
        self._work.taken_back.clear()
        if event.final and self._last.has_all(self._phases.returns):
            self._phases.saved(now)
        self._yields = True
        self.tick(now)

    def _note_close(self, seconds: float, now: float) -> None:
        """A checkpoint that took so long is complete: say so if there is little between them."""
        between = seconds if self._taken_at is None else now - seconds - self._taken_at
        self._close = self._close + 1 if max(between, LONG_SECONDS) < seconds else 0
        if self._close == CLOSE:
            self._record.note(
                now,
                "warning: checkpoints take most of the time: the last one took "
                f"{seconds:.1f} s and began {max(between, 0.0):.1f} s after the one before; give "
                "a larger --checkpoint-seconds or --checkpoint-steps, or, where full logs of "
                "updates ask for them, --log-mb",
            )

    def _keep(self, taken: Taken) -> None:
        self.kept.add(taken)
        self._phases.newest_checkpoint = self.kept.newest

    def recovered(self, event: events.CheckpointRecovered, now: float) -> None:
        """A checkpoint was made of an older one and the log after it."""
        number, replayed = event.taken.number, event.replayed
        what = f"checkpoint {event.base}" if event.base else "the beginning"
        said = f"checkpoint {number} was made of {what} and {replayed} updates of the log"
        self._record.note(now, said)
        self._keep(event.taken)
        self._work.copies.checkpoint_recovered(number)

    def refuse(self, event: events.CheckpointRefused, now: float) -> None:
        """A server finds its shard damaged. Raises WireError."""
        registered = self._members.server_calls(event.server, event.incarnation).registered
        newest = self.kept.newest if self.kept.all else None
        over = self._phases.phase.ended or self.refused is not None
        if not over and not registered and newest == event.number:
            self.refused = event.number, event.why
            text = f"warning: checkpoint {event.number} is refused: {event.why}"
            self._record.note(now, text)

    def failed(self, event: events.CheckpointFailed, now: float) -> None:
        """The checkpoint under way could not be taken; the job goes on without it."""
        reason = event.reason
        self._go(Taking.IDLE)
        self._asked_after = now + RETRY_SECONDS
        self.failures += 1
        self.last_failure = reason
        self.drains.failed()
        newest = f"number {self.kept.newest}" if self.kept.all else "none"
        self._record.note(
            now, f"warning: a checkpoint could not be taken: {reason}; the newest is {newest}"
        )
        # Where nothing else will have the model, the storage gets the patience that data has.
        only = self._phases.giving_up is not None or not self._exports
        given_up = event.final and self._last.failed(now, only=only)
        if given_up and self._last.has_all(self._phases.returns):
            self._phases.saved(now, lacks=reason)
        self._yields = True
        self.tick(now)

    @property
    def waits_for(self) -> str:
        """The event that the saving of the trained model waits for, in words; empty if none."""
        if not (self._phases.saves and self._last.failures):
            return ""
        return f"a checkpoint of what was trained, which failed: {self.last_failure}"
