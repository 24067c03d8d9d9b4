"""What the soak draws of a seed: a job, and faults that this job can have."""

from collections import Counter
from pathlib import Path

import pytest

# tox tests the wheel, beside which the benchmarks are not.
soak = pytest.importorskip("benchmarks.soak")

SEEDS = range(1, 41)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_makes_one_job_and_faults_of_its_processes(seed, tmp_path):
    config = soak.configuration(seed, tmp_path)
    faults = soak.faults_of(seed, 10, config)
    assert faults == soak.faults_of(seed, 10, config)
    assert len(faults) == 10
    there = {"worker": config.num_workers, "ps": config.num_ps, "master": 1, "job": 1}
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
