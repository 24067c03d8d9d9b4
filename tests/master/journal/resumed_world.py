"""A job that is killed and resumed, with workers and servers that the test plays."""

from __future__ import annotations

import copy
import random
from collections import Counter

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import (
    FenceWorker,
    RemoveCheckpoints,
    StartProcess,
    TakeCheckpoint,
)
from shoal.master.job.members.launcher import Exited
from shoal.master.journal import state
from shoal.master.journal.audit import Auditor
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.records import Entry
from shoal.master.journal.resume import merged
from shoal.master.work.accounts.applied import AppliedPush, LastPush
from shoal.master.work.accounts.spans import Coverage
from shoal.master.work.failures import Failure
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import NOTHING_TRAINED, DataDescribed, Done, Heartbeat, Trained
from shoal.master.work.units import Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import config, confirm

DATA = DataDescribed(training=(Source("a", 23), Source("b", 9)))


class Server:
    """Which records it has applied, how often, and the last push of each worker."""

    def __init__(self):
        self.applied = Counter()
        self.last = {}

    def push(self, worker, incarnation, sequence, task, done, records):
        self.applied.update(records)
        self.last[worker] = {
            "worker": worker.index,
            "incarnation": incarnation,
            "sequence": sequence,
            "task": task,
            "records_done": done,
        }

    def pushes(self):
        names = "incarnation", "sequence", "task", "records_done"
        return [
            LastPush(worker, *(push[name] for name in names)) for worker, push in self.last.items()
        ]

    def fence(self, worker, incarnation):
        push = self.last.get(worker)
        if push is None or push["incarnation"] != incarnation:
            return AppliedPush(0, 0, 0)
        return AppliedPush(push["sequence"], push["task"], push["records_done"])


class Worker:
    """One incarnation: its task, and which server has its push under way next."""

    def __init__(self, incarnation):
        self.incarnation = incarnation
        self.task = None
        self.ahead = None
        self.sequence = 0
        self.done = 0
        self.sent = 0  # servers that have the push under way


class World:
    """The job, its servers and its workers."""

    def __init__(self, seed, bad=(), *, logs=False):
        """bad: (source, record) at which workers fail. logs: what servers did outlives them."""
        self.draw = random.Random(seed)
        self.bad = frozenset(bad)
        self.config = self.configured()
        self.events = []
        self.states = {}  # by the number of events before: the state when one was begun
        self.job = RecordedJob(self.config, self.note)
        self.now = 0.0
        self.servers = [Server(), Server()]
        self.workers = {}
        self.fences = []
        self.checkpoint = None  # under way: (shards so far)
        self.saved = {}
        self.logs = logs
        self.history = []  # of all servers, since the job began or was resumed
        self.fixed = {0: [0, 0]}  # of each checkpoint: where there its shards were fixed
        self.numbers = 0
        self.resumptions = 0
        self.leased_ahead = 0
        self.job.begin(self.now)
        self.obey()

    def note(self, event):
        """Keep an event, and what the journal keeps of the job with it."""
        self.events.append(event)
        if event.method == "checkpoint_begun":
            self.states[len(self.events)] = state.dump(self.job)

    def in_checkpoint(self, number, shards):
        """What is in a checkpoint; a job read from the journal says the same."""
        assert all(self.job.work.copies.unreported(shard) is None for shard in shards)
        intervals = merged(self.job.work.copies.in_shards(number, shards))
        if self.states:
            first = max(self.states)
            job = state.load(self.states[first], lambda _: None)
            job.replay(self.events[first:])
            again = job.work.copies.in_shards(number, shards)
            assert self.records_in(again) == self.records_in(intervals)
        return intervals

    def records_in(self, intervals):
        """Which records are trained, and which of them touched besides."""
        coverage = Coverage(DATA.training, self.config.epochs)
        for interval in intervals:
            coverage.add(interval)
        return {
            (fate.epoch, fate.span.source, record): {kind for kind, n in fate.counts.items() if n}
            for fate in coverage.fates()
            for record in range(fate.span.start, fate.span.end)
        }

    def configured(self):
        """The job's configuration."""
        return config(
            workers="2",
            servers="2",
            epochs=2,
            checkpoint_steps=1,
            max_bad_records=len(self.bad),
        )

    def acts(self):
        """What may happen, as often as it is likely."""
        return (
            [self.work] * 20
            + [self.ask_ahead] * 4
            + [self.save] * 4
            + [self.fence, self.die, self.tell]
        )

    def obey(self):
        for each in self.job.take_instructions():
            if isinstance(each, FenceWorker):
                self.fences.append(each)
            elif isinstance(each, TakeCheckpoint):
                self.job.checkpoint_begun(self.now)
                self.checkpoint = (each.final, {})
                self.at = [0, 0]
            elif isinstance(each, RemoveCheckpoints):
                for number in each.numbers:
                    del self.saved[number]
            elif isinstance(each, StartProcess):
                process, incarnation = each.start.process, each.start.incarnation
                if isinstance(process, ServerId):
                    has = self.servers[process.index].pushes()
                    self.job.server_registered(process, incarnation, "a:1", self.now, has=has)
                else:
                    self.workers[process] = Worker(incarnation)
                    self.waiting = True
            else:
                self.told(each)

    def told(self, instruction):
        """Another instruction of the job."""

    def step(self):
        self.now += 0.01
        self.job.tick(self.now)
        confirm(self.job, self.now)
        self.draw.choice(self.acts())()
        self.obey()
        if self.logs:
            self.history.append(copy.deepcopy(self.servers))

    def work(self):
        if not self.workers:
            return
        name = self.draw.choice(sorted(self.workers))
        worker = self.workers[name]
        if worker.task is None:
            self.job.worker_registered(name, worker.incarnation, self.now)
            task = self.job.task_wanted(name, worker.incarnation, self.now)
            if isinstance(task, Task):
                worker.task, worker.done, worker.sent = task, 0, 0
        elif worker.task.kind != pb.TRAIN:
            self.report(name, worker, DATA)
        elif worker.done == worker.task.records:
            self.report(name, worker, Done())
        else:
            self.push(name, worker)

    def report(self, name, worker, outcome, trained=NOTHING_TRAINED):
        version = max(sum(server.applied.values()) for server in self.servers)
        task = worker.task.id
        made = outcome, version, self.now, trained, worker.sequence
        self.job.task_reported(name, worker.incarnation, task, *made)
        worker.task, worker.ahead = worker.ahead, None
        worker.done = worker.sent = 0

    def ask_ahead(self):
        """The next task beside the present one; as in a worker, not begun before that is done."""
        for name, worker in self.workers.items():
            if worker.task is not None and worker.task.kind == pb.TRAIN:
                ahead = self.job.task_ahead_wanted(
                    name, worker.incarnation, worker.task.id, self.now
                )
                if isinstance(ahead, Task):
                    worker.ahead = ahead
                    self.leased_ahead += 1

    def push(self, name, worker):
        task, span = worker.task, worker.task.span
        step = min(3, task.records - worker.done)
        records = [(task.epoch, span.source, span.start + worker.done + i) for i in range(step)]
        if worker.sent == 0:
            for _, source, record in records:
                if (source, record) in self.bad:
                    blamed = Span(source, record, record + 1)
                    failure = Failure(pb.USER_CODE, "bad", "Traceback", blamed)
                    self.report(name, worker, failure, Trained(worker.done, worker.done))
                    return
            worker.sequence += 1
            worker.order = self.draw.sample(range(2), 2)
        server = self.servers[worker.order[worker.sent]]
        server.push(name, worker.incarnation, worker.sequence, task.id, worker.done + step, records)
        worker.sent += 1
        if worker.sent == 2:
            worker.sent = 0
            worker.done += step

    def tell(self):
        for name, worker in self.workers.items():
            if worker.task is not None:
                beat = Heartbeat(worker.task.id, worker.done, worker.sequence)
                self.job.heartbeat(name, worker.incarnation, beat, self.now)

    def save(self):
        """One more server fixes its shard, or the checkpoint becomes complete."""
        if self.checkpoint is None:
            return
        final, shards = self.checkpoint
        left = [i for i in range(2) if i not in shards]
        if left:
            index = self.draw.choice(left)
            shards[index] = copy.deepcopy(self.servers[index])
            self.at[index] = len(self.history)
            if len(left) == 1:
                self.job.checkpoint_fixed(self.now)
            return
        self.checkpoint = None
        self.numbers += 1
        self.saved[self.numbers] = shards
        self.fixed[self.numbers] = self.at
        version = max(sum(shard.applied.values()) for shard in shards.values())
        self.job.checkpoint_taken(Taken(self.numbers, version, 1, 0.1), final, self.now)

    def die(self):
        if self.workers and self.draw.random() < 0.5 and not self.job.ended:
            name = self.draw.choice(sorted(self.workers))
            worker = self.workers.pop(name)
            start = Start(name, worker.incarnation)
            self.job.process_exited(Exited(start, None, 9, "log"), self.now)

    def fence(self):
        if self.fences:
            fence = self.fences.pop(0)
            pushes = [server.fence(fence.worker, fence.incarnation) for server in self.servers]
            self.job.fenced(fence.worker, fence.incarnation, pushes, self.now)

    def kill_and_resume(self):
        """All processes die; the newest checkpoint is restored."""
        self.resumptions += 1
        self.workers, self.fences, self.checkpoint = {}, [], None
        restored, intervals, pushes = None, [], ()
        # As a new master has it: done again from the journal.
        self.job = RecordedJob(self.config, self.note)
        self.job.replay(self.events[:])
        self.servers = [Server(), Server()]
        if self.logs:
            self.do_logs_again()
        changes = {"workers": str(self.draw.randint(1, 3)), "servers": "2", "relaunch_limit": 99}
        changes["max_bad_records"] = len(self.bad)
        given_up = []
        while True:
            if self.job.checkpoints.kept.all:
                restored = self.job.checkpoints.kept.all[-1]
                shards = self.saved[restored.number]
                pushes = [shards[i].pushes() for i in range(2)]
                intervals = self.in_checkpoint(restored.number, pushes)
                self.servers = [copy.deepcopy(shards[i]) for i in range(2)]
            token = f"r{self.resumptions}{len(given_up) * '+'}"
            of = restored, given_up, intervals, self.now
            self.job.resumed(token, changes, *of, shards=pushes)
            if len(self.job.checkpoints.kept.all) < 2 or self.draw.random() < 0.5:
                break
            # A server finds its shard damaged: all begin with the checkpoint before.
            given_up.append(self.job.checkpoints.kept.all.pop().number)
            self.job.take_instructions()
        self.history = [copy.deepcopy(self.servers)]
        self.fixed = {restored.number if restored is not None else 0: [1, 1]}
        self.obey()

    def do_logs_again(self):
        """A checkpoint of the newest one and of logs, which may end anywhere after it."""
        kept = self.job.checkpoints.kept.all
        base = kept[-1].number if kept else 0
        self.numbers += 1
        last = len(self.history) - 1
        ends = [
            self.draw.choice((last, self.draw.randint(at - 1, last))) for at in self.fixed[base]
        ]
        self.saved[self.numbers] = {
            i: copy.deepcopy(self.history[end][i]) if end >= 0 else Server()
            for i, end in enumerate(ends)
        }
        version = max(sum(shard.applied.values()) for shard in self.saved[self.numbers].values())
        taken = Taken(self.numbers, max(1, version), 1, 0.1)
        self.job.checkpoint_recovered(taken, base, 1, self.now)

    def report_at_the_end(self, kills, steps):
        """Kill and resume the job after so many steps each, let it end, and audit it.

        steps: within which it has to end after the last resumption.
        """
        for steps_before in kills:
            for _ in range(steps_before):
                self.step()
            if not self.job.ended:
                self.kill_and_resume()
        for _ in range(steps):
            if self.job.ended:
                break
            self.step()
        assert self.job.phases.phase.state in ("succeeded", "failed")
        auditor = Auditor(RecordedJob(self.config, lambda _: None))
        for number, event in enumerate(self.events):
            auditor.follow(Entry(float(number), event))
        report = auditor.report()
        assert report.problems == []
        return report
