"""When a job gets one more server itself. No I/O, no clock."""

import pytest

from shoal.master.job.instructions import StartProcess
from shoal.master.job.scaling.server_scaling import MoreServers, ServerScaler
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.strategies import begun, config

TRAINING = DataDescribed(training=(Source("t", 400),))
GB = 1 << 30
PODS = {"image": "shoal", "servers": "2:3"}


def job_of(**changes):
    return begun(TRAINING, **(PODS | changes))


def told(job, server, memory=GB, limit=4 * GB):
    status = pb.ServerStatus(memory_bytes=memory, memory_limit=limit)
    job.servers.answered(ServerId(server), status)


def test_memory_that_will_not_do_brings_one_more_up_to_the_most():
    job = job_of()
    for server in (0, 1):
        told(job, server)
    scaler = ServerScaler(job.config, 10.0)
    assert scaler.look(job.members, lambda _: 3 * GB, 1.0) is None
    found = scaler.look(job.members, lambda index: 3.5 * GB * (index == 1), 1.0)
    assert found == MoreServers(3, "ps-1 will need 3.8 GB of memory, and 4.3 GB is there")
    told(job, 0, memory=int(3.3 * GB))
    job.tick(2.0)
    starts = [i.start for i in job.take_instructions() if isinstance(i, StartProcess)]
    assert starts == [Start(ServerId(2), 0)]
    assert "3 servers from now on: ps-0 will need 3.5 GB of memory" in job.record.messages[-1]
    told(job, 1, memory=int(3.9 * GB))
    job.tick(3.0)  # one at a time
    assert list(job.members.joining) == [ServerId(2)]


def test_on_one_machine_more_servers_have_no_more_memory():
    job = job_of(image="")
    told(job, 0, memory=4 * GB)
    assert ServerScaler(job.config, 10.0).look(job.members, lambda _: 0, 1.0) is None


def busy(job, share, seconds):
    for member in job.members.servers.values():
        member.trained_seconds += seconds
        member.trained_cpu_seconds += share * seconds


def test_processors_that_are_used_up_for_two_windows_bring_one_more():
    job = job_of()
    scaler = ServerScaler(job.config, 10.0)
    found = []
    for window, share in enumerate((0.5, 0.95, 0.5, 0.95, 0.9)):
        found.append(scaler.look(job.members, lambda _: 0, 10.0 * window))
        busy(job, share, 10.0)
    found.append(scaler.look(job.members, lambda _: 0, 50.0))
    assert found == [None] * 5 + [MoreServers(3, "each uses 90% of a core")]


def test_dry_only_says_so_once():
    job = job_of(autoscale="dry")
    told(job, 0, memory=4 * GB)
    for now in (2.0, 3.0):
        job.tick(now)
    said = [each for each in job.record.messages if "would go from 2 to 3" in each]
    assert len(said) == 1
    assert job.moves.servers_wanted == 2


@pytest.mark.parametrize(
    ("changes", "wants"), [({}, True), ({"servers": "2", "workers": "1:2"}, False)]
)
def test_it_decides_where_it_is_asked_to(changes, wants):
    assert ServerScaler(config(**(PODS | changes)), 10.0).wants == wants


def test_no_server_comes_that_the_budget_does_not_allow():
    job = job_of(max_resources="cpu=3", ps_resources="cpu=0.8,memory=1Gi")
    for server in job.members.servers:
        status = pb.ServerStatus(memory_bytes=int(4 * GB), memory_limit=int(4 * GB))
        job.servers.answered(server, status)
    for _ in range(2):
        job.tick(1.0)
    said = [each for each in job.record.messages if "for a further server" in each]
    assert len(said) == 1
    assert "--max-resources has too little cpu for a further server, and ps-0 will need" in said[0]
    assert job.moves.servers_wanted == 2


def test_memory_is_judged_after_a_move_when_it_was_told_since_and_tables_are_compacted():
    job = job_of()
    scaler = ServerScaler(job.config, 10.0)
    for server in (0, 1):
        told(job, server, memory=int(3.5 * GB))
    assert scaler.look(job.members, lambda _: 0, 1.0) is not None
    assert scaler.look(job.members, lambda _: 0, 2.0, moves=1) is None
    assert scaler.look(job.members, lambda _: 0, 12.0, moves=1) is None  # as told before it
    for member in job.members.servers.values():
        member.answered = 11.0
    assert scaler.look(job.members, lambda _: 0, 11.5, moves=1) is None
    assert scaler.look(job.members, lambda _: 0, 12.0, moves=1) is not None
