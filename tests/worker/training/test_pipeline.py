"""The training pipeline: what overlaps, what waits, and how it ends."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from shoal.errors import UserCodeError, UserError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import ServerAwayError
from shoal.proto.values.routing import Routing
from shoal.worker.attribution import attributed
from shoal.worker.input.channel import Channel, ChannelClosedError, read_ahead
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.in_flight import InFlightPushes
from shoal.worker.training.pipeline import TaskError, TrainingPipeline
from tests.worker.given import GivenTasks, task_of, train
from tests.worker.networks import as_batch, batches

PATIENCE = 120


@dataclass(frozen=True)
class Made:
    """The push of the batch of this number."""

    number: int
    left_out: str = ""
    records_done: int = 0
    dense: tuple[float, float] = (0.0, 0.0)
    learning_rate: float = 0.5


class Model:
    """Records what the stages do, and can hold or fail one of them at a batch."""

    accumulated = 1

    def __init__(self):
        self.log = []
        self.servers = SimpleNamespace(
            push=self._push, version=0, acknowledged=0, in_flight=InFlightPushes()
        )
        self.hold = {}  # (stage, batch) -> event that lets it go on
        self.entered = {}  # (stage, batch) -> event that is set when it is there
        self.fail = {}  # (stage, batch) -> exception
        self.left_out = {}  # batch -> why
        self.counts = set()  # batches whose predictions do

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
        pulled = SimpleNamespace(applied=(), routing=Routing.even(1))  # of no server
        return SimpleNamespace(batch=batch, pulled=pulled)

    def compute(self, prepared, task, missing):
        self._visit("compute", prepared.batch.first)
        number = prepared.batch.first
        return 0.5, Made(number, left_out=self.left_out.get(number, ""))

    def predicted(self, batch, push):
        counts = batch.first in self.counts and not push.left_out
        return (SimpleNamespace(batch=batch),) if counts else ()

    def average(self, pushes):
        return pushes[-1]

    def _push(self, push):
        self._visit("push", push.number)
        self.servers.version += 1


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
    train(model, depth, progress, numbered(count))
    return progress.take(0, 0)


def stages(model, name):
    return [number for stage, number in model.log if stage == name]


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_predictions_count_for_the_task_whose_batch_they_are_of(model, depth):
    model.counts = {1, 4}
    given = train(model, depth, Progress(), numbered(5), numbered(5))
    expected = [("predicted", 1), ("predicted", 4), ("done", 1), ("predicted", 1), ("predicted", 4)]
    assert [each for each in given.log if each[0] in ("predicted", "done")] == expected


@pytest.mark.parametrize("depth", [0, 2])
def test_a_prediction_counts_once_its_step_is_pushed_and_else_not(model, depth):
    model.counts = {0, 1, 2, 3}
    model.left_out = {1: "NaN"}
    model.fail["push", 3] = RuntimeError("away")
    given = GivenTasks(numbered(5))
    with pytest.raises((TaskError, RuntimeError)):
        TrainingPipeline(model, depth, Progress(), given).run(task_of(1))
    assert [each for each in given.log if each[0] == "predicted"] == [
        ("predicted", 0),
        ("predicted", 2),
    ]


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


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_batch_is_pulled_only_when_all_but_depth_pushes_before_it_are_acknowledged(model, depth):
    """1. the push of step 3 is held; 2. batches up to 3 + depth are pulled and computed;
    3. everything waits; 4. the push goes on and all is done."""
    model.hold["push", 3] = threading.Event()
    model.entered["compute", 3 + depth] = threading.Event()
    progress = Progress()
    thread = in_thread(lambda: run(model, depth, count=20, progress=progress))
    assert model.entered["compute", 3 + depth].wait(PATIENCE)
    waited = progress.take(0, 0).stage_seconds
    assert stages(model, "push") == [0, 1, 2]
    assert max(stages(model, "pull")) == max(stages(model, "compute")) == 3 + depth
    model.hold["push", 3].set()
    thread.join(PATIENCE)
    assert stages(model, "push") == list(range(20))
    told = progress.take(0, 0).stage_seconds
    assert told["wait for push"] > waited.get("wait for push", 0.0)
    for number in range(20):
        at = model.log.index(("pull", number))
        assert model.log[:at].count(("push", number - depth - 1)) == (number > depth)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_pipeline_goes_on_into_the_task_leased_ahead(model, depth):
    """The next task's batches are pulled and computed while the last push of the one before
    is held, and none is pushed before that one is reported."""
    model.hold["push", 2] = threading.Event()
    model.entered["compute", 3] = threading.Event()
    tasks = [list(numbered(3)), list(numbered(8))[3:5], [], list(numbered(8))[5:]]
    given = GivenTasks(*tasks)
    progress = Progress()
    progress.begin(1)
    work = TrainingPipeline(model, depth, progress, given)
    thread = in_thread(lambda: model.log.append(("last", work.run(task_of(1)).id)))
    assert model.entered["compute", 3].wait(PATIENCE)
    assert ("ahead", 1) in given.log
    assert ("done", 1) not in given.log
    given.done = lambda task, after: model.log.append(("done", task.id))
    model.hold["push", 2].set()
    thread.join(PATIENCE)
    assert stages(model, "compute") == stages(model, "push") == list(range(8))
    assert stages(model, "done") == [1, 2, 3]
    assert stages(model, "last") == [4]
    order = [each for each in model.log if each[0] in ("push", "done")]
    assert order.index(("done", 1)) == order.index(("push", 2)) + 1
    assert order.index(("done", 2)) == order.index(("push", 4)) + 1
    assert [task for what, task in given.log if what == "begin"] == [1, 2, 3, 4]


def test_no_second_task_is_asked_for_before_the_one_leased_ahead_is_at_work(model):
    """Tasks of one batch, of which the depth would hold several."""
    model.hold["push", 0] = threading.Event()
    model.entered["compute", 1] = threading.Event()
    given = GivenTasks(*([batch] for batch in numbered(6)))
    work = TrainingPipeline(model, 4, Progress(), given)
    thread = in_thread(lambda: work.run(task_of(1)))
    assert model.entered["compute", 1].wait(PATIENCE)
    model.hold["push", 0].set()
    thread.join(PATIENCE)
    assert stages(model, "push") == list(range(6))
    for number in range(2, 7):
        assert given.log.index(("done", number - 1)) < given.log.index(("ahead", number))


@pytest.mark.parametrize("stage", ["read", "pull", "compute"])
def test_all_before_an_error_is_pushed_and_reported(model, stage):
    """At the task leased ahead, while a push of the one before it is held."""

    def second():
        for batch in list(numbered(8))[3:]:
            if stage == "read" and batch.first == 5:
                raise ZeroDivisionError("oops")
            yield batch

    model.fail[stage, 5] = ZeroDivisionError("oops")
    model.hold["push", 1] = threading.Event()
    given = GivenTasks(list(numbered(3)), second())
    given.done = lambda task, after: (model.log.append(("done", task.id)), progress.begin(after.id))
    progress = Progress()
    progress.begin(1)
    caught = []

    def work():
        try:
            TrainingPipeline(model, 3, progress, given).run(task_of(1))
        except TaskError as error:
            caught.append(error)

    thread = in_thread(work)
    model.hold["push", 1].set()
    thread.join(PATIENCE)
    assert caught[0].task.id == 2
    assert isinstance(caught[0].error, ZeroDivisionError)
    assert stages(model, "push") == [0, 1, 2, 3, 4]
    assert stages(model, "done") == [1]
    # Of the second task, whose records are numbered from the first task's on here.
    assert progress.trained(8) == (5, 5)


def test_an_error_of_a_push_ends_all(model):
    model.fail["push", 4] = ZeroDivisionError("oops")
    with pytest.raises(TaskError) as caught:
        train(model, 2, Progress(), list(numbered(3)), list(numbered(8))[3:])
    assert caught.value.task.id == 2
    assert stages(model, "push") == [0, 1, 2, 3]


def test_with_accumulation_depth_counts_pushes(model):
    """Groups of three: at depth 1 the third group is pulled when the first is pushed."""
    model.accumulated = 3
    train(model, 1, Progress(), numbered(11))
    assert stages(model, "push") == [2, 5, 8, 10]
    for first, pushed in ((6, 2), (9, 5)):
        assert model.log.index(("push", pushed)) < model.log.index(("pull", first))


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("stage", ["pull", "compute", "push"])
def test_an_error_in_a_stage_is_raised_and_ends_the_others(model, depth, stage):
    model.fail[stage, 2] = ZeroDivisionError("oops")
    before = set(threading.enumerate())
    with pytest.raises(TaskError if depth else ZeroDivisionError, match="oops"):
        run(model, depth)
    assert set(threading.enumerate()) <= before  # threads of other tests may end meanwhile
    assert max(stages(model, "push"), default=-1) <= (1 if stage == "push" else 2)


def error_of(model, depth):
    with pytest.raises((TaskError, UserError, ServerAwayError)) as caught:
        run(model, depth)
    assert isinstance(caught.value, TaskError) == bool(depth)
    return caught.value.error if depth else caught.value


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("stage", ["pull", "compute"])
def test_an_error_is_held_against_its_records_but_not_one_of_the_servers(model, depth, stage):
    model.fail[stage, 3] = UserError("the loss is nan")
    assert attributed(error_of(model, depth)) == pb.Range(source="data", start=103, end=104)
    model.fail[stage, 3] = ServerAwayError("ps-0 has been away")
    assert attributed(error_of(model, depth)) is None


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("stage", ["pull", "compute"])
def test_what_was_pushed_before_an_error_is_known_exactly(model, depth, stage):
    """So that what is tried again is what was not trained, and nothing else."""
    model.fail[stage, 4] = UserError("a bad record")
    progress = Progress()
    with pytest.raises((UserError, TaskError)):
        run(model, depth, progress=progress)
    assert stages(model, "push") == [0, 1, 2, 3]
    assert progress.trained(6) == (4, 4)


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
    """The bound lets four steps go, each no sooner than allowed, and then ends the task."""

    def wait():
        model.log.append(("wait", len(stages(model, "wait"))))
        return len(stages(model, "wait")) <= 4

    def applied():
        model.log.append(("applied", len(stages(model, "applied"))))

    def end():
        model.log.append(("end", 0))

    staleness = SimpleNamespace(wait=wait, applied=applied, end=end)
    progress = Progress()
    progress.begin(1)
    train(model, depth, progress, numbered(6), staleness=staleness)
    assert stages(model, "pull") == [0, 1, 2, 3]
    for number in range(4):
        assert model.log.index(("wait", number)) < model.log.index(("pull", number))
    for number in stages(model, "applied"):
        assert model.log.index(("push", number)) < model.log.index(("applied", number))
    assert len(stages(model, "applied")) == len(stages(model, "push"))
    assert model.log[-1] == ("end", 0)
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
    train(model, 2, progress, [first] * 40)
    beat = progress.take(0, 0)
    assert beat.loss_batches == 40
    assert model.train_batch(first, 1) < before / 2
    assert set(model.prepare(first).pulled.versions) == {42}
    assert np.isfinite(beat.loss)


def test_what_reading_raises_comes_after_the_batches_before_it():
    def read():
        yield 1
        yield 2
        raise ZeroDivisionError

    ahead = read_ahead(read(), Progress())
    assert (next(ahead), next(ahead)) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    before = set(threading.enumerate())
    endless = read_ahead(iter(int, 1), Progress())
    assert next(endless) == 0
    endless.close()
    assert set(threading.enumerate()) <= before  # threads of other tests may end meanwhile


def test_a_heartbeat_that_never_began_can_be_stopped():
    Heartbeat(None, Progress(), 0, 0, 1.0).stop()


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("stage", ["pull", "compute", "push"])
def test_a_stage_that_calls_sys_exit_ends_the_run_with_an_error(model, depth, stage):
    model.fail[stage, 3] = SystemExit(0)
    with pytest.raises((TaskError, SystemExit)) as caught:
        run(model, depth)
    if depth:
        assert isinstance(caught.value.error, UserCodeError)
        assert "SystemExit" in str(caught.value.error)
    assert stages(model, "push") == list(range(3))


@pytest.mark.parametrize("depth", [0, 2])
def test_a_reader_that_calls_sys_exit_ends_the_run_with_an_error(model, depth):
    def read():
        yield from numbered(3)
        raise SystemExit(0)

    progress = Progress()
    progress.begin(1)
    with pytest.raises((TaskError, UserCodeError)) as caught:
        train(model, depth, progress, read())
    error = caught.value.error if depth else caught.value
    assert isinstance(error, UserCodeError)
    assert "SystemExit" in str(error)
    assert stages(model, "push") == list(range(3))
