"""Training tasks whose batches a test gives, in place of the master and the data."""

from shoal.proto import shoal_pb2 as pb
from shoal.worker.training.pipeline import TrainingPipeline


def task_of(number):
    return pb.Task(id=number, range=pb.Range(source="data", start=100, end=200))


class GivenTasks:
    """Tasks 1, 2, ... of these iterables of batches; log: (what, task) in order."""

    def __init__(self, *tasks):
        self._batches = dict(enumerate(tasks, 1))
        self.log = []

    def batches(self, task):
        self.log.append(("read", task.id))
        return iter(self._batches[task.id])

    def ahead(self, task):
        self.log.append(("ahead", task.id))
        return task_of(task.id + 1) if task.id + 1 in self._batches else None

    def begin(self, task):
        self.log.append(("begin", task.id))

    def predicted(self, predicted):
        self.log.append(("predicted", predicted.batch.first))

    def done(self, task, after):
        self.log.append(("done", task.id))


def train(model, depth, progress, *tasks, staleness=None):
    """Run a pipeline over the batches of one or more tasks; returns the GivenTasks."""
    given = GivenTasks(*tasks)
    last = TrainingPipeline(model, depth, progress, given, staleness).run(task_of(1))
    assert last.id == (len(tasks) if depth else 1)
    return given
