"""What a job that is resumed takes over of the course before it, and what it does not."""

import pytest

from shoal.master.job.checkpoints.kept_checkpoints import Taken
from shoal.master.job.instructions import Wait
from shoal.master.journal.events import RecordedJob
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.phases import Phase
from shoal.master.work.units import FoundSource, Source, Task
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import config, register, take, w

LOSS = {4: 0.9, 8: 0.8, 12: 0.79, 16: 0.78, 20: 0.7, 24: 0.6}


class World:
    """A job of one worker, whose tasks are two steps each."""

    def __init__(self, data, **fields):
        self.data, self.version, self.incarnation = data, 0, 0
        self.job = RecordedJob(config(**({"workers": "1"} | fields)), lambda _: None)
        register(self.job, data)
        self.spans = []

    def run(self, until):
        """Train and evaluate up to a version of the model."""
        while self.version < until or not self.job.work.evaluations.idle:
            task = take(self.job, w(0), self.incarnation)
            outcome = Done()
            if task.kind == pb.TRAIN:
                self.version += 2
                self.spans.append(task.span)
            elif task.kind == pb.EVALUATE:
                outcome = StatesComputed(pb.MetricStates())
            elif task.kind == pb.FINISH_EVALUATION:
                seen = self.job.work.evaluations._round.version
                outcome = MetricsComputed({"loss": LOSS[seen]})
            self.report(task, outcome)

    def report(self, task, outcome):
        self.job.task_reported(w(0), self.incarnation, task.id, outcome, self.version, 1.0)

    def checkpoint(self, number=1):
        self.job.checkpoint_begun(1.0)
        taken = Taken(number, self.version, 1, 0.1)
        self.job.checkpoint_taken(taken, False, 1.0)
        return taken, [Interval("trained", 0, span) for span in self.spans]

    def resume(self, taken, in_model):
        """Go on from a checkpoint with these records."""
        job, self.version = self.job, taken.version
        job.resumed("again", {}, taken, [], in_model, 2.0)
        for server, member in job.members.servers.items():
            job.server_registered(server, member.incarnation, "host", 2.0)
        self.incarnation = job.members.workers[w(0)].incarnation
        job.worker_registered(w(0), self.incarnation, 2.0)
        self.report(take(job, w(0), self.incarnation), self.data)


def watched(rule):
    rules = pb.TrainingRules()
    rule(rules)
    data = DataDescribed((Source("t", 400),), (Source("v", 5),), rules=rules)
    return World(data, evaluation_steps=4, validation_data="v", checkpoint_steps=1000)


def test_evaluations_of_a_lost_model_do_not_stop_training():
    world = watched(lambda rules: rules.early_stopping.add(monitor="loss", patience=2))
    world.run(4)
    before = world.checkpoint()
    world.run(16)
    world.resume(*before)
    world.run(24)
    assert world.job.phases.phase is Phase.TRAINING
    assert not world.job.work.board.all_leased
    # They are still told of.
    versions = [each.version for each in world.job.work.evaluation_results]
    assert versions == [4, 8, 12, 16, 8, 12, 16, 20, 24]


def test_a_rate_that_was_reduced_after_the_checkpoint_is_as_it_was_then(monkeypatch):
    monkeypatch.setitem(LOSS, 12, 0.85)

    def plateau(rules):
        rules.plateau.CopyFrom(pb.PlateauRule(best=pb.BestRule(monitor="loss"), patience=1))

    world = watched(plateau)
    world.run(8)
    before = world.checkpoint()
    world.run(12)
    assert world.job.work.follow_ups.rate_reductions == 1
    world.resume(*before)
    assert world.job.work.follow_ups.rate_reductions == 0
    world.run(12)
    assert world.job.work.follow_ups.rate_reductions == 1


@pytest.mark.parametrize("rule", ["export", "checkpoint"])
def test_the_best_of_a_lost_model_is_not_the_best(rule, monkeypatch):
    monkeypatch.setitem(LOSS, 8, 0.1)
    best = pb.BestRule(monitor="loss")
    world = watched(lambda rules: getattr(rules, rule).CopyFrom(best))
    world.run(4)
    before = world.checkpoint()
    world.run(8)
    world.resume(*before)
    assert not world.job.checkpoints._mark
    follow = world.job.work.follow_ups
    assert follow.exported != 1
    monkeypatch.setitem(LOSS, 8, 0.5)
    world.run(8)
    assert (not follow.idle) if rule == "export" else world.job.checkpoints._mark


def test_training_that_was_stopped_after_the_checkpoint_goes_on():
    world = World(DataDescribed((Source("t", 400),)), checkpoint_steps=1000)
    world.run(8)
    before = world.checkpoint()
    world.run(20)
    world.report(take(world.job, w(0)), Done("a callback asks for the end"))
    assert world.job.phases.phase is Phase.SAVING
    world.resume(*before)
    assert world.job.phases.phase is Phase.TRAINING
    assert take(world.job, w(0), world.incarnation).kind == pb.TRAIN


def test_training_that_was_stopped_before_the_checkpoint_stays_so():
    world = World(DataDescribed((Source("t", 400),)), checkpoint_steps=1000)
    world.run(8)
    world.version += 2
    world.report(take(world.job, w(0)), Done("a callback asks for the end"))
    world.resume(*world.checkpoint())
    assert world.job.phases.phase is Phase.SAVING


def test_training_waits_for_its_workers_again():
    job = RecordedJob(config(workers="2", min_workers=2), lambda _: None)
    data = DataDescribed((Source("t", 400),))
    register(job, data)
    take(job, w(0))
    job.resumed("again", {}, None, [], [], 2.0)
    for server, member in job.members.servers.items():
        job.server_registered(server, member.incarnation, "host", 2.0)
    job.worker_registered(w(0), 1, 2.0)
    task = take(job, w(0), 1)
    job.task_reported(w(0), 1, task.id, data, 0, 2.0)
    assert isinstance(job.task_wanted(w(0), 1, 2.0), Wait)
    job.worker_registered(w(1), 1, 3.0)
    assert isinstance(job.task_wanted(w(0), 1, 3.0), Task)


def test_workers_stay_while_data_of_the_last_evaluation_are_described():
    job = RecordedJob(config(workers="3", validation_data="v"), lambda _: None)
    more = tuple(FoundSource(f"v{i}", 16.0) for i in range(2))
    data = DataDescribed((Source("t", 10),), (Source("v", 8),), more_validation=more)
    register(job, data)
    given = [job.task_wanted(w(index), 0, 1.0) for index in range(3)]
    trained = next(i for i, each in enumerate(given) if each.kind == pb.TRAIN)
    job.task_reported(w(trained), 0, given[trained].id, Done(), 2, 1.0)
    assert job.phases.phase is Phase.EVALUATING
    assert not job.work.description.complete
    assert job.phases.workers_needed is None
