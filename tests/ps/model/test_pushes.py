"""Pushes are applied once, and never for a replaced worker."""

import threading

import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.model.pushes import PushRegister


def push(sequence, incarnation=0, worker=0, task=1, records_done=0):
    identity = pb.PushIdentity(worker=worker, incarnation=incarnation, sequence=sequence)
    return pb.PushRequest(identity=identity, task=task, records_done=records_done)


def admit(register, request):
    with register.admit(request) as fresh:
        return fresh


def test_a_push_is_fresh_once():
    register = PushRegister()
    assert admit(register, push(1))
    assert not admit(register, push(1))
    assert admit(register, push(2))
    assert not admit(register, push(1))
    assert register.duplicates == 2


def test_a_push_that_failed_is_not_recorded():
    register = PushRegister()
    with pytest.raises(ZeroDivisionError), register.admit(push(1)):
        raise ZeroDivisionError
    assert admit(register, push(1))


def test_workers_do_not_share_numbers():
    register = PushRegister()
    assert admit(register, push(1, worker=0))
    assert admit(register, push(1, worker=1))


def test_a_new_incarnation_counts_from_one_and_shuts_out_the_old():
    register = PushRegister()
    admit(register, push(1))
    admit(register, push(2))
    assert admit(register, push(1, incarnation=1))
    with pytest.raises(WireError, match="was replaced") as caught:
        admit(register, push(3, incarnation=0))
    assert caught.value.kind == pb.FENCED


def test_a_fence_tells_the_last_push_and_refuses_later_ones():
    register = PushRegister()
    admit(register, push(1, task=7, records_done=256))
    admit(register, push(2, task=7, records_done=512))
    reply = register.fence(0, 0)
    assert (reply.sequence, reply.task, reply.records_done) == (2, 7, 512)
    with pytest.raises(WireError) as caught:
        admit(register, push(3))
    assert caught.value.kind == pb.FENCED
    assert admit(register, push(1, incarnation=1))


def test_a_fence_of_a_worker_that_never_pushed_says_so():
    register = PushRegister()
    assert register.fence(3, 0) == pb.FenceReply()
    with pytest.raises(WireError):
        admit(register, push(1, worker=3))


def test_a_fence_does_not_report_another_incarnations_push():
    register = PushRegister()
    admit(register, push(5, incarnation=0, task=3, records_done=9))
    assert register.fence(0, 1) == pb.FenceReply()


def test_a_fence_waits_for_the_push_under_way():
    """1. a push is being applied; 2. the fence begins; 3. the push ends; 4. the fence
    reports that very push."""
    register = PushRegister()
    applying, finish = threading.Event(), threading.Event()
    replies = []

    def slow_push():
        with register.admit(push(1, records_done=64)):
            applying.set()
            finish.wait(30)

    def fence():
        replies.append(register.fence(0, 0))

    pusher = threading.Thread(target=slow_push)
    pusher.start()
    assert applying.wait(30)
    fencer = threading.Thread(target=fence)
    fencer.start()
    assert not replies
    finish.set()
    pusher.join(30)
    fencer.join(30)
    assert replies[0].records_done == 64


def test_what_is_restored_is_all_that_is_known():
    """Also where a first try to restore has left something."""
    register, other = PushRegister(), PushRegister()
    for worker in (1, 2):
        admit(other, push(7, incarnation=3, worker=worker, task=5, records_done=9))
    other.fence(2, 3)
    with other.paused() as applied:
        saved = [dict(each) for each in applied]
    admit(register, push(4, worker=0))
    for kept in (saved, saved[:1], saved, []):
        register.restore(kept)
        with register.paused() as applied:
            found = [each for each in applied if any(each[k] for k in ("sequence", "incarnation"))]
            assert sorted(found, key=str) == sorted(kept, key=str)
            assert all(each["fenced"] == -1 for each in applied if each not in found)
    assert admit(register, push(1, worker=2))


def test_after_close_nothing_is_taken_and_nothing_acknowledged_is_missed():
    register = PushRegister()
    with register.admit(push(1)):
        register.close()  # one under way is still recorded
    for request in (push(2), push(1), push(1, worker=1)):
        with pytest.raises(WireError) as refused:
            admit(register, request)
        assert refused.value.kind == pb.NOT_READY
    with register.paused() as applied:
        assert [each["sequence"] for each in applied if each["worker"] == 0] == [1]


def test_who_may_not_wait_is_told_that_a_push_is_under_way():
    register = PushRegister()
    admit(register, push(3))
    with register.admit(push(4)), pytest.raises(WireError, match="NOT_READY: a push is under way"):
        register.last(wait=False)
    with register.updating(), pytest.raises(WireError, match="a push is under way"):
        register.last(wait=False)
    (last,) = register.last(wait=False)
    assert last.identity.sequence == 4
    assert admit(register, push(5))  # nothing stays locked


def test_a_server_that_has_all_that_is_let_in_refuses_before_anything_is_received():
    """While another one waits for a push: of its workers each would send whole frames."""
    register = PushRegister()
    for worker in range(2):
        assert admit(register, push(1, worker=worker))
    let_in = [push(1 + worker, worker=worker).identity for worker in range(2)]
    register.freeze(let_in)
    register.check_open()  # worker 1 is behind
    register.check_open(pb.PushIdentity(worker=1))
    for other in (pb.PushIdentity(worker=0), pb.PushIdentity(worker=1, incarnation=1)):
        with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
            register.check_open(other)
    with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
        admit(register, push(2, worker=0))
    assert admit(register, push(2, worker=1))
    with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
        register.check_open()
    register.freeze(let_in)
    with pytest.raises(WireError, match="NOT_READY: rows are being moved"):
        register.check_open()
    register.thaw()
    register.check_open()
