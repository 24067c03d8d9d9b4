"""The state machine of pods, without a cluster."""

from dataclasses import replace

import pytest

from shoal.master.job.members.launcher import Started, Waiting
from shoal.master.launchers.pod_view import PodView
from shoal.master.launchers.pods import CreatePod, DeletePod, KeepLog, Pods, Report
from shoal.master.work.ids import ServerId, Start, WorkerId

FIRST = Start(WorkerId(0), 0)
SECOND = Start(WorkerId(0), 1)


def pod_labels(start):
    return {
        "shoal.dev/role": start.process.role,
        "shoal.dev/index": str(start.process.index),
        "shoal.dev/incarnation": str(start.incarnation),
    }


def pod(start=FIRST, phase="Running", container=None, growth=None, **status):
    """A pod as the API shows it. growth: of its label; None: it has none."""
    metadata = {"labels": pod_labels(start)}
    if growth is not None:
        metadata["labels"]["shoal.dev/memory-growth"] = str(growth)
    if status.pop("deleting", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if container is not None:
        status["containerStatuses"] = [{"name": start.process.role, "state": container}]
    return PodView.of({"metadata": metadata, "status": {"phase": phase, **status}})


def ended(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason}}


@pytest.fixture
def pods():
    made = Pods(memory_steps=2)
    made.listed([])
    return made


def running(pods, start=FIRST):
    pods.start(start)
    pods.created(start)
    pods.seen(pod(start))
    return pods


def exit_of(actions):
    (report,) = [action for action in actions if isinstance(action, Report)]
    return report


def test_a_pod_from_its_creation_to_its_end(pods):
    assert pods.start(FIRST) == [CreatePod(FIRST)]
    assert pods.wanted(FIRST)
    assert pods.created(FIRST) == []
    assert not pods.wanted(FIRST)
    assert pods.seen(pod(phase="Pending")) == []
    assert pods.seen(pod()) == [Started(FIRST, None)]
    assert pods.seen(pod()) == []
    assert pods.alive == {FIRST}
    report = exit_of(pods.seen(pod(phase="Succeeded", container=ended(0, "Completed"))))
    assert (report.exited.code, report.exited.counted, report.with_log) == (0, True, False)
    assert pods.alive == frozenset()


def test_a_crash_counts_and_brings_its_log(pods):
    report = exit_of(running(pods).seen(pod(phase="Failed", container=ended(1))))
    assert report.exited.cause == "exit code 1"
    assert report.exited.counted
    assert report.with_log


@pytest.mark.parametrize(
    "view",
    [
        pod(phase="Failed", reason="Evicted"),
        pod(phase="Failed", container=ended(143), deleting=True),
        pod(deleting=True, reason="NodeLost"),
        pod(
            phase="Failed",
            container=ended(137),
            conditions=[
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            ],
        ),
    ],
)
def test_what_the_cluster_takes_away_does_not_count(pods, view):
    assert not exit_of(running(pods).seen(view)).exited.counted


@pytest.mark.parametrize(
    "reason",
    [
        *("OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "OutOfnvidia.com/gpu"),
        *("UnexpectedAdmissionError", "Preempting", "NodeAffinity", "TopologyAffinityError"),
    ],
)
def test_a_pod_that_its_node_refuses_does_not_count_and_is_told(pods, reason):
    pods.start(FIRST)
    pods.created(FIRST)
    message = "Pod was rejected: Node didn't have enough resource"
    exited = exit_of(pods.seen(pod(phase="Failed", reason=reason, message=message))).exited
    assert not exited.counted
    assert exited.refused
    assert exited.cause == f"its pod was refused by its node: {reason}: {message}"


def test_a_pod_that_ran_out_of_its_time_counts(pods):
    view = pod(phase="Failed", reason="DeadlineExceeded", container=ended(143))
    assert exit_of(running(pods).seen(view)).exited.counted


def test_a_pod_that_was_deleted_from_outside_does_not_count(pods):
    assert not exit_of(running(pods).gone(FIRST)).exited.counted


def test_a_silent_worker_that_the_master_deletes_counts(pods):
    assert running(pods).end(FIRST, at_once=True) == [DeletePod(FIRST, at_once=True)]
    assert exit_of(pods.gone(FIRST)).exited.counted


def test_a_start_waits_until_the_pod_before_is_gone(pods):
    running(pods).seen(pod(phase="Failed", container=ended(1)))
    assert pods.start(SECOND) == [DeletePod(FIRST, at_once=True)]
    assert pods.gone(FIRST) == [CreatePod(SECOND)]
    pods.created(SECOND)
    # The watch repeats itself: the end of the first is no news.
    assert pods.gone(FIRST) == []
    assert pods.alive == {SECOND}


def test_one_that_runs_out_of_memory_gets_more_until_the_cap(pods):
    killed = ended(137, "OOMKilled")
    running(pods)
    for growth in (1, 2):
        report = exit_of(pods.seen(pod(Start(WorkerId(0), growth - 1), "Failed", killed)))
        assert not report.exited.counted
        assert "ran out of memory" in report.exited.cause
        start = Start(WorkerId(0), growth)
        pods.start(start)
        assert CreatePod(start, growth) in pods.gone(Start(WorkerId(0), growth - 1))
        pods.created(start)
    report = exit_of(pods.seen(pod(Start(WorkerId(0), 2), "Failed", killed)))
    assert report.exited.counted
    assert "not to be given more" in report.exited.cause


def test_a_container_that_its_node_forgot_counts_against_nobody(pods):
    """A node was restarted: the kubelet says 137, of which nobody knows anything."""
    running(pods)
    report = exit_of(pods.seen(pod(phase="Failed", container=ended(137, "ContainerStatusUnknown"))))
    assert not report.exited.counted
    assert report.exited.cause.endswith("its pod was lost: ContainerStatusUnknown")


def test_a_new_master_knows_how_much_memory_the_pods_were_given():
    pods = Pods(memory_steps=2)
    pods.listed([pod(growth=1)])
    pods.adopt(FIRST)
    killed = ended(137, "OOMKilled")
    report = exit_of(pods.seen(pod(phase="Failed", container=killed, growth=1)))
    assert "is given more" in report.exited.cause
    pods.start(SECOND)
    assert CreatePod(SECOND, 2) in pods.gone(FIRST)
    # The growth that is known is not taken back by a pod of before.
    pods.seen(pod(SECOND, growth=0))
    report = exit_of(pods.seen(pod(SECOND, phase="Failed", container=killed, growth=2)))
    assert "not to be given more" in report.exited.cause


def test_waiting_is_said_once_and_goes_on(pods):
    pods.start(FIRST)
    pods.created(FIRST)
    no_room = {"type": "PodScheduled", "status": "False"} | {
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    waiting = [Waiting(FIRST, "Unschedulable: 0/1 nodes are available")]
    assert pods.seen(pod(phase="Pending", conditions=[no_room])) == waiting
    assert pods.seen(pod(phase="Pending", conditions=[no_room])) == []
    assert pods.seen(pod()) == [Started(FIRST, None)]


def test_a_turn_in_a_queue_of_kueue_is_waited_for_as_room_is(pods):
    pods.start(FIRST)
    pods.created(FIRST)
    gated = {"type": "PodScheduled", "status": "False"} | {
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    (waiting,) = pods.seen(pod(phase="Pending", conditions=[gated]))
    assert waiting.why.startswith("SchedulingGated: Scheduling is blocked")
    assert not waiting.error


def test_a_registry_that_is_away_is_waited_for_and_a_missing_local_image_is_not(pods):
    pods.start(FIRST)
    pods.created(FIRST)
    away = {"waiting": {"reason": "ImagePullBackOff", "message": "no route"}}
    assert pods.seen(pod(phase="Pending", container=away)) == [
        Waiting(FIRST, "ImagePullBackOff: no route", error=True)
    ]
    back_off = {"waiting": {"reason": "ErrImagePull", "message": "no route"}}
    assert len(pods.seen(pod(phase="Pending", container=back_off))) == 1
    for _ in range(2):  # each was told
        assert pods.seen(pod(phase="Pending", container=away)) == []
        assert pods.seen(pod(phase="Pending", container=back_off)) == []
    pulls = {"waiting": {"reason": "ContainerCreating"}}
    assert pods.seen(pod(phase="Pending", container=pulls)) == [
        Waiting(FIRST, "ContainerCreating: the reason before has passed")
    ]
    assert pods.seen(pod(phase="Pending", container=pulls)) == []
    assert pods.seen(pod(phase="Pending", container=away)) == [
        Waiting(FIRST, "ImagePullBackOff: no route", error=True)
    ]
    never = {"waiting": {"reason": "ErrImageNeverPull", "message": "not present"}}
    actions = pods.seen(pod(phase="Pending", container=never))
    assert "ErrImageNeverPull" in exit_of(actions).exited.cause
    assert DeletePod(FIRST, at_once=True) in actions


def test_what_was_missed_is_seen_in_the_list(pods):
    other = Start(ServerId(1), 0)
    running(pods)
    running(pods, other)
    pods.listing()
    actions = pods.listed([pod(other)])
    assert exit_of(actions).exited.start == FIRST
    assert pods.alive == {other}
    assert not pods.unsure


def test_a_pod_that_is_younger_than_the_list_is_not_taken_for_gone(pods):
    pods.start(FIRST)
    pods.listing()  # answered before, and heard of after, the pod is created
    pods.created(FIRST)
    assert pods.listed([]) == []
    assert pods.alive == {FIRST}
    assert pods.unsure

    # It may as well have gone before the answer: the next list tells.
    pods.listing()
    assert exit_of(pods.listed([])).exited.start == FIRST
    assert not pods.unsure


def test_a_pod_that_is_created_while_all_are_listed_is_seen_in_the_list(pods):
    pods.start(FIRST)
    pods.listing()
    pods.created(FIRST)
    assert pods.listed([pod()]) == [Started(FIRST, None)]
    assert not pods.unsure


def test_a_refused_creation_is_the_end_and_counts(pods):
    pods.start(FIRST)
    report = exit_of(pods.refused(FIRST, "no PriorityClass with name gold was found"))
    assert report.exited.counted
    assert "gold" in report.exited.cause


def test_one_ended_while_it_is_created_is_deleted_again(pods):
    pods.start(FIRST)
    actions = pods.end(FIRST, at_once=False)
    assert actions[0] == DeletePod(FIRST, at_once=True)
    assert exit_of(actions)
    assert pods.created(FIRST) == [DeletePod(FIRST, at_once=True)]


def test_adoption_by_labels():
    pods = Pods()
    assert pods.adopt(FIRST) == []
    assert pods.adopt(Start(WorkerId(1), 0)) == []
    actions = pods.listed([pod(FIRST)])
    assert Started(FIRST, None) in actions
    # What has no pod any more has ended, through nobody's fault.
    report = exit_of(actions)
    assert (report.exited.start, report.exited.counted) == (Start(WorkerId(1), 0), False)
    assert pods.alive == {FIRST}


def test_others_pods_are_none_of_ours():
    labels = {"shoal.dev/role": "master"}
    assert PodView.of({"metadata": {"labels": labels}, "status": {}}) is None
    assert PodView.of({"metadata": {}, "status": {}}) is None


def test_a_server_is_of_its_last_node_until_it_has_another(pods):
    servers = [Start(ServerId(index), 0) for index in range(4)]
    assert pods.nodes_of_servers == {}
    for start, node in zip(servers, ("a", "b", "a", ""), strict=True):
        pods.start(start)
        pods.created(start)
        pods.seen(replace(pod(start), node=node))
    assert pods.nodes_of_servers == {0: "a", 1: "b", 2: "a"}
    # Evicted, it waits for room: its node may be drained of the other one, too.
    pods.gone(servers[0])
    again = Start(ServerId(0), 1)
    pods.start(again)
    pods.created(again)
    pods.seen(replace(pod(again), node=""))
    assert pods.nodes_of_servers == {0: "a", 1: "b", 2: "a"}
    pods.seen(replace(pod(again), node="b"))
    # One that was given back has none, and a worker beside them takes no part.
    pods.end(servers[2], at_once=False)
    pods.gone(servers[2])
    pods.start(FIRST)
    pods.seen(replace(pod(), node="b"))
    assert pods.nodes_of_servers == {0: "b", 1: "b"}


def test_a_pods_node_is_seen():
    found = {
        "metadata": {"labels": pod_labels(FIRST)},
        "spec": {"nodeName": "a"},
        "status": {"phase": "Running"},
    }
    assert PodView.of(found).node == "a"


def test_what_a_pod_has_written_is_kept_before_it_goes(pods):
    running(pods)
    leaving = pod(deleting=True)
    assert pods.seen(leaving) == [KeepLog(FIRST)]
    assert pods.seen(leaving) == []
    # Again once it has ended, as it may have written more; with a failure it is read anyway.
    keep, report = pods.seen(pod(phase="Succeeded", container=ended(0, "Completed"), deleting=True))
    assert (keep, report.with_log) == (KeepLog(FIRST), False)
    running(pods, SECOND)
    (report,) = pods.seen(pod(SECOND, "Failed", ended(1)))
    assert report.with_log
