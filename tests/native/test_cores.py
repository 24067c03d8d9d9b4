"""The cores that a process may use, by its affinity and its control groups."""

import os

import pytest

from shoal.native.cores import allowed_cores, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write the files of a machine with 8 cores, by path."""
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def write(**files):
        for path, text in files.items():
            made = tmp_path / path
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(text + "\n")
        return tmp_path

    return write


def test_without_groups_all_cores_count(machine):
    assert usable_cores(machine()) == 8


def test_a_process_that_may_run_on_some_cores_has_no_other(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3}, raising=False)
    assert usable_cores(machine()) == 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "350000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "2000000 100000"}, 8),
        ({"a/b/cpu.max": "300000 100000"}, 1),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "900000 100000"}, 1),
        ({"a/c/cpu.max": "200000 100000"}, 8),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_a_quota_of_a_group_around_a_process_leaves_it_one_core(machine, files, cores):
    groups = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    assert usable_cores(machine(**{"proc/self/cgroup": "0::/a/b"}, **groups)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("250000", 1), ("-1", 8)])
def test_so_do_those_of_the_first_version(machine, quota, cores):
    group = "sys/fs/cgroup/cpu,cpuacct/a"
    root = machine(
        **{
            "proc/self/cgroup": "7:memory:/a\n4:cpu,cpuacct:/a",
            f"{group}/cpu.cfs_quota_us": quota,
            f"{group}/cpu.cfs_period_us": "100000",
        }
    )
    assert usable_cores(root) == cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "350000 100000"}, 3),
        ({"cpu.max": "50000 100000"}, 1),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "900000 100000"}, 2),
        ({"cpu.max": "2000000 100000"}, 8),
    ],
)
def test_a_quota_allows_so_many_threads(machine, monkeypatch, files, cores):
    groups = {f"sys/fs/cgroup/{path}": text for path, text in files.items()}
    root = machine(**{"proc/self/cgroup": "0::/a/b"}, **groups)
    assert allowed_cores(root) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2}, raising=False)
    assert allowed_cores(root) == min(cores, 2)
