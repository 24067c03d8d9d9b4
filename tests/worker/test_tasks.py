"""The worker's calls about tasks: one of them a task, where the next is wanted when one ends."""

from types import SimpleNamespace

import pytest

from shoal.master.journal.events import RecordedJob
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto.channels import rpc, serving
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.tasks import TaskClient, TrainingTasks
from tests.master.strategies import config, register, w


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
        self.tasks = TrainingTasks(self.client, data, SimpleNamespace(callbacks=callbacks), None)

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
