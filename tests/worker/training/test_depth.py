"""The pipeline's depth by need: nothing ahead at first, then what pulls and pushes are worth."""

import threading

import pytest

from shoal.worker.reports.progress import Progress
from shoal.worker.training import depth
from shoal.worker.training.depth import BY_NEED, FIRST_UPDATES, STEPS, PipelineDepth
from tests.worker.given import train
from tests.worker.training.test_pipeline import Model, in_thread, numbered, stages

PATIENCE = 120


def after(shares, given=BY_NEED, version=FIRST_UPDATES):
    """The depth after steps whose pulls and pushes took these shares of computing, and why."""
    progress = Progress()
    found = PipelineDepth(given, progress, lambda: version)
    found.begin()
    for share in shares:
        progress.spent("step", 2.0)
        for name in ("ids", "pull", "push"):
            progress.spent(name, 2.0 * share / 3)
        progress.spent("wait for data", 100.0)
        found.pushed()
    assert progress.pipeline == (found.now, found.why)
    return found.now, found.why


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.05, 0), (0.15, 1), (0.45, 1), (0.6, 2), (30.0, 2)]
)
def test_calls_are_hidden_where_they_take_long_beside_computing(share, wanted):
    now, why = after([share] * (STEPS + 1))
    assert now == wanted
    assert why == f"pulls and pushes take {share:.0%} of the time that a step computes"


def test_the_first_updates_of_a_job_and_too_few_steps_keep_the_depth():
    steps = [30.0] * (STEPS + 1)
    assert after(steps, version=FIRST_UPDATES - 1) == (0, "the job's first 200 updates")
    assert after(steps[1:]) == (0, "the job's first 200 updates")


def test_a_depth_grows_and_does_not_shrink():
    slow, fast = [0.2] * (STEPS + 1), [0.05] * (STEPS + 1)
    assert after(slow + fast)[0] == 1
    assert after(slow + [0.9] * (STEPS + 1))[0] == 2
    assert after([30.0] * (STEPS + 1) + fast)[0] == 2


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
    assert found.why == "pulls and pushes take 1% of the time that a step computes"


@pytest.mark.parametrize("given", [0, 1, 2, 7])
def test_a_number_stays(given):
    assert after([30.0] * (STEPS + 1), given) == (given, "")


def test_a_running_pipeline_pulls_ahead_once_it_is_worth_it(monkeypatch):
    """Up to the 6th push nothing is ahead; then two steps are, while a push is held."""
    monkeypatch.setattr(depth, "FIRST_UPDATES", 4)
    monkeypatch.setattr(depth, "STEPS", 2)
    progress = Progress()

    class Slow(Model):
        def prepare(self, batch):
            progress.spent("pull", 1.0)
            return super().prepare(batch)

        def compute(self, prepared, task, missing):
            progress.spent("step", 1.0)
            return super().compute(prepared, task, missing)

    model = Slow()
    model.hold["push", 12] = threading.Event()
    model.entered["compute", 14] = threading.Event()
    progress.begin(1)
    thread = in_thread(lambda: train(model, BY_NEED, progress, numbered(20)))
    assert model.entered["compute", 14].wait(PATIENCE)
    one_step = ["pull", "compute", "push"]
    assert model.log[:18] == [(stage, number) for number in range(6) for stage in one_step]
    assert max(stages(model, "pull")) == 14
    model.hold["push", 12].set()
    thread.join(PATIENCE)
    assert stages(model, "push") == list(range(20))
    told = progress.take(0, 0)
    assert (told.pipeline_depth, told.pipeline_why) == progress.pipeline
    assert told.pipeline_depth == 2
