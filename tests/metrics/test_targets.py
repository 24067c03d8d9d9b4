"""metrics_targets.json: each process has one entry, whoever writes at the same time."""

import fcntl
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.metrics import targets


@pytest.fixture
def folder(tmp_path):
    return JobFolder(tmp_path)


def entries(folder):
    return {
        (each["labels"]["shoal_role"], each["labels"]["shoal_index"]): each["targets"]
        for each in json.loads(folder.metrics_targets.read_text())
    }


def test_a_next_start_takes_the_place_of_the_one_before(folder):
    targets.put(folder, "tide", "ps", 0, "127.0.0.1:1")
    targets.put(folder, "tide", "ps", 1, "127.0.0.1:2")
    targets.put(folder, "tide", "ps", 0, "127.0.0.1:3")
    assert entries(folder) == {("ps", "0"): ["127.0.0.1:3"], ("ps", "1"): ["127.0.0.1:2"]}
    (first, _) = json.loads(folder.metrics_targets.read_text())
    assert first["labels"] == {"shoal_job": "tide", "shoal_role": "ps", "shoal_index": "0"}


def test_a_process_that_ends_late_leaves_its_successor_there(folder):
    targets.put(folder, "tide", "worker", 0, "127.0.0.1:1")
    targets.put(folder, "tide", "worker", 0, "127.0.0.1:2")
    targets.remove(folder, "worker", 0, "127.0.0.1:1")
    assert entries(folder) == {("worker", "0"): ["127.0.0.1:2"]}
    targets.remove(folder, "worker", 0, "127.0.0.1:2")
    assert entries(folder) == {}


def test_processes_that_write_at_once_are_all_there(folder):
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda index: targets.put(folder, "tide", "worker", index, f"127.0.0.1:{index}"),
                range(64),
            )
        )
    assert entries(folder) == {("worker", str(i)): [f"127.0.0.1:{i}"] for i in range(64)}


@pytest.mark.parametrize("damage", ["", "[", "{}", '[{"targets": []}]', "[3]"])
def test_a_damaged_file_is_replaced(folder, damage):
    folder.metrics_targets.write_text(damage)
    targets.put(folder, "tide", "ps", 0, "127.0.0.1:1")
    assert entries(folder) == {("ps", "0"): ["127.0.0.1:1"]}
    targets.clear(folder)
    assert json.loads(folder.metrics_targets.read_text()) == []


def test_a_lock_that_is_never_given_back_is_an_error_that_names_it(folder, monkeypatch):
    monkeypatch.setattr(targets, "PATIENCE_SECONDS", 0.1)
    targets.put(folder, "tide", "ps", 0, "127.0.0.1:1")
    with (folder.path / ".metrics_targets.json.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match=r"another process has held .*\.lock"):
            targets.put(folder, "tide", "ps", 1, "127.0.0.1:2")
    assert entries(folder) == {("ps", "0"): ["127.0.0.1:1"]}
    targets.put(folder, "tide", "ps", 1, "127.0.0.1:2")
    assert len(entries(folder)) == 2
