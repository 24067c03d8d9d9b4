"""What a worker tells of its threads when the master asks."""

from shoal.proto import shoal_pb2 as pb
from shoal.worker.reports import told_stacks
from shoal.worker.reports.told_stacks import ToldStacks


def failing(*_):
    raise ValueError("no stacks")


def test_stacks_that_cannot_be_told_are_an_answer_and_no_failure(monkeypatch):
    monkeypatch.setattr(told_stacks, "process_stacks", failing)
    told = ToldStacks(0, 0)
    assert told.asked(pb.HeartbeatReply(stacks_wanted=7))
    request = pb.HeartbeatRequest()
    told.fill(request)
    assert request.stacks.question == 7
    assert "ValueError('no stacks')" in request.stacks.problem
