"""What is due when: no job, no clock."""

from shoal.tools.chaos.faults import Kill, Target, When
from shoal.tools.chaos.schedule import Schedule, Seen


def kill(index, **when):
    return Kill((Target("ps", index),), When(**when))


def test_each_fault_is_due_once_from_its_step_on():
    faults = [kill(0, step=10), kill(1, step=12), kill(2, step=30)]
    schedule = Schedule(faults)
    assert schedule.due(Seen(9)) == []
    assert schedule.due(Seen(14)) == faults[:2]  # nobody looked in between
    assert schedule.due(Seen(14)) == []
    assert schedule.left == faults[2:]


def test_a_fraction_needs_to_know_of_how_many_steps():
    fault = kill(0, fraction=0.5)
    schedule = Schedule([fault])
    assert schedule.due(Seen(1000)) == []
    assert schedule.due(Seen(49, 100)) == []
    assert schedule.due(Seen(50, 100)) == [fault]


def test_a_phase_that_was_passed_unseen_counts():
    faults = [kill(0, phase="saving"), kill(1, phase="exporting")]
    schedule = Schedule(faults)
    assert schedule.due(Seen(5, phase="training")) == []
    assert schedule.due(Seen(5, phase="evaluating")) == faults[:1]
    assert schedule.due(Seen(5, phase="succeeded")) == []


def test_a_point_without_a_time_is_armed_at_once():
    faults = [kill(0, point="push-applied"), kill(1, point="push-applied", step=3)]
    schedule = Schedule(faults)
    assert schedule.due(Seen()) == faults[:1]
    assert schedule.due(Seen(3)) == faults[1:]


def test_the_same_fault_twice_is_done_twice():
    schedule = Schedule([kill(0, step=1)] * 2)
    assert len(schedule.due(Seen(1))) == 2
