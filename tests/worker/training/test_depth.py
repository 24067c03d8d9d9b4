"""The pipeline's depth by need: nothing ahead at first, then as much as makes steps faster."""

import threading

import pytest

from shoal.worker.reports.progress import Progress
from shoal.worker.training import depth
from shoal.worker.training.depth import BY_NEED, FIRST_UPDATES, PATIENCE, STEPS, PipelineDepth
from tests.worker.given import train
from tests.worker.training.test_pipeline import Model, in_thread, numbered, stages

DEADLINE = 120


class Worker:
    """A worker whose steps compute for 2 s."""

    def __init__(self, given=BY_NEED, version=FIRST_UPDATES):
        self.progress = Progress()
        self.depth = PipelineDepth(given, self.progress, lambda: version)
        self.depth.begin()
        self.depths = []

    def steps(self, count, calls, gains=(1.0,)):
        """So many steps, with seconds of calls. gains: the times as fast with 0, 1, 2 ahead."""
        for _ in range(count):
            self.progress.spent("step", 2.0)
            for name in ("ids", "pull", "push"):
                self.progress.spent(name, calls / 3)
            gain = gains[min(self.depth.now, len(gains) - 1)]
            self.progress.spent("wait for pull", (2.0 + calls) / gain - 2.0)
            before = self.depth.now
            assert self.depth.pushed() == (self.depth.now != before)
            self.depths.append(self.depth.now)
        return self.depth.now


@pytest.mark.parametrize(
    ("calls", "gains", "wanted"),
    [
        (0.3, (1.0, 1.15), []),  # there is too little to hide
        (1.0, (1.0, 1.1), [1, 0]),
        (1.0, (1.0, 1.3), [1, 0, 1]),
        (4.0, (1.0, 1.5, 1.6), [1, 0, 1, 2, 1]),
        (2.0, (1.0, 1.5, 2.0), [1, 0, 1, 2, 1, 2]),
        (60.0, (1.0, 2.0), [1, 0, 1]),  # pulls follow one another, and so do pushes
    ],
)
def test_a_depth_is_kept_that_makes_steps_faster(calls, gains, wanted):
    worker = Worker()
    worker.steps(12 * STEPS, calls, gains)
    changes = [b for a, b in zip([0, *worker.depths], worker.depths, strict=False) if a != b]
    assert changes == wanted
    told, why = worker.progress.pipeline
    assert told == worker.depth.now
    if not wanted:
        assert why == "pulls and pushes take 15% of the time of a step"
    elif wanted == [1, 0]:
        assert why.startswith("with 2 it is 1.10 times as fast as with 1: rows that lack")


def test_slow_steps_before_a_try_do_not_make_it_worth_it():
    """A checkpoint may come to its end just then."""
    worker = Worker()
    worker.steps(STEPS + 1, 4.0)
    worker.steps(2 * STEPS, 1.0, (1.0, 1.1))
    assert worker.progress.pipeline[0] == worker.depth.now == 0
    assert worker.progress.pipeline[1].startswith("with 2 it is 1.10 times as fast")


def test_a_depth_that_is_tried_is_not_told():
    worker = Worker()
    assert worker.steps(STEPS + 2, 1.0) == 1
    assert worker.progress.pipeline[0] == 0


def test_what_brought_too_little_is_tried_again():
    """Servers may have moved away meanwhile."""
    worker = Worker()
    worker.steps((PATIENCE + 2) * STEPS, 1.0, (1.0, 1.1))
    assert worker.depths.count(1) == STEPS
    assert worker.steps(6 * STEPS + 1, 3.0, (1.0, 1.8, 2.0)) == 1


def test_the_first_updates_of_a_job_and_too_few_steps_keep_the_depth():
    for version, count in ((FIRST_UPDATES - 1, 99 * STEPS), (FIRST_UPDATES, STEPS)):
        worker = Worker(version=version)
        assert worker.steps(count, 60.0) == 0
        assert worker.progress.pipeline == (0, "the job's first 200 updates")


def test_what_is_no_part_of_a_usual_step_is_no_reason():
    """Pulls of an evaluation between two tasks, and a push that waits for a server's return."""
    progress = Progress()
    found = PipelineDepth(BY_NEED, progress, lambda: FIRST_UPDATES)
    for number in range(3 * STEPS):
        if number % 20 == 0:
            progress.spent("pull", 1000.0)
            found.begin()
        progress.spent("step", 1.0)
        progress.spent("push", 100.0 if number == 30 else 0.01)
        assert not found.pushed()
    assert progress.pipeline == (0, "pulls and pushes take 1% of the time of a step")


@pytest.mark.parametrize("given", [0, 1, 2, 7])
def test_a_number_stays(given):
    worker = Worker(given)
    assert worker.steps(9 * STEPS, 60.0) == given
    assert worker.progress.pipeline == (given, "")


@pytest.mark.parametrize(("wait", "ahead"), [(0.0, 1), (1.0, 0)])
def test_a_running_pipeline_pulls_ahead_and_goes_back_unless_it_is_worth_it(
    monkeypatch, wait, ahead
):
    """Up to the 6th push nothing is ahead. Then a step is for two pushes, and two pushes later
    again if steps waited less with it. Pushes are held, and pulls go on so far."""
    monkeypatch.setattr(depth, "DEEPEST", 1)
    monkeypatch.setattr(depth, "FIRST_UPDATES", 4)
    monkeypatch.setattr(depth, "STEPS", 2)
    monkeypatch.setattr(depth, "TOGETHER", 1)
    progress = Progress()

    class Slow(Model):
        def prepare(self, batch):
            progress.spent("pull", 1.0)
            return super().prepare(batch)

        def compute(self, prepared, task, missing):
            progress.spent("step", 1.0)
            number = len(stages(self, "compute"))
            progress.spent("wait for pull", 1.0 if number < 6 else wait if number < 9 else 5.0)
            return super().compute(prepared, task, missing)

    model = Slow()
    for number in (6, 12):
        model.hold["push", number] = threading.Event()
    for number in (7, 12 + ahead):
        model.entered["compute", number] = threading.Event()
    model.entered["push", 12] = threading.Event()
    progress.begin(1)
    thread = in_thread(lambda: train(model, BY_NEED, progress, numbered(20)))
    assert model.entered["compute", 7].wait(DEADLINE)
    one_step = ["pull", "compute", "push"]
    assert model.log[:18] == [(stage, number) for number in range(6) for stage in one_step]
    assert max(stages(model, "pull")) == 7
    model.hold["push", 6].set()
    for reached in (("compute", 12 + ahead), ("push", 12)):
        assert model.entered[reached].wait(DEADLINE)
    assert max(stages(model, "pull")) == 12 + ahead
    model.hold["push", 12].set()
    thread.join(DEADLINE)
    assert stages(model, "push") == list(range(20))
    told = progress.take(0, 0)
    assert (told.pipeline_depth, told.pipeline_why) == progress.pipeline
    assert told.pipeline_depth == ahead
