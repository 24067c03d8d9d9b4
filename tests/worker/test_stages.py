"""The training pipeline: what overlaps, what waits, and how it ends."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import ServerAwayError
from shoal.worker.blame import blamed
from shoal.worker.heartbeat import Heartbeat, Progress
from shoal.worker.stages import Channel, ChannelClosedError, TrainingPipeline
from tests.worker.networks import as_batch, batches

PATIENCE = 30
TASK = pb.Task(id=1, range=pb.Range(source="data", start=100, end=200))


class Model:
    """Records what the stages do, and can hold or fail one of them at a batch."""

    accumulated = 1

    def __init__(self):
        self.log = []
        self.version = 0
        self.hold = {}  # (stage, batch) -> event that lets it go on
        self.entered = {}  # (stage, batch) -> event that is set when it is there
        self.fail = {}  # (stage, batch) -> exception
        self.left_out = {}  # batch -> why

    def _visit(self, stage, number):
        if (stage, number) in self.entered:
            self.entered[stage, number].set()
        if (stage, number) in self.hold:
            assert self.hold[stage, number].wait(PATIENCE)
        if (stage, number) in self.fail:
            raise self.fail[stage, number]
        self.log.append((stage, number))

    def prepare(self, batch):
        self._visit("pull", batch.first)
        return SimpleNamespace(batch=batch)

    def compute(self, prepared, task, moved):
        self._visit("compute", prepared.batch.first)
        number = prepared.batch.first
        return 0.5, SimpleNamespace(number=number, left_out=self.left_out.get(number, ""))

    def push(self, push):
        if not push.left_out:
            self._visit("push", push.number)
            self.version += 1


def numbered(count):
    """Batches of one record each; `first` is their number."""
    for number in range(count):
        records = pb.Range(source="data", start=100 + number, end=101 + number)
        yield SimpleNamespace(first=number, size=1, records_done=number + 1, records=records)


@pytest.fixture
def model():
    return Model()


def run(model, depth, count=6, progress=None):
    progress = progress or Progress()
    progress.begin(1)
    TrainingPipeline(model, depth, progress).run(numbered(count), TASK)
    return progress.take(0, 0)


def stages(model, name):
    return [number for stage, number in model.log if stage == name]


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_every_batch_goes_through_every_stage_in_order(model, depth):
    beat = run(model, depth)
    for name in ("pull", "compute", "push"):
        assert stages(model, name) == list(range(6))
    assert beat.records_done == 6
    assert beat.loss_batches == 6
    assert beat.version == 6


def test_depth_0_pushes_a_step_before_it_pulls_the_next(model):
    run(model, 0, count=3)
    one_step = ["pull", "compute", "push"]
    assert model.log == [(stage, number) for number in range(3) for stage in one_step]


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("depth", [1, 2])
def test_pulls_run_ahead_of_the_step_and_pushes_behind_it_but_not_further(model, depth):
    """1. the push of step 0 is held; 2. steps go on until the push channel is full;
    3. pulls go on until the pull channel is full; 4. everything waits; 5. the push goes
    on and all is done."""
    model.hold["push", 0] = threading.Event()
    # One push in hand, `depth` in the channel and one step that waits to be put there.
    last_computed = depth + 1
    # `depth` in the channel, and one pulled batch that waits to be put there.
    last_pulled = last_computed + depth + 1
    model.entered["pull", last_pulled] = threading.Event()
    model.entered["compute", last_computed] = threading.Event()
    thread = in_thread(lambda: run(model, depth, count=20))
    assert model.entered["compute", last_computed].wait(PATIENCE)
    assert model.entered["pull", last_pulled].wait(PATIENCE)
    assert stages(model, "push") == []
    assert max(stages(model, "compute")) <= last_computed
    assert max(stages(model, "pull")) <= last_pulled
    model.hold["push", 0].set()
    thread.join(PATIENCE)
    assert stages(model, "push") == list(range(20))


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("stage", ["pull", "compute", "push"])
def test_an_error_in_a_stage_is_raised_and_ends_the_others(model, depth, stage):
    model.fail[stage, 2] = ZeroDivisionError("oops")
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="oops"):
        run(model, depth)
    assert threading.active_count() == before
    assert max(stages(model, "push"), default=-1) <= (1 if stage == "push" else 2)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("stage", ["pull", "compute"])
def test_an_error_is_held_against_its_records_but_not_one_of_the_servers(model, depth, stage):
    model.fail[stage, 3] = UserError("the loss is nan")
    with pytest.raises(UserError) as caught:
        run(model, depth)
    assert blamed(caught.value) == pb.Range(source="data", start=103, end=104)
    model.fail[stage, 3] = ServerAwayError("ps-0 has been away")
    with pytest.raises(ServerAwayError) as caught:
        run(model, depth)
    assert blamed(caught.value) is None


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("stage", ["pull", "compute"])
def test_what_was_pushed_before_an_error_is_known_exactly(model, depth, stage):
    """So that what is tried again is what was not trained, and nothing else."""
    model.fail[stage, 4] = UserError("a bad record")
    progress = Progress()
    with pytest.raises(UserError):
        run(model, depth, progress=progress)
    pushed = len(stages(model, "push"))
    assert stages(model, "push") == list(range(pushed))
    assert progress.trained(6) == (pushed, pushed)


@pytest.mark.parametrize("depth", [0, 2])
def test_what_is_left_out_is_done_but_not_pushed_and_is_counted(model, depth):
    model.left_out = {2: "the loss is nan", 4: "the loss is inf"}
    beat = run(model, depth)
    assert stages(model, "push") == [0, 1, 3, 5]
    assert beat.records_done == 6
    counts = (beat.left_out, beat.left_out_records, beat.left_out_why)
    assert counts == (2, 2, "the loss is inf")


@pytest.mark.parametrize("depth", [0, 2])
def test_an_interruption_ends_the_task_early(model, depth):
    progress = Progress()
    model.hold["compute", 1] = threading.Event()
    model.entered["compute", 1] = threading.Event()
    thread = in_thread(lambda: run(model, depth, count=10_000, progress=progress))
    assert model.entered["compute", 1].wait(PATIENCE)
    progress.stopped.set()
    model.hold["compute", 1].set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert len(stages(model, "compute")) < 100


@pytest.mark.parametrize("depth", [0, 2])
def test_each_step_asks_its_pace_before_the_pull_and_tells_it_after_the_push(model, depth):
    """The pace lets four steps go, each no sooner than allowed, and then ends the task."""

    def wait():
        model.log.append(("wait", len(stages(model, "wait"))))
        return len(stages(model, "wait")) <= 4

    def applied():
        model.log.append(("applied", len(stages(model, "applied"))))

    pace = SimpleNamespace(wait=wait, applied=applied)
    progress = Progress()
    progress.begin(1)
    TrainingPipeline(model, depth, progress, pace).run(numbered(6), TASK)
    assert stages(model, "pull") == [0, 1, 2, 3]
    for number in range(4):
        assert model.log.index(("wait", number)) < model.log.index(("pull", number))
    for number in stages(model, "applied"):
        assert model.log.index(("push", number)) < model.log.index(("applied", number))
    assert len(stages(model, "applied")) == len(stages(model, "push"))
    if depth == 0:
        assert stages(model, "applied") == [0, 1, 2, 3]


def test_a_finished_channel_gives_what_is_in_it_and_an_aborted_one_nothing():
    channel = Channel(3)
    channel.put(1)
    channel.finish()
    assert channel.get() == 1
    with pytest.raises(ChannelClosedError):
        channel.get()
    channel = Channel(3)
    channel.put(1)
    channel.abort()
    for call in (channel.get, lambda: channel.put(2)):
        with pytest.raises(ChannelClosedError):
            call()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_pipelined_run_over_real_servers_trains_as_well(served, servers):
    """The same batch over and over: with rows a step or two old the loss falls all the same."""
    model = served(servers=servers)
    first, *_ = (as_batch(*batch) for batch in batches())
    progress = Progress()
    progress.begin(1)
    before = model.train_batch(first, 1)
    TrainingPipeline(model, 2, progress).run(iter([first] * 40), TASK)
    beat = progress.take(0, 0)
    assert beat.loss_batches == 40
    assert model.train_batch(first, 1) < before / 2
    assert set(model.prepare(first).pulled.versions) == {42}
    assert np.isfinite(beat.loss)


def test_a_heartbeat_that_never_began_can_be_stopped():
    Heartbeat(None, Progress(), 0, 0, 1.0).stop()
