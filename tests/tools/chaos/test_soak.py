"""What the soak draws of a seed: a job, and faults that this job can have."""

import dataclasses
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.tools.chaos.count_job import read_input
from shoal.tools.chaos.faults import Hang, Kill, Target, When
from shoal.tools.chaos.run import Outcome
from shoal.tools.chaos.watcher import Action

# tox tests the wheel, beside which the benchmarks are not.
soak = pytest.importorskip("benchmarks.soak_draw")
run = pytest.importorskip("benchmarks.soak")

SEEDS = range(1, 41)
DEFAULTS = {"durability": "log", "on_loss": "retrain"}


def restores_slowly(fault):
    return fault.kind == "hang" and fault.when.point in soak.POINTS_OF["restore"]


def is_stuck(fault):
    return fault.seconds == math.inf


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_makes_one_job_and_faults_of_its_processes(seed, tmp_path):
    config = soak.configuration(seed, tmp_path)
    faults = soak.faults_of(seed, 10, config)
    assert faults == soak.faults_of(seed, 10, config)
    slow = sum(map(restores_slowly, faults))
    moves = sum(fault.kind == "scale" for fault in faults)
    assert 10 + slow <= len(faults) <= 10 + slow + moves
    assert sum(map(is_stuck, faults)) <= soak.STUCK_PER_JOB
    # Servers come while the job runs.
    there = {"worker": config.num_workers, "ps": soak.MOST_SERVERS, "master": 1, "job": 1}
    there |= {"data": 1, "checkpoints": 1}
    moments = [fault.when.fraction for fault in faults]
    assert moments == sorted(moments)
    for fault in faults:
        assert all(target.index < there[target.role] for target in fault.targets)
        # What is done while all are down needs all to be down.
        if isinstance(fault, Kill) and fault.targets[0].role != "job":
            assert not fault.damage + fault.changes


def test_every_kind_of_fault_and_every_durability_is_drawn():
    kinds, jobs, days, traits = (Counter() for _ in range(4))
    for seed in range(200):
        config = soak.configuration(seed, Path("jobs"))
        jobs[config.durability, config.on_loss, config.servers] += 1
        days[soak.days_of(seed)] += 1
        told = config.table, config.sync and config.grads_to_wait, config.evaluation_workers
        traits[told, config.model_def] += 1
        for fault in soak.faults_of(seed, 10, config):
            kinds[fault.kind, fault.targets[0].role] += 1
            kinds[fault.kind] += 1
            if isinstance(fault, Kill):
                kinds.update(fault.damage)
                kinds["changed"] += bool(fault.changes)
            if fault.kind == "hang":
                kinds["stuck" if is_stuck(fault) else "hang", fault.when.point] += 1
            kinds[fault.kind, fault.seconds] += 1
            if fault.kind == "storage":
                kinds["storage", fault.targets[0].role, fault.how] += 1
    assert jobs.keys() >= {
        (*(each.get(name, others) for name, others in DEFAULTS.items()), each["servers"])
        for each in soak.DURABILITIES
    }
    assert days.keys() == {1, 2, 3}
    plain, stops = "counts.custom_model", "stopping.custom_model"
    expires, capped = "users.expire_after=1200s", "records.max_rows=800"
    assert traits.keys() == {
        (("", False, 0), plain),
        (("", False, 0), stops),
        (("", False, 1), plain),
        (("", 1, 0), plain),
        (("", 2, 0), plain),
        *(((table, False, 0), plain) for table in (expires, capped, f"{expires},{capped}")),
        (("records.admit_after=2", False, 0), plain),
    }
    for kind in ("scale", "leave"):
        assert kinds[kind]
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
    for each in soak.POINTS_OF["stuck"]:
        assert kinds["stuck", each]
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
        ("stuck,long-no-room", {"hang", "no-room"}),
        ("pause", {"pause"}),
        ("long-storage,long-no-room", {"storage", "no-room", 60.0, 600.0}),
    ],
)
def test_kinds_can_be_chosen(text, drawn):
    found = set()
    for seed in range(20):
        config = soak.configuration(seed, Path("jobs"))
        faults = soak.faults_of(seed, 10, config, soak.kinds_of(text))
        found |= {fault.seconds for fault in faults if text.startswith("long")}
        found |= {fault.kind for fault in faults}
        # Whoever is to restore slowly is killed for it, and nobody else is.
        assert text != "patience" or sum(fault.kind == "kill" for fault in faults) == sum(
            map(restores_slowly, faults)
        )
    assert found == drawn


def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are():
    with pytest.raises(soak.click.BadParameter, match="'earthquake' is none of kill, point"):
        soak.kinds_of("kill,earthquake")


def test_a_day_goes_on_from_the_one_before_with_new_files_of_the_same_kind_of_data(tmp_path):
    seed = next(seed for seed in range(40) if soak.days_of(seed) == 3)
    configs = [soak.configuration(seed, tmp_path, day) for day in range(3)]
    for day in range(3):
        soak.write_days(seed, tmp_path, day)
    assert not configs[0].continue_from
    assert [each.continue_from for each in configs[1:]] == [each.job_dir for each in configs[:2]]
    assert len({each.training_data for each in configs}) == 1
    found = read_input(Path(configs[0].training_data))
    # In the order of time, by which rows expire.
    records = np.concatenate([each.records for each in found])
    assert records.tolist() == list(range(soak.RECORDS))
    for config in configs:
        for fault in soak.faults_of(seed, 40, config):
            # By a URL a file would be another one, and new.
            assert fault.targets[0].role != "data"


def ended(tmp_path, *deaths, logs=()):
    """A job of one worker, which was stuck once; deaths: of whom and why."""
    config = dataclasses.replace(soak.configuration(1, tmp_path), workers="1")
    folder = JobFolder(Path(config.job_dir)).logs
    folder.mkdir(parents=True)
    for incarnation, text in enumerate(logs):
        (folder / f"worker-0.{incarnation}.log").write_text(text)
    points = ("feeding", "computing")  # two threads of one process
    faults = [Hang((Target("worker", 0),), When(point=each), math.inf) for each in points]
    done = [Action(each, at=1.0) for each in faults]
    audit = {"deaths": [{"who": who, "cause": cause, "at": at} for who, cause, at in deaths]}
    outcome = Outcome("succeeded", None, "", done, audit, "")
    return run.unnamed(outcome, config)


STUCK = ("worker-0", "it is stuck for 15 s (--step-timeout-seconds): feed() of counts.py", 16.0)


def test_who_was_stuck_is_to_be_named_with_stacks_or_to_die_of_something_else(tmp_path):
    logs = ["2026 stuck for 15 s. All threads:\n", "as ever"]
    assert not ended(tmp_path / "named", STUCK, ("ps-0", "signal 9", 17.0), logs=logs)
    assert not ended(tmp_path / "killed", ("worker-0", "signal 9, SIGKILL", 2.0), logs=["", ""])
    assert not ended(tmp_path / "whole", ("job", "ended", 2.0), logs=["", ""])
    for name, deaths in (
        ("forgotten", [("ps-0", "signal 9", 2.0)]),
        ("again", [("worker-0", "signal 9", 0.5)]),
    ):
        problems = ended(tmp_path / name, *deaths, logs=["as ever"])
        assert problems == ["hang worker:0 for ever, and the worker did not die after it"] * 2
    (problem,) = ended(tmp_path / "without", STUCK, logs=["as ever", "as ever"])
    assert problem == "worker:0 was named as stuck 1 times, 0 times with stacks"
