"""Random jobs with scale, moves, checkpoints, drains, new masters and resumptions."""

from __future__ import annotations

from collections import Counter

from shoal.config.job import JobConfig
from shoal.master.calls.server_work import _begin_move
from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import (
    Instruction,
    MoveSlots,
    SettleServers,
    TakeCheckpoint,
    TerminateProcess,
)
from shoal.master.job.members.members import ProcessState
from shoal.master.job.moves.moves import Moving
from shoal.master.journal.events import Event, RecordedJob
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb
from tests.master.random_jobs import RandomJob, plain

RESUMPTIONS = 3


class RandomCourse(RandomJob):
    """As `RandomJob`; another master follows, to which each event is done again as it comes.

    seen: how often what was done.
    """

    def __init__(self, config: JobConfig, seed: int) -> None:
        super().__init__(config, seed)
        self._config = config
        self.seen: Counter[str] = Counter()
        self._take_over(self.job)

    def _take_over(self, job: RecordedJob) -> None:
        """Go on with a job that has all events until now."""
        self._moves: list[pb.RoutingTable] = []
        self._settles: list[bool] = []
        self._checkpoints: list[bool] = []
        self.fences.clear()
        self.updates.clear()
        self.follower = RecordedJob(self._config, lambda _: None)
        self.follower.replay(map(plain, self.events))
        self.job.listen(lambda _: None)
        self.job = job
        job.listen(self._told)

    def _told(self, event: Event) -> None:
        self.events.append(event)
        self.follower.replay([plain(event)])

    @property
    def over(self) -> bool:
        """Whether nothing can happen any more."""
        succeeded = self.job.phases.phase in (Phase.SUCCEEDED, Phase.DEGRADED)
        return succeeded or (self.job.ended and len(self.job.resumptions) >= RESUMPTIONS)

    def happens(self) -> None:
        """See RandomJob; a job that has ended is resumed."""
        if self.job.ended and not self.over:
            self._resume()
        else:
            super().happens()

    def instructed(self, each: Instruction) -> None:
        """See RandomJob."""
        match each:
            case MoveSlots(table):
                self._moves.append(table)
            case SettleServers(decided):
                self._settles.append(decided)
            case TakeCheckpoint(final):
                self._checkpoints.append(final)
            case TerminateProcess(start) if start in self.running:
                self._exit(start)
            case _:
                super().instructed(each)

    def _servers(self) -> list[Start]:
        running = sorted(self.running, key=str)
        return [each for each in running if isinstance(each.process, ServerId)]

    def _scale(self) -> None:
        if self.draw.random() < 0.1:
            self.job.scale(self.draw.randint(1, 4), self.now)

    def _scale_servers(self) -> None:
        if self.draw.random() < 0.15:
            servers = self.draw.randint(1, 4)
            self.job.check_servers(servers, self.now)
            self.job.scale_servers(servers, "", self.now)

    def _move(self) -> None:
        job, stage = self.job, self.job.moves._stage
        if self._settles:
            if self._settles.pop(0):
                job.move_ended(-1, 0, 0, 0.0, 0.0, self.now)
            else:
                job.move_failed("the master was started again", self.now)
        elif stage is Moving.IDLE and self._moves:
            _begin_move(self._moves.pop(0), job, self.now)
        elif stage is Moving.BEGUN and self.draw.random() < 0.3:
            job.move_failed("a server died meanwhile", self.now)
        elif stage is Moving.BEGUN and not (job.ended or job.members.fencing):
            job.move_committed(self.now)
            self.seen["moved"] += 1
        elif stage is Moving.SETTLING:
            job.move_ended(5, 5, 5, 1.0, 0.1, self.now)

    def _checkpoint(self) -> None:
        if not self._checkpoints:
            return
        if self.job.checkpoints._ordered:
            self.job.checkpoint_begun(self.now)
        elif self.draw.random() < 0.3:
            self.job.checkpoint_failed("no room", self._checkpoints.pop(0), self.now)
        else:
            self.job.checkpoint_fixed(self.now)
            self.seen["taken"] += 1
            taken = Taken(self.seen["taken"], self.version, 1, 0.1, f"n{self.seen['taken']}")
            self.job.checkpoint_taken(taken, self._checkpoints.pop(0), self.now)

    def _drain(self) -> None:
        servers = self._servers()
        if servers and self.draw.random() < 0.2:
            start = self.draw.choice(servers)
            closed = self.draw.random() < 0.5
            server = start.process
            assert isinstance(server, ServerId)
            self.job.server_draining(server, start.incarnation, self.now, 60.0, closed=closed)

    def _server_dies(self) -> None:
        servers = self._servers()
        if servers and self.draw.random() < 0.15:
            self._exit(self.draw.choice(servers))

    def _meet(self) -> None:
        worker, incarnation = self._any_worker()
        for server, member in list(self.job.members.servers.items()):
            if self.draw.random() < 0.1:
                told = LastPush(worker, incarnation, self.draw.randint(0, 5), 0, 0)
                self.job.worker_met(server, member.incarnation, told, self.now)

    def _replace(self) -> None:
        alive = ProcessState.ALIVE
        there = [each for each in self.job.members.workers.values() if each.state is alive]
        if there and self.draw.random() < 0.03:
            member = self.draw.choice(there)
            self.job.worker_replaced(member.id, member.incarnation, "slow", self.now)

    def _process_waits(self) -> None:
        if self.running and self.draw.random() < 0.1:
            start = self.draw.choice(sorted(self.running, key=str))
            self.job.process_waits(start, "room", self.now, error=self.draw.random() < 0.2)

    def _new_master(self) -> None:
        if self.draw.random() < 0.02:
            self.seen["masters"] += 1
            self._take_over(self.follower)
            self.job.master_restarted(self.now)

    def _resume(self) -> None:
        self.seen["resumed"] += 1
        self.running.clear()
        self._take_over(self.job)
        least = self._config.evaluation_workers + 1
        changes = {
            "workers": str(self.draw.randint(least, 4)),
            "servers": str(self.draw.randint(2, 3)),
        }
        kept = self.job.checkpoints.kept.all
        restored = self.draw.choice([None, *kept])
        newest = restored.number if restored is not None else 0
        given_up = [each.number for each in kept if each.number > newest]
        token = f"t{len(self.job.resumptions)}"
        self.job.resumed(token, changes, restored, given_up, [], self.now)

    CHOICES = (
        *RandomJob.CHOICES * 2,
        *[_scale] * 2,
        *[_scale_servers] * 2,
        *[_move] * 6,
        *[_checkpoint] * 5,
        _drain,
        *[_server_dies] * 2,
        _meet,
        _replace,
        _process_waits,
        _new_master,
    )
