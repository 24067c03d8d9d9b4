"""What a job waits for is told in words, at every phase of its start and after deaths."""

from shoal.master.ids import ServerId, Start
from shoal.master.job import Job
from shoal.master.outcomes import DataDescribed
from shoal.master.status import status_message
from shoal.master.work import Source
from tests.master.strategies import config, exited, finish_next, take, w


def test_a_job_says_what_it_waits_for():
    job = Job(config(num_workers=2, num_ps=2, min_workers=2))
    job.begin(0.0)

    def told():
        return status_message(job, 1.0).waits_for

    assert told() == "ps-0, ps-1 to start"
    job.server_registered(ServerId(0), 0, "ps-0", 0.0)
    assert told() == "ps-1 to start"
    job.server_registered(ServerId(1), 0, "ps-1", 0.0)
    assert told() == "worker-0, worker-1 to start"
    job.process_started(Start(w(0), 0), 0.0)
    job.process_started(Start(w(1), 0), 0.0)
    assert told() == "TensorFlow to start in worker-0, worker-1"
    job.worker_registered(w(0), 0, 0.0)
    assert told() == "a worker to build the model and to look at the data"
    finish_next(job, w(0), DataDescribed(training=(Source("t", 60),)))
    assert told() == "2 workers (--min-workers), of which 1 are here"
    job.worker_registered(w(1), 0, 1.0)
    take(job, w(0))
    assert told() == "the first training step, for which TensorFlow compiles the model"
    job.record.loss.add(1.0, 0.5, 1)
    assert told() == ""
    job.process_exited(exited(ServerId(1)), 2.0)
    assert told().startswith("ps-1 to ")
    job.stop("enough", 3.0)
    assert told() == ""
