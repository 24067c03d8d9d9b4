"""The table of kinds of task."""

from shoal.master.work.tasks.kinds import ALONE_IN, KINDS
from shoal.proto import shoal_pb2 as pb


def test_every_kind_that_can_be_said_is_in_the_table():
    assert KINDS.keys() == set(pb.TaskKind.values()) - {pb.TASK_KIND_UNSPECIFIED}


def test_others_wait_for_a_task_that_is_alone_in_its_phase():
    assert all(KINDS[number].doing for number in ALONE_IN.values())
    assert not any(kind.doing and kind.data for kind in KINDS.values())
