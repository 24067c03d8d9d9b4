"""The master's service: each call is one question to the job."""

import ast
from pathlib import Path

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.job_logs import keep_log
from shoal.master import client_service, service
from shoal.master.job.events import GradientsLeftOut, PipelineDeepened, WorkerWaits
from shoal.master.job.view.status import status_message
from shoal.master.journal.events import RecordedJob
from shoal.master.shared_job import SharedJob
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from tests.master.services import handlers_of
from tests.master.strategies import config, register, w


def test_each_handler_asks_the_job_one_question_and_reaches_into_no_part_of_it():
    trees = [ast.parse(Path(each.__file__).read_text()) for each in (service, client_service)]
    lambdas = [each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.Lambda)]
    questions = [each for each in lambdas if each.args.args and each.args.args[0].arg == "job"]
    assert len(questions) >= 10
    for question in questions:
        text = ast.unparse(question.body)
        assert isinstance(question.body, ast.Call), text
        of_job = [
            each
            for each in ast.walk(question.body)
            if isinstance(each, ast.Attribute) and ast.unparse(each).startswith("job.")
        ]
        assert len(of_job) == 1, f"more than one question, or a part of the job: {text}"


def beat(**what) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(worker=0, incarnation=0, **what)


def test_a_heartbeat_is_written_down_where_it_says_something_new():
    events = []
    job = RecordedJob(config(), events.append)
    register(job, DataDescribed(training=(Source("t", 20),)))
    handlers = handlers_of(SharedJob(job))
    heartbeat = handlers[methods.HEARTBEAT]
    before = [*events]
    events.clear()
    for said in ({}, {"waits_for": "storage"}, {"waits_for": "storage"}, {}):
        heartbeat(beat(**said))
    assert [e.event for e in events] == [
        WorkerWaits(w(0), 0, "storage"),
        WorkerWaits(w(0), 0, ""),
    ]
    before += events
    events.clear()
    told = ((0, "early"), (1, "slow"), (1, "slower"), (2, ""), (0, "early"), (1, "slow"))
    for depth, why in told:
        heartbeat(beat(pipeline_depth=depth, pipeline_why=why))
    assert [e.event for e in events] == [PipelineDeepened(w(0), 1, "slow")]
    said = "worker-0 has up to 2 steps under way (--pipeline-depth): slow"
    assert [text.partition(": ")[2] for text in job.record.messages].count(said) == 1
    # A master that is started again has not heard the depth, but knows what it noted.
    again = RecordedJob(config(), lambda event: None)
    again.replay([*before, *events])
    events.clear()
    again.listen(events.append)
    handlers_of(SharedJob(again))[methods.HEARTBEAT](beat(pipeline_depth=1, pipeline_why="slow"))
    assert events == []
    view = status_message(job, 0.0).workers[0]
    assert (view.pipeline_depth, view.pipeline_why) == (1, "slow")
    events.clear()
    for minibatches in (0, 2, 2, 3):
        heartbeat(beat(left_out=minibatches, left_out_records=4 * minibatches, left_out_why="NaN"))
    assert [e.event for e in events] == [
        GradientsLeftOut(w(0), 0, 2, 8, "NaN"),
        GradientsLeftOut(w(0), 0, 3, 12, "NaN"),
    ]
    assert job.left_out.records == 12
    assert job.members.workers[w(0)].left_out == (3, 12)


def scaled(wanted: int, **changes) -> int:
    """Workers that a job wants after it was asked for so many."""
    job = RecordedJob(config(**changes), lambda event: None)
    register(job, DataDescribed(training=(Source("t", 20),)))
    handlers = handlers_of(SharedJob(job))
    handlers[methods.SCALE_JOB](pb.ScaleJobRequest(num_workers=wanted))
    return job.members.workers_wanted


def test_pods_have_certificates_for_so_many_workers_and_a_job_gets_no_more():
    pods = {"image": "shoal:1", "workers": "20"}
    assert scaled(80, **pods) == 80
    with pytest.raises(WireError, match=r"certificates for 80 workers.*--workers 81"):
        scaled(81, **pods)
    with pytest.raises(WireError, match="certificates for 64 workers"):
        scaled(65, **pods | {"workers": "2"})
    # Where nothing is made beforehand there is no limit.
    assert scaled(81, **pods | {"tls": "never"}) == 81
    assert scaled(81, workers="20") == 81


def test_a_client_gets_the_log_of_a_start_that_is_over(tmp_path):
    asked = handlers_of(SharedJob(RecordedJob(config(job_dir=str(tmp_path)), lambda _: None)))
    keep_log(JobFolder(tmp_path), "ps", 1, 2, "its log\n")
    get_log = asked[methods.GET_JOB_LOG]
    assert get_log(pb.JobLogRequest(role="ps", index=1)).text == "its log\n"
    assert get_log(pb.JobLogRequest(role="ps", index=1, incarnation=2)).text == "its log\n"
    for wrong, message in (
        ({"incarnation": 0}, "there is no log of restart 0 of ps-1, only of 2"),
        ({"index": 7}, "has no process ps-7; there are: master, ps-1"),
    ):
        with pytest.raises(WireError, match=message):
            get_log(pb.JobLogRequest(**{"role": "ps", "index": 1} | wrong))
