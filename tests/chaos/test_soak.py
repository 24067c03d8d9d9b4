"""What the soak draws of a seed: a job, and faults that this job can have."""

from collections import Counter
from pathlib import Path

import pytest

# tox tests the wheel, beside which the benchmarks are not.
soak = pytest.importorskip("benchmarks.soak")

SEEDS = range(1, 41)


def restores_slowly(fault):
    return fault.kind == "hang" and fault.when.point in soak.POINTS_OF["restore"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_makes_one_job_and_faults_of_its_processes(seed, tmp_path):
    config = soak.configuration(seed, tmp_path)
    faults = soak.faults_of(seed, 10, config)
    assert faults == soak.faults_of(seed, 10, config)
    slow = sum(map(restores_slowly, faults))
    assert len(faults) == 10 + slow
    there = {"worker": config.num_workers, "ps": config.num_ps, "master": 1, "job": 1}
    there |= {"data": 1, "checkpoints": 1}
    moments = [fault.when.fraction for fault in faults]
    assert moments == sorted(moments)
    for fault in faults:
        assert all(party.index < there[party.role] for party in fault.parties)
        # What is done while all are down needs all to be down.
        assert fault.parties[0].role == "job" or not fault.damage + fault.changes


def test_every_kind_of_fault_and_every_durability_is_drawn():
    kinds, jobs = Counter(), Counter()
    for seed in range(200):
        config = soak.configuration(seed, Path("jobs"))
        jobs[config.durability, config.log_place, config.on_loss, config.num_ps] += 1
        for fault in soak.faults_of(seed, 10, config):
            kinds[fault.kind, fault.parties[0].role] += 1
            kinds.update(fault.damage)
            if fault.kind == "hang":
                kinds["hang", fault.when.point] += 1
            if fault.kind == "storage":
                kinds["storage", fault.parties[0].role, fault.how] += 1
            kinds["changed"] += bool(fault.changes)
    assert len(jobs) == len(soak.DURABILITIES)
    for role in ("worker", "ps", "master", "job"):
        assert kinds["kill", role] > 20
    for each in ("flip", "remove"):
        for what in ("journal", "log", "checkpoint"):
            assert kinds[each, what]
    assert kinds["changed"]
    assert kinds["fill", "ps"]
    assert kinds["cut", "worker"]
    for each in ("feeding", *soak.POINTS_OF["restore"], ""):
        assert kinds["hang", each]
    for storage in ("data", "checkpoints"):
        for how in ("fail", "hang"):
            assert kinds["storage", storage, how]
    for kind, role in (("half-sent", "ps"), ("no-room", "ps"), ("no-room", "worker")):
        assert kinds[kind, role]


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("patience", {"hang", "storage", "half-sent", "no-room", "kill"}),
        ("storage,calls", {"storage", "hang"}),
        ("pause", {"pause"}),
    ],
)
def test_kinds_can_be_chosen(text, drawn):
    found = set()
    for seed in range(20):
        config = soak.configuration(seed, Path("jobs"))
        faults = soak.faults_of(seed, 10, config, soak.kinds_of(text))
        found |= {fault.kind for fault in faults}
        # Whoever is to restore slowly is killed for it, and nobody else is.
        assert text != "patience" or sum(fault.kind == "kill" for fault in faults) == sum(
            map(restores_slowly, faults)
        )
    assert found == drawn


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(soak.click.BadParameter, match="'earthquake' is none of kill, point"):
        soak.kinds_of("kill,earthquake")
