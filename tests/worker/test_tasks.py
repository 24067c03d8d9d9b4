"""The worker's calls about tasks: one of them a task, where the next is wanted when one ends."""

from types import SimpleNamespace

import pytest

from shoal.master.journal.events import RecordedJob
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.worker.model.model import Predicted
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.tasks import TaskClient, TrainingTasks
from tests.master.strategies import config, register, w


class Summing:
    """Metrics of every worker's predictions: their sum."""

    total = 100.0  # of an evaluation before

    @classmethod
    def reset(cls):
        cls.total = 0.0

    @classmethod
    def add_predictions(cls, batch, predictions, of_layers):
        cls.total += predictions + of_layers

    @classmethod
    def states(cls):
        variable = pb.DoubleArray(shape=[], values=[cls.total])
        return pb.MetricStates(metrics=[pb.MetricState(name="sum", variables=[variable])])


class World:
    """A master's job behind its calls, and a worker's tasks; calls: their names, in order."""

    def __init__(self, records):
        self.job = RecordedJob(config(workers="1"), lambda _: None)
        register(self.job, DataDescribed(training=(Source("t", records),)))
        self.calls = []
        handlers = MasterService(SharedJob(self.job)).handlers()
        noted = {method: self._noted(method, handler) for method, handler in handlers.items()}
        self.server, port = serving.serve(noted, "127.0.0.1:0", 2)
        self.connection = rpc.Connection(f"127.0.0.1:{port}")
        progress = Progress()
        heartbeat = Heartbeat(self.connection, progress, 0, 0, 60.0)
        servers = SimpleNamespace(version=0)
        self.client = TaskClient(self.connection, 0, 0, servers, progress, heartbeat)
        pipeline = SimpleNamespace(
            batches=lambda records, _: iter(range(records.start, records.end))
        )
        data = SimpleNamespace(order=lambda task: None, pipeline=lambda _: pipeline)
        callbacks = SimpleNamespace(stop_reason=lambda: "")
        model = SimpleNamespace(callbacks=callbacks)
        self.tasks = TrainingTasks(self.client, data, model, Summing)

    def _noted(self, method, handler):
        def handle(request):
            self.calls.append(method)
            return handler(request)

        return handle

    def close(self):
        self.connection.close()
        self.server.stop(None).wait()


@pytest.fixture
def world():
    made = World(records=60)
    yield made
    made.close()


def test_a_task_that_is_read_when_the_one_before_ends_costs_one_call(world):
    first = world.client.lease().task
    seen = list(world.tasks.batches(first))
    ahead = world.tasks.ahead(first)
    world.calls.clear()
    while ahead is not None:
        seen += world.tasks.batches(ahead)  # read, and now the next is wanted
        world.tasks.done(first, ahead)
        first, ahead = ahead, world.tasks.ahead(ahead)
    assert len(set(seen)) == len(seen) == 50
    # Four reports; the last answer was that nobody has the sixth task before it is free.
    assert world.calls == [methods.REPORT_TASK] * 4
    assert world.job.members.workers[w(0)].held.id == first.id


def test_a_task_that_is_not_read_yet_has_none_leased_after_it(world):
    first = world.client.lease().task
    list(world.tasks.batches(first))
    second = world.tasks.ahead(first)
    batches = world.tasks.batches(second)
    next(batches)
    world.calls.clear()
    world.tasks.done(first, second)
    assert world.job.members.workers[w(0)].ahead is None
    list(batches)
    third = world.tasks.ahead(second)
    assert world.job.members.workers[w(0)].ahead.id == third.id
    assert world.calls == [methods.REPORT_TASK, methods.GET_TASK]


def test_a_report_has_the_predictions_of_its_task_alone(world):
    def told():
        report = pb.ReportTaskRequest()
        world.tasks.fill(report, world.client.lease().task)
        sums = [each.variables[0].values[0] for each in report.progressive.metrics]
        return sums, report.progressive_records

    def predict(number):
        world.tasks.predicted(Predicted(SimpleNamespace(size=10), number, 0.5))

    assert told() == ([], 0)
    predict(1.0)
    predict(2.0)
    assert told() == ([4.0], 20)
    assert told() == ([], 0)
    predict(8.0)
    world.tasks.forget_predicted()  # the task failed
    predict(16.0)
    assert told() == ([16.5], 10)
