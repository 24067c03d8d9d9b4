"""Five causes, each injected into a real job, are named by its status and its result."""

import contextlib
import os
import signal
import threading

import pytest

from shoal.master.job.view.diagnosis import SMALL_SECONDS
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from tests.jobs.running import RunningJob

pytestmark = [pytest.mark.job, pytest.mark.slow]

RUNNING, STOPPED = 0.01, 0.09
"""Seconds, in turns: a server has a tenth of a processor, as with a limit on its container."""


STEPS = 500
"""After which the first step, which compiles for seconds, is a small part of the time."""


def slow_steps(cause, stages, steps):
    """Whether this machine is so slow that a step is long even with a small minibatch.

    Of the threshold 80%: a version and the stages are not of one moment.
    """
    return cause == "minibatches" and stages["training"] > 0.8 * SMALL_SECONDS * steps


class Settled:
    """Whether a cause has been named for a sixth of all steps: the next few do not change it."""

    def __init__(self, bound_by):
        self.bound_by = bound_by
        self.since = None

    def __call__(self, status):
        if status.diagnosis.bound_by != self.bound_by:
            self.since = None
        elif self.since is None:
            self.since = status.version
        return self.since is not None and status.version >= 1.2 * self.since


@pytest.fixture(scope="module")
def ids(session_folder):
    path = session_folder / "ids.csv"
    path.write_text("id\n" + "".join(f"{i}\n" for i in range(20_000)))
    return path


@contextlib.contextmanager
def starved(job):
    """Let the job's servers run for a tenth of the time."""
    done = threading.Event()
    pids = [job.pid("ps", index) for index in range(2)]

    def throttle():
        while not done.wait(RUNNING):
            signal_all(signal.SIGSTOP)
            done.wait(STOPPED)
            signal_all(signal.SIGCONT)

    def signal_all(number):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended with its job
                os.kill(pid, number)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("cause", "bound_by", "evidence", "advice", "flags"),
    [
        ("data", "data", "a step waits for data", "Parquet", {}),
        ("feed", "feed", "a step waits for data", "feed_batch", {}),
        ("servers", "calls", "the busiest server uses", "processors", {"servers": "2"}),
        ("minibatches", "minibatches", "a step has 4 records", "128", {"batch_size": 4}),
        ("straggler", "straggler", "a step of worker-1 takes", "worker 1", {"workers": "2"}),
    ],
)
def test_an_injected_cause_is_named(tmp_path, ids, cause, bound_by, evidence, advice, flags):
    with RunningJob(
        "train",
        tmp_path,
        cause,
        environment={"BOUND": cause},
        **{
            "model_def": "bound.custom_model",
            "training_data": ids,
            "batch_size": 100,
            "num_minibatches_per_task": 10,
            "epochs": 1000,  # far more than there is time for
            "checkpoint_seconds": 0,
        }
        | flags,
    ) as job:
        job.wait_status("records", lambda status: status.ledger.trained_once)
        with starved(job) if cause == "servers" else contextlib.nullcontext():
            # A first step compiles for seconds, which is most of the time for a while.
            settled = Settled(bound_by)
            found = job.wait_status(
                f"a job that is bounded by {bound_by}",
                lambda status: (
                    settled(status)
                    or (
                        status.version >= STEPS
                        and slow_steps(cause, status.stage_seconds, status.version)
                    )
                ),
            )
            assert found.stage_seconds["training"] > 0
            told = found.diagnosis
            if told.bound_by == bound_by:
                assert evidence in told.evidence
                assert advice in told.advice
            else:
                assert slow_steps(cause, found.stage_seconds, found.version)
            job.call_master(methods.STOP_JOB, pb.StopJobRequest(reason="seen"))
            ended = job.ended()
    told = ended.result["diagnosis"]
    stages, steps = ended.result["stage_seconds"], ended.result["versions"]["ps-0"]
    assert stages["training"] > 0
    assert told["bound_by"] == bound_by or slow_steps(cause, stages, steps)
    assert f"bottleneck        {told['evidence'][:20]}" in ended.out
