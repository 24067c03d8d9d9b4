"""What is remembered of a job's course."""

import itertools

import pytest

from shoal.master.work.record import LOSSES, TrainingLoss


def test_the_course_of_the_loss_has_parts_of_as_many_batches_each():
    loss = TrainingLoss()
    assert loss.course == []
    for at in range(10_000):
        loss.add(float(at), float(at), 1 + at % 3)
        assert len(loss.course) <= LOSSES
    course = loss.course
    assert len(course) >= LOSSES / 2
    steps = [after - before for before, after in itertools.pairwise(course)]
    assert min(steps) == pytest.approx(max(steps), rel=0.5)
    assert (course[0], course[-1]) == pytest.approx((0.0, 10_000.0), abs=200)


def test_a_last_part_of_few_batches_is_in_the_one_before():
    loss = TrainingLoss()
    for value in (0.5, 0.4, 0.3):
        loss.add(0.0, value, 100)
    loss.add(0.0, 2.0, 10)
    assert loss.course == pytest.approx([0.5, 0.4, (0.3 * 100 + 2.0 * 10) / 110])
