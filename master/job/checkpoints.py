"""When a checkpoint is taken, which are kept, and what the job knows of them: pure decisions.

Owns the policy of --checkpoint-steps, --checkpoint-seconds and --keep-checkpoint-max.
Taking one is snapshots.py's; what is in a share is the servers'. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.config.job import JobConfig
from shoal.master.job.flow import Flow
from shoal.master.job.handover import HandOvers
from shoal.master.job.instructions import Instruction, RemoveCheckpoints, TakeCheckpoint
from shoal.master.job.membership import Membership
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.phases import Phase
from shoal.master.work.record import JobRecord
from shoal.master.work.workload import Workload
from shoal.proto.backoff import doubled_seconds

FINAL_ATTEMPTS = 2
"""Of the checkpoint at the end of training: the first may have met a server's death."""

FINAL_PAUSE_SECONDS = (1.0, 30.0)
"""Between these attempts: the first pause, which doubles, and the longest."""

RETRY_SECONDS = 5.0
"""Before a checkpoint that a server asks for is tried again."""


@dataclass(frozen=True)
class Taken:
    """A checkpoint that is complete.

    bytes: of all its files. seconds: it took. nonce: of the attempt to take it, which tells
    it from another of the same number.
    """

    number: int
    version: int
    bytes: int
    seconds: float
    nonce: str = ""


class Checkpoints:
    """The checkpoints of one job.

    kept: those that are there, oldest first. best: number of that of the best evaluation, by
    the Checkpoint callback, which is never removed; 0 for none. count: how many were taken.
    failures: how many could not be. last_failure: why, of the last of them. hand_overs:
    servers that wait for one before they end. refused: the number of the one that the job was
    resumed from, and why it is not good; None: no server has said so.
    """

    def __init__(
        self,
        config: JobConfig,
        flow: Flow,
        work: Workload,
        record: JobRecord,
        members: Membership,
        instructions: list[Instruction],
    ) -> None:
        """instructions: what is to be done is appended."""
        self._flow = flow
        self._work = work
        self._record = record
        self._members = members
        self._instructions = instructions
        self.hand_overs = HandOvers()
        self._enabled = self.enabled(config)
        self._steps = config.checkpoint_steps
        self._seconds = config.checkpoint_seconds
        self._keep = config.keep_checkpoint_max
        self._exports = bool(config.output)
        self._patience = config.storage_patience_seconds
        # The rows of --restore-from are in no checkpoint until the first one.
        self._needs_first = self._wanted = bool(config.restore_from)
        self._under_way = False
        self._begun = False  # the one under way was, as the journal has it
        self._version: int | None = None
        self._time = 0.0
        self._final_failures = 0
        self._final_since = self._final_after = 0.0  # the first failure; before the next attempt
        self._final_hope = False  # at the last failure: nothing else had the model
        # How often training had begun again when the one under way was begun after it.
        self._after: int | None = 0
        self._asked_after = 0.0
        self._given_up: set[int] = set()
        self._outdated: list[int] = []  # of these, to be removed once there is a newer one
        # Whose shares some server has found damaged. It is not to restore them later either: they
        # may have what was trained again since, because it lacked it.
        self._damaged: dict[ServerId, set[int]] = {}
        self._mark = False  # the next one, or the one under way, is of the best evaluation
        self.kept: list[Taken] = []
        self.best = 0
        self.count = 0
        self.failures = 0
        self.last_failure = ""
        self.refused: tuple[int, str] | None = None

    @staticmethod
    def enabled(config: JobConfig) -> bool:
        """Whether the job takes checkpoints at all."""
        return config.command == "train" and bool(
            config.checkpoint_steps or config.checkpoint_seconds
        )

    def found(self, kept: Sequence[Taken]) -> None:
        """Checkpoints that the job took before its master was started, oldest first."""
        self.kept = [each for each in kept if each.number not in self._given_up]
        self._note_newest()

    def _note_newest(self) -> None:
        self._flow.newest_checkpoint = self.kept[-1].number if self.kept else 0

    def master_restarted(self) -> None:
        """What was under way is not any more, and the time since the last is not known."""
        self._follow_evaluations()
        self._under_way = self._begun = False
        self.hand_overs = HandOvers()  # who still waits asks again
        first = self._needs_first or self._work.rules.first_checkpoint
        self._wanted = self._mark or (first and not self.count)
        self._version = None

    def resumed(
        self, restored: Taken | None, given_up: Sequence[int], *, same_servers: bool
    ) -> None:
        """The job goes on from this checkpoint.

        given_up: numbers of others that are there, which are damaged, or of a past that is
        not this job's any more. same_servers: so many as before, or it is known all the same what
        older checkpoints have; else nobody is to go on from one.
        """
        if restored is not None and not same_servers:
            older = [each.number for each in self.kept if each.number < restored.number]
            self._outdated += older
            self._given_up.update(older)
        self._given_up.update(given_up)
        self.refused = None
        self._under_way = self._begun = False
        self.hand_overs = HandOvers()
        self._version = None
        self._final_failures, self._final_after = 0, 0.0
        newest = restored.number if restored is not None else 0
        for damaged in self._damaged.values():
            damaged.discard(newest)
        self.found([each for each in self.kept if each.number <= newest])
        self.best = self.best if self.best in {each.number for each in self.kept} else 0

    def offered(self, server: ServerId) -> list[Taken]:
        """What a server may restore that is started again, the newest first."""
        damaged = self._damaged.get(server, ())
        return [each for each in reversed(self.kept) if each.number not in damaged]

    def restored(self, server: ServerId, number: int) -> None:
        """A server that is started again has restored this one, and none of the newer ones."""
        newer = {each.number for each in self.kept if each.number > number}
        if newer:
            self._damaged.setdefault(server, set()).update(newer)

    def begun(self) -> None:
        """The checkpoint under way has what was trained until now."""
        self._follow_evaluations()
        self._begun = True
        self._wanted = False
        self._work.copies.checkpoint_begun()
        if not self._flow.saves:
            self._after = None
        elif self._after != self._flow.returns:
            self._after, self._final_failures = self._flow.returns, 0
            self._final_after = 0.0

    def tick(self, now: float) -> None:
        """Have a checkpoint taken if one is due, and all servers are there to take it."""
        self._follow_evaluations()
        if self._under_way or not self._members.servers_ready or not self._due(now):
            return
        self._under_way = True
        self._wanted = False
        self.hand_overs.begun()
        self._version, self._time = self._newest, now
        # Only one that is begun after training has all that was trained.
        self._instructions.append(TakeCheckpoint(final=self._flow.saves))

    def _follow_evaluations(self) -> None:
        """Take up what the evaluations led to.

        At any time between two events of the journal it leads to the same: `tick` is none.
        """
        follow = self._work.follow_ups
        if self._begun:
            return  # what is under way may have begun before the evaluation's values
        if follow.checkpoint_wanted:
            self._wanted, self._mark = True, follow.best_checkpoint
        elif follow.best_checkpoint and self.kept:
            self.best = self.kept[-1].number  # taken at the end of training: of these values
        follow.checkpoint_wanted = follow.best_checkpoint = False

    @property
    def _newest(self) -> int:
        slots = self._members.servers.values()
        return max(self._flow.version, *(slot.version for slot in slots))

    def _due(self, now: float) -> bool:
        if self._flow.saves:
            return now >= self._final_after
        if self._flow.phase != Phase.TRAINING or not (self._steps or self._seconds):
            return False
        if self._version is None:
            self._version, self._time = self._newest, now
        by_steps = self._steps and self._newest // self._steps > self._version // self._steps
        by_time = self._seconds and now - self._time >= self._seconds
        asked = now >= self._asked_after and any(
            slot.wants_checkpoint for slot in self._members.servers.values()
        )
        wanted = self._wanted or self.hand_overs.wanted or asked
        return bool(wanted or by_steps or by_time)

    def leaving(self, start: Start, now: float) -> str | None:
        """A server was told to end, and takes no more pushes.

        What came of the checkpoint that it waits for, in words; None while it has to wait.
        """
        if self._flow.phase != Phase.TRAINING and not self._flow.saves:
            return "nothing is trained now"
        if not self._enabled and not self._flow.saves:
            return "the job takes no checkpoints: what it has acknowledged is lost"
        if not self.hand_overs.known(start):
            self._record.note(now, f"{start.process} is told to end; first a checkpoint is taken")
        outcome = self.hand_overs.ask(start)
        self.tick(now)
        return outcome

    def taken(self, taken: Taken, final: bool, now: float) -> None:
        """A checkpoint is complete; the surplus of older ones goes."""
        self._under_way = self._begun = False
        for slot in self._members.servers.values():
            slot.wants_checkpoint = False  # until it says so again
        self.count += 1
        self.kept.append(taken)
        self._note_newest()
        self.hand_overs.ended(f"all that it has acknowledged is in checkpoint {taken.number}")
        if self._mark:
            self.best, self._mark = taken.number, False
        surplus = [each for each in self.kept[: -self._keep] if each.number != self.best]
        numbers = [*self._outdated, *(each.number for each in surplus)]
        if numbers:
            self.kept = [each for each in self.kept if each not in surplus]
            self._outdated.clear()
            self._instructions.append(RemoveCheckpoints(tuple(numbers)))
        copies = self._work.copies
        copies.checkpoint_taken(taken.number, [each.number for each in self.kept])
        if self._is_last(final):
            self._flow.saved(now)
        self.tick(now)

    def _is_last(self, final: bool) -> bool:
        """Whether nothing was trained since a final checkpoint was begun."""
        return final and self._after == self._flow.returns

    def recovered(self, taken: Taken, base: int, replayed: int, now: float) -> None:
        """As `Job.checkpoint_recovered`."""
        what = f"checkpoint {base}" if base else "the beginning"
        self._record.note(
            now,
            f"checkpoint {taken.number} was made of {what} and {replayed} updates of the log",
        )
        self.kept.append(taken)
        self._note_newest()
        self._work.copies.checkpoint_recovered(taken.number)

    def failed(self, reason: str, final: bool, now: float) -> None:
        """The checkpoint under way could not be taken; the job goes on without it."""
        self._under_way = self._begun = False
        self._asked_after = now + RETRY_SECONDS
        self.failures += 1
        self.last_failure = reason
        self.hand_overs.ended(f"the checkpoint could not be taken: {reason}")
        newest = f"number {self.kept[-1].number}" if self.kept else "none"
        self._record.note(
            now, f"warning: a checkpoint could not be taken: {reason}; the newest is {newest}"
        )
        if final and self._final_failed(now) and self._is_last(final):
            self._flow.saved(now, lacks=reason)
        self.tick(now)

    @property
    def waits_for(self) -> str:
        """What is to pass before the model that was trained is saved; empty if nothing."""
        if not (self._flow.saves and self._final_failures):
            return ""
        return f"a checkpoint of what was trained, which failed: {self.last_failure}"

    def _final_failed(self, now: float) -> bool:
        """A checkpoint of all that was trained has failed; whether to give it up.

        Where nothing else will have the model, the storage gets the patience that data has.
        """
        hope = self._flow.giving_up is not None or not self._exports
        if hope != self._final_hope:
            self._final_failures = 0  # it matters more than it did
        self._final_hope = hope
        self._final_failures += 1
        if self._final_failures == 1:
            self._final_since = now
        self._final_after = now + doubled_seconds(self._final_failures, *FINAL_PAUSE_SECONDS)
        waited = now - self._final_since >= self._patience
        return self._final_failures >= FINAL_ATTEMPTS and (waited or not hope)
