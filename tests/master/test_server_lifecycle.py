"""What the end, the silence and the return of a parameter server lead to."""

from __future__ import annotations

import pytest

from shoal.master.applied import LastPush
from shoal.master.failures import Failure
from shoal.master.ids import ServerId, Start
from shoal.master.instructions import (
    KillProcess,
    StartProcess,
)
from shoal.master.outcomes import (
    DataDescribed,
)
from shoal.master.phases import Phase
from shoal.master.result import result_of
from shoal.master.work import Source
from shoal.proto.errors import WireError
from tests.master.strategies import begun, exited, w

TRAINING = DataDescribed(training=(Source("t", 20),))


def test_a_hung_server_is_killed_once_and_started_again():
    job = begun(TRAINING, num_ps=2, server_timeout_seconds=60.0)
    job.members.servers[ServerId(1)].answered = 40.0
    job.members.servers[ServerId(0)].answered = 100.0
    job.members.workers[w(0)].last_seen = 100.0
    job.tick(100.0)
    assert job.take_instructions() == []
    job.tick(100.1)
    job.tick(101.0)
    assert job.take_instructions() == [KillProcess(Start(ServerId(1), 0))]
    assert any("ps-1 has not answered for 60 s" in text for text in job.record.messages)
    job.process_exited(exited(ServerId(1)), 102.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    job.server_registered(ServerId(1), 1, "host:9", 300.0)
    assert job.members.hung_servers(301.0) == [job.members.servers[ServerId(0)]]
    # One that was not registered again cannot answer.
    job.server_hung(ServerId(1), 0, 302.0)
    assert job.take_instructions() == []


def test_a_dead_server_is_started_again_and_calls_wait_for_it():
    job = begun(TRAINING, num_ps=2, num_workers=2)
    job.process_exited(exited(ServerId(1)), 1.0)
    job.process_exited(exited(ServerId(1)), 1.0)  # told twice
    assert job.take_instructions() == [StartProcess(Start(ServerId(1), 1))]
    with pytest.raises(WireError, match="NOT_READY"):
        job.servers.addresses()
    with pytest.raises(WireError, match="FENCED"):
        job.server_registered(ServerId(1), 0, "host:1", 1.5)
    job.server_registered(ServerId(1), 1, "host:9", 2.0, "it has restored checkpoint 4")
    assert job.servers.addresses() == ["host:0", "host:9"]
    assert job.record.messages[-1].endswith("ps-1 is back: it has restored checkpoint 4")
    assert job.flow.phase == Phase.TRAINING
    job.worker_met(ServerId(1), 1, LastPush(w(0), 0, 3, 0, 0), 2.5)
    assert job.record.messages[-1].endswith("ps-1 has lost 3 acknowledged updates")
    job.process_exited(exited(ServerId(1), 1), 3.0)
    job.server_registered(ServerId(1), 2, "host:9", 3.0, has=[LastPush(w(0), 0, 2, 0, 0)])
    job.worker_met(ServerId(1), 2, LastPush(w(0), 0, 5, 0, 0), 3.5)
    assert job.record.messages[-1].endswith("ps-1 has lost 2 acknowledged updates")
    job.process_exited(exited(ServerId(1), 2), 3.7)
    servers = result_of(job, 4.0)["servers"]
    assert servers == {"starts": 5, "deaths": 3, "lost_pushes": 5, "lost_records": 0}
    # What it is told of workers: whose incarnations are over.
    assert job.members.fences() == []
    job.process_exited(exited(w(1)), 5.0)
    assert job.members.fences() == [(w(1), 0)]


def test_where_a_servers_log_is_and_when_none_protects_it():
    job = begun(TRAINING, durability="log", checkpoint_seconds=9.0, num_ps=2, relaunch_limit=9)
    assert job.members.holder_of(ServerId(1)) == "host:0"
    job.process_exited(exited(ServerId(0)), 1.0)
    assert job.members.holder_of(ServerId(1)) == ""
    job.protection_changed(ServerId(1), 1, 0.0, "its log is lost", 1.5)
    job.server_registered(ServerId(0), 1, "host:7", 2.0, "it is back", 41)
    assert job.members.holder_of(ServerId(1)) == "host:7"
    job.protection_changed(ServerId(1), 1, 2.5, "", 4.0)
    job.protection_changed(ServerId(1), 2, 2.5, "its log is lost", 5.0)
    job.protection_changed(ServerId(1), 2, 4.0, "", 6.0)
    texts = [text.split(": ", 1)[1] for text in job.record.messages]
    assert texts[-3:] == [
        "the updates of ps-1 are protected again, after 2.5 s",
        "warning: the updates of ps-1 are NOT PROTECTED: its log is lost",
        "the updates of ps-1 are protected again, after 1.5 s",
    ]
    assert result_of(job, 7.0)["log"] == {
        "replayed_pushes": 41,
        "unprotected": {"times": 2, "seconds": 4.0},
    }
    assert result_of(begun(TRAINING), 7.0)["log"] is None


def test_a_server_that_dies_too_often_ends_the_job():
    job = begun(TRAINING, relaunch_limit=1)
    job.process_exited(exited(ServerId(0)), 1.0)
    job.process_exited(exited(ServerId(0), 1, last_lines="out of memory"), 2.0)
    message = job.flow.failure.message
    for part in ("ps-0", "signal 9", "--relaunch-limit 1", "some.log", "out of memory"):
        assert part in message


def test_a_server_that_was_evicted_is_started_again_without_counting():
    job = begun(TRAINING, relaunch_limit=0)
    job.process_exited(exited(ServerId(0), counted=False), 1.0)
    assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]


@pytest.mark.parametrize("sync", [False, True])
def test_a_server_that_dies_before_anything_is_trained_is_started_again(sync):
    more = {"sync": True, "grads_to_wait": 1} if sync else {}
    for fields in (
        {"command": "evaluate", "validation_data": "v", "restore_from": "r"},
        {"restore_from": "r", **more},
    ):
        job = begun(**fields)
        job.process_exited(exited(ServerId(0)), 1.0)
        assert job.take_instructions() == [StartProcess(Start(ServerId(0), 1))]
        assert job.flow.failure is None


def test_a_servers_report_names_it():
    job = begun(TRAINING)
    job.process_failed(Start(ServerId(0), 0), Failure.internal("disk full"), 1.0)
    assert job.flow.failure.message == "parameter server ps-0: disk full"
