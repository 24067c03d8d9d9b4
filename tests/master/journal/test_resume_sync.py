"""A resumed job of --sync trains each record in exactly one update, whenever it was killed."""

from __future__ import annotations

import copy
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import ApplyUpdate
from shoal.master.job.updates import Gradient
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.resume import given_by
from shoal.master.work.accounts.applied import AppliedPush
from tests.examples import examples
from tests.master.journal.resumed_world import World
from tests.master.strategies import config


class SynchronousWorld(World):
    """Servers that hold gradients until an update names them; all of them alike."""

    def __init__(self, seed):
        self.model = Counter()
        self.held = {}
        self.updates = []
        self.offers = {}
        super().__init__(seed)

    def configured(self):
        return config(
            workers="2",
            servers="1",
            epochs=2,
            checkpoint_steps=2,
            sync=True,
            grads_to_wait=2,
            sync_late=self.draw.choice(("drop", "fold")),
        )

    def acts(self):
        return [*super().acts(), *[self.apply_update] * 8]

    def told(self, instruction):
        if isinstance(instruction, ApplyUpdate):
            self.updates.append(instruction.update)

    def push(self, name, worker):
        gradient, joined, done = self.offers.get((name, worker.incarnation), (None, 0, 0))
        if gradient is None:
            joined = self.job.update_wanted(name, worker.incarnation, self.now)
            if joined is not None:
                worker.sequence += 1
                gradient = Gradient(name, worker.incarnation, worker.sequence)
                done = min(worker.done + 3, worker.task.records)
                span = worker.task.span
                self.held[gradient] = [
                    (worker.task.epoch, span.source, span.start + i)
                    for i in range(worker.done, done)
                ]
                self.offers[name, worker.incarnation] = gradient, joined, done
            return
        del self.offers[name, worker.incarnation]
        if self.job.gradient_offered(gradient, joined, worker.task.id, done, self.now):
            worker.done = done

    def apply_update(self):
        if self.updates:
            update = self.updates.pop(0)
            for gradient in update.gradients:
                self.model.update(self.held.pop(gradient))
            for gradient in update.dropped:
                self.held.pop(gradient, None)
            self.job.update_applied(update.number, sum(self.model.values()), self.now)

    def fence(self):
        if self.fences:
            fence = self.fences.pop(0)
            of = (fence.worker, fence.incarnation)
            self.held = {
                each: records
                for each, records in self.held.items()
                if (each.worker, each.incarnation) != of or each.number in fence.kept
            }
            nothing = [AppliedPush(0, 0, 0)]
            self.job.fenced(fence.worker, fence.incarnation, nothing, self.now)

    def save(self):
        if self.checkpoint is None:
            return
        final, fixed = self.checkpoint
        if not fixed:
            if not self.job.updates.applying:
                fixed[0] = copy.deepcopy(self.model)
                self.job.checkpoint_fixed(self.now)
            return
        self.checkpoint = None
        self.numbers += 1
        self.saved[self.numbers] = fixed[0]
        version = max(1, sum(fixed[0].values()))
        self.job.checkpoint_taken(Taken(self.numbers, version, 1, 0.1), final, self.now)

    def in_update(self, number):
        """What of the records is in a checkpoint."""
        methods = [(event.method, event.arguments.get("taken")) for event in self.events]
        taken = next(
            at
            for at, (method, taken) in enumerate(methods)
            if method == "checkpoint_taken" and taken["number"] == number
        )
        fixed = max(at for at in range(taken) if methods[at][0] == "checkpoint_fixed")
        return given_by(RecordedJob(self.config, lambda _: None), self.events[:fixed])

    def kill_and_resume(self):
        self.resumptions += 1
        self.workers, self.fences, self.checkpoint = {}, [], None
        self.model, self.held, self.updates, self.offers = Counter(), {}, [], {}
        self.job = RecordedJob(self.config, self.note)
        self.job.replay(self.events[:])
        restored, intervals = None, []
        if self.job.checkpoints.kept.all:
            restored = self.job.checkpoints.kept.all[-1]
            intervals = self.in_update(restored.number)
            self.model = copy.deepcopy(self.saved[restored.number])
        changes = {"workers": str(self.draw.randint(1, 3)), "servers": "1", "relaunch_limit": 99}
        changes["max_bad_records"] = 0
        self.job.resumed(f"r{self.resumptions}", changes, restored, (), intervals, self.now)
        self.obey()


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), kills=st.lists(st.integers(5, 400), max_size=3))
def test_each_record_is_in_one_update_of_the_model(seed, kills):
    world = SynchronousWorld(seed)
    report = world.report_at_the_end(kills, 8000)
    if world.job.phases.phase.state == "failed":
        return  # workers died too often
    assert set(world.model.values()) == {1}
    assert len(world.model) == 64 == report.records["once"]
