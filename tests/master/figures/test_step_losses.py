"""losses.csv has every step that was told of once, whatever is told again."""

import csv

import pytest

from shoal.master.figures.step_losses import COLUMNS, StepLosses
from shoal.proto import shoal_pb2 as pb
from shoal.worker.reports.progress import Progress


def steps(*numbers):
    return [
        pb.StepLoss(step=n, task=7, records_done=10 * n, version=n, loss=1 / n) for n in numbers
    ]


def rows(path):
    with path.open(newline="") as file:
        return [
            (int(row["worker"]), int(row["incarnation"]), int(row["step"]), float(row["loss"]))
            for row in csv.DictReader(file)
        ]


def test_steps_told_twice_are_written_once(tmp_path):
    losses = StepLosses(tmp_path / "losses.csv")
    losses.add(0, 0, steps(1, 2))
    losses.add(1, 0, steps(1))
    losses.add(0, 0, steps(1, 2, 3))
    losses.add(0, 1, steps(1))
    assert rows(tmp_path / "losses.csv") == [
        (0, 0, 1, 1.0),
        (0, 0, 2, 0.5),
        (1, 0, 1, 1.0),
        (0, 0, 3, 1 / 3),
        (0, 1, 1, 1.0),
    ]
    losses.close()
    losses.add(0, 0, steps(4))
    assert len(rows(tmp_path / "losses.csv")) == 5


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_another_master_goes_on_with_the_file_even_where_a_line_was_cut(tmp_path, cut):
    path = tmp_path / "losses.csv"
    before = StepLosses(path)
    before.add(0, 0, steps(1, 2))
    before.close()
    path.write_bytes(path.read_bytes()[: -cut or None])
    after = StepLosses(path)
    after.add(0, 0, steps(1, 2, 3))
    after.close()
    assert rows(path) == [(0, 0, 1, 1.0), (0, 0, 2, 0.5), (0, 0, 3, 1 / 3)]
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS)


def test_a_worker_tells_again_what_no_master_has_heard():
    progress = Progress(keep_steps=True)
    progress.begin(3)
    for number in (1, 2):
        progress.add(10 * number, number, 0.5)
    lost = progress.take(0, 0)
    progress.add(30, 3, 0.25)
    told = progress.take(0, 0)
    assert [each.step for each in lost.steps] == [1, 2]
    assert [each.step for each in told.steps] == [1, 2, 3]
    assert told.steps[2] == pb.StepLoss(step=3, task=3, records_done=30, version=3, loss=0.25)
    progress.heard(told)
    assert not progress.take(0, 0).steps


def test_no_step_is_lost_by_two_heartbeats_at_once():
    """1. a heartbeat is under way; 2. another one is begun and heard; 3. steps are done;
    4. the first is heard."""
    progress = Progress(keep_steps=True)
    progress.begin(3)
    for number in (1, 2):
        progress.add(10 * number, number, 0.5)
    first, second = progress.take(0, 0), progress.take(0, 0)
    progress.heard(second)
    for number in (3, 4, 5):
        progress.add(10 * number, number, 0.5)
    progress.heard(first)
    assert [each.step for each in progress.take(0, 0).steps] == [3, 4, 5]
