"""--autoscale in a job whose workers the test plays: what is measured, decided, told and kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.budget import Budget
from shoal.errors import UserError
from shoal.master.job.events import WorkerFenced, WorkerRegistered, WorkersWanted
from shoal.master.job.instructions import StartProcess, TerminateProcess
from shoal.master.job.scaling.autoscaling import Autoscaler
from shoal.master.journal.events import RecordedJob
from shoal.master.work.ids import Start, WorkerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config, exited, heartbeat, register, take, w

DATA = DataDescribed((Source("t", 10**7),))


class Played:
    """A job whose workers do so many steps a second together, by their number.

    starts: seconds until a worker trains. room: workers that find room. slow: by how much a
    worker's incarnation is slower than the others.
    """

    def __init__(
        self, speed, *, data=DATA, starts=3, room=100, slow=lambda worker, inc: 1, **fields
    ):
        self._slow = slow
        self._room = room
        fields = {"workers": "1:8"} | fields
        self.events = []
        self.config = config(servers="1", **fields)
        self.job = RecordedJob(self.config, self.events.append)
        register(self.job, data)
        self.now = 1.0
        self._speed = speed
        self._starts = starts
        self._coming = {}
        self._done = {}
        self.tasks = {}
        for worker in list(self.job.members.workers):
            self._begin(worker, 0)

    def _begin(self, worker, incarnation):
        self._done[worker] = [incarnation, 0.0, 0.0]
        task = self.job.task_wanted(worker, incarnation, self.now)
        self.tasks[worker] = getattr(task, "id", 0)

    def seconds(self, count, *, evaluating=()):
        """Let so many seconds pass. evaluating: workers that train nothing meanwhile."""
        for _ in range(count):
            self.now += 1.0
            for worker, (incarnation, at) in list(self._coming.items()):
                if self.now >= at:
                    del self._coming[worker]
                    self.job.on(WorkerRegistered(worker, incarnation), self.now)
                    self._begin(worker, incarnation)
            training = [each for each in self._done if each not in evaluating]
            each = self._speed(len(training)) / max(1, len(training))
            for worker, done in self._done.items():
                if worker in training:
                    done[1] += each / self._slow(worker, done[0])
                    done[2] += 1.0
                beat = heartbeat(
                    self.tasks[worker], steps_done=int(done[1]), stage_seconds={"training": done[2]}
                )
                self.job.heartbeat(worker, done[0], beat, self.now)
            self.job.tick(self.now)
            for instruction in self.job.take_instructions():
                match instruction:
                    case StartProcess(Start(WorkerId() as worker, incarnation) as start):
                        if worker.index < self._room:
                            self.job.process_started(start, self.now)
                            self._coming[worker] = incarnation, self.now + self._starts
                    case TerminateProcess(Start(WorkerId() as worker, incarnation)):
                        self._done.pop(worker, None)
                        self.job.on(
                            exited(worker, incarnation, code=0, signal_number=None), self.now
                        )
                        self.job.on(WorkerFenced(worker, incarnation, [None]), self.now)

    @property
    def wanted(self):
        return self.job.members.workers_wanted


def knee(w):
    return 50.0 * min(w, 3)


def test_a_job_grows_to_the_workers_that_pay_and_stays_there():
    played = Played(knee)
    played.seconds(150)
    assert played.wanted == 3
    messages = [m for m in played.job.record.messages if "number of workers goes" in m]
    assert "goes from 1 to 2: no smaller number was measured" in messages[0]
    assert "goes from 2 to 4: each beyond 1 adds 100% of the mean speed" in messages[1]
    assert "goes from 4 to 3: each of the last 2 adds 50% of the mean" not in messages[2]
    assert "goes from 4 to 7: each beyond 2 adds 50% of the mean speed" in messages[2]
    assert " to 3: " in messages[-1]
    changes = len(messages)
    assert played.job.record.scalings.total() == changes
    played.seconds(1800)
    assert played.wanted == 3
    assert played.job.record.scalings.total() == changes


def test_another_master_goes_on_with_the_search():
    played = Played(knee)
    played.seconds(60)
    again = RecordedJob(played.config, lambda _: None)
    again.replay(played.events)
    assert again.autoscaler.search.state() == played.job.autoscaler.search.state()
    assert again.members.workers_wanted == played.wanted
    assert again.record.scalings == played.job.record.scalings


def test_nothing_is_measured_while_a_worker_is_coming():
    played = Played(lambda w: 50.0 * w, starts=100)
    played.seconds(100)
    assert played.wanted == 2
    played.seconds(40)
    assert played.wanted == 4


def test_workers_without_room_are_waited_for_a_while_and_no_more_are_wanted_meanwhile():
    played = Played(lambda w: 50.0 * w, room=3)
    played.seconds(60)
    assert played.wanted == 4
    played.seconds(600)
    assert played.wanted == 4
    # If the third of them does not pay, it goes, and so does the one that waits.
    played = Played(lambda w: 50.0 * min(w, 2), room=3)
    played.seconds(60)
    assert played.wanted == 4
    played.seconds(100)
    assert played.wanted == 2


def test_a_worker_that_dies_spoils_the_window_and_no_more():
    played = Played(knee)
    played.seconds(150)
    before = played.wanted
    played.job.on(exited(w(0)), played.now)
    del played._done[w(0)]
    played.job.on(WorkerFenced(w(0), 0, [None]), played.now)
    played.seconds(100)
    assert (before, played.wanted) == (3, 3)


def test_the_time_of_an_evaluation_does_not_count():
    played = Played(knee, workers="3:8")
    # Slower by a third for half of the time, as one of them evaluates.
    for _ in range(20):
        played.seconds(6)
        played.seconds(3, evaluating=(w(0),))
    assert played.wanted == 3


def test_dry_says_it_once_and_changes_nothing():
    played = Played(knee, autoscale="dry")
    played.seconds(200)
    assert played.wanted == 1
    said = [m for m in played.job.record.messages if "would go" in m]
    assert len(said) == 1
    assert "the number of workers would go from 1 to 2: no smaller number" in said[0]
    assert not played.job.record.scalings


def test_a_number_stays():
    played = Played(knee, workers="1")
    played.seconds(200)
    assert played.wanted == 1


def test_who_scales_the_job_by_hand_has_it_search_from_there():
    played = Played(knee)
    played.seconds(150)
    played.job.on(WorkersWanted(7), played.now)
    played.seconds(5)
    assert played.wanted == 7
    played.seconds(300)
    assert played.wanted == 3


def test_a_job_that_ends_soon_gets_no_more_workers():
    # 2,000 steps of 5 records, at 50 steps a second: 40 s, of windows of 10 s.
    played = Played(knee, data=DataDescribed((Source("t", 9_000),)))
    played.seconds(60)
    assert played.wanted == 1


def test_it_waits_for_training():
    job = RecordedJob(config(workers="1:4"), lambda _: None)
    register(job)
    assert take(job, w(0)).kind == pb.DESCRIBE_DATA
    for now in range(100):
        job.tick(float(now))
    assert job.members.workers_wanted == 1


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"autoscale": "dry"}, "--autoscale dry works only where the job changes its numbers"),
        ({"workers": "1:4", "command": "evaluate"}, "--workers 1:4: shoal evaluate does not"),
        ({"workers": "4:1"}, "--workers must be a number from 1, such as 4, or the least and"),
        ({"workers": "0:1"}, "such as 1:8, not '0:1'"),
        ({"workers": "0"}, "--workers must be a number from 1"),
        ({"servers": ":"}, "--servers must be a number from 1"),
        ({"workers": "1:4", "scale_efficiency": 2.0}, "at most 1, not 2.0"),
        ({"autoscale": "yes", "workers": "1:4"}, "--autoscale must be one of on, dry"),
        ({"max_resources": "cpu=4"}, "--max-resources works only where the job changes"),
        ({"workers": "1:4", "max_resources": "cpu=4"}, "add --image, or leave it out"),
        (
            {"workers": "1:4", "image": "shoal", "max_resources": "memory=much"},
            "--max-resources: memory=much is not RESOURCE=QUANTITY, such as cpu=64",
        ),
        (
            {"workers": "1:4", "image": "shoal", "max_resources": "cpu=1.4"},
            "--max-resources cpu: --workers 1 and --servers 1, with which the job begins,",
        ),
        (
            {
                "workers": "1:4",
                "evaluation_workers": 1,
                "validation_data": "v.csv",
            },
            r"--evaluation-workers \(1\) must be below --workers \(1\)",
        ),
    ],
)
def test_flags_that_do_not_go_together(fields, said):
    with pytest.raises(UserError, match=said):
        config(**fields)


@given(
    cpu=st.integers(0, 100),
    memory=st.integers(0, 100),
    servers=st.integers(0, 8),
    worker=st.integers(1, 9),
)
def test_as_many_workers_as_the_budget_allows_and_no_more(cpu, memory, servers, worker):
    budget = Budget(
        {"cpu": cpu / 10, "memory": memory * 2.0**30},
        {"cpu": worker / 10, "memory": 2.0**30},
        {"cpu": 0.3, "memory": 2.0**30},
    )
    most = budget.most_workers(servers)
    assert budget.lacks(most + 1, servers)
    assert most == 0 or not budget.lacks(most, servers)


def test_no_more_workers_are_tried_than_the_budget_allows():
    fields = {"image": "shoal", "workers": "1:8"}
    job = config(max_resources="cpu=3.5", worker_resources="cpu=1", **fields)
    scaler = Autoscaler(job, 1.0)
    scaler.look(begun(**fields).members, lambda: None, 0.0, job.budget.most_workers(1))
    assert scaler.search.measured(1, 10.0).workers == 2
    assert scaler.search.measured(2, 20.0).workers == 3
    assert scaler.search.measured(3, 30.0) is None


def test_workers_that_evaluate_keep_nobody_from_measuring_the_others():
    data = DataDescribed((Source("t", 10**7),), (Source("v", 100),))
    fields = {"evaluation_workers": 1, "validation_data": "v", "evaluation_steps": 100000}
    played = Played(knee, data=data, workers="3:8", **fields)
    played.seconds(60, evaluating=(w(0),))
    assert played.wanted > 3
