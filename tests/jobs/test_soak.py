"""Jobs as the soak draws them: a series whose servers move, and rows with a cap."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from shoal.tools.chaos.faults import Kill, Leave, Scale, Target, When
from shoal.tools.chaos.watcher import Watcher

# tox tests the wheel, beside which the benchmarks are not.
soak = pytest.importorskip("benchmarks.soak")

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("hidden_libraries")]

ZOO = Path(__file__).with_name("zoo")
FAULTS = [
    Scale((Target("master"),), When(step=10), servers=3),
    Kill((Target("ps", 2),), When(step=20)),
    Leave((Target("ps", 0),), When(step=30)),
]


def test_two_days_with_moves_and_a_damaged_list_leave_every_row_exact(tmp_path, monkeypatch):
    """The second day is refused by the list's name, which is then put back."""
    drawn = soak.configuration
    capped = {"table": "records.max_rows=800", "event_time": "record:s", "shuffle": "time"}
    fixed = capped | {"epochs": 1, "workers": "1", "servers": "2", "checkpoint_steps": 50}
    fixed |= {"batch_size": 8, "evaluation_steps": 80}
    fixed |= {"model_def": "paced.custom_model", "model_zoo": str(ZOO)}

    def configuration(seed, jobs, day):
        return dataclasses.replace(drawn(1, jobs, day), **fixed, durability="file")

    # However late a fault comes on a busy machine: training waits for all of them.
    done = tmp_path / "done"
    monkeypatch.setenv("PACED_UNTIL", str(done))
    note, start = Watcher._note, Watcher.start

    def noted(watcher, action):
        note(watcher, action)
        if sum(each.at is not None for each in watcher.actions) == len(FAULTS):
            done.touch()

    def started(watcher, *arguments):
        done.unlink(missing_ok=True)
        return start(watcher, *arguments)

    monkeypatch.setattr(Watcher, "_note", noted)
    monkeypatch.setattr(Watcher, "start", started)
    monkeypatch.setattr(soak, "configuration", configuration)
    monkeypatch.setattr(soak, "days_of", lambda seed: 2)
    monkeypatch.setattr(soak, "faults_of", lambda *_: FAULTS)
    monkeypatch.setattr(soak, "BETWEEN", 1.0)
    monkeypatch.setattr(soak, "LEFT_BY_A_DAY", ("trained",))
    (tmp_path / "jobs").mkdir()
    entries = soak.series(1, tmp_path / "jobs", 6, {})
    assert [each["problems"] for each in entries] == [[], []]
    kinds = sum((Counter(each["kinds"]) for each in entries), Counter())
    told = [each["done"] for each in entries]
    assert kinds["scale"] == kinds["leave"] == kinds["kill"] == 2, told
    assert "trained.json.gz" in entries[1]["between"]
    assert list((tmp_path / "jobs").iterdir()) == []
