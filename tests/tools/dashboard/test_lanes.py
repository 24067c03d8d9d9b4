"""A lane has what a process was at, its deaths and restarts, and never too many spans."""

from shoal.tools.dashboard.lanes import MOST_SPANS, Lane, Moment, in_order


def alive(task=0, records=0, incarnation=0, deaths=0, kind="TRAIN"):
    return Moment("alive", incarnation, deaths, task, kind if task else "", records)


def test_tasks_deaths_and_restarts_are_in_the_lane():
    lane = Lane()
    lane.see(0.0, Moment("starting", 0, 0))
    lane.see(4.0, alive())
    lane.see(5.0, alive(1, 40))
    lane.see(6.0, alive(2, 30))
    # It is dead, and its task its own until the servers have fenced it.
    lane.see(7.0, Moment("dead", 0, 1, 2, "TRAIN", 30))
    lane.see(7.5, Moment("starting", 1, 1))
    lane.see(9.0, alive(3, 20, 1, 1))
    lane.until(9.5)
    assert [span.to_json() for span in lane.spans] == [
        [0.0, 4.0, "starting", 0, 0],
        [5.0, 6.0, "TRAIN", 1, 40],
        [6.0, 7.0, "TRAIN", 1, 30],
        [7.5, 9.0, "starting", 0, 0],
        [9.0, 9.5, "TRAIN", 1, 20],
    ]
    assert lane.marks == [(7.0, "death"), (7.5, "restart")]
    lane.close()
    lane.until(20.0)
    assert lane.spans[-1].end == 9.5


def test_a_server_that_is_started_again_at_once_begins_a_new_span():
    lane = Lane()
    lane.see(0.0, Moment("alive", 0, 0, 0, "alive"))
    lane.see(3.0, Moment("alive", 1, 1, 0, "alive"))
    lane.until(4.0)
    assert [(span.start, span.end) for span in lane.spans] == [(0.0, 3.0), (3.0, 4.0)]
    assert [kind for _, kind in lane.marks] == ["death", "restart"]


def test_many_tasks_become_fewer_spans_and_none_is_forgotten():
    lane = Lane()
    for task in range(1, 5001):
        lane.see(task * 0.1, alive(task, 7))
    assert len(lane.spans) <= MOST_SPANS
    assert sum(span.tasks for span in lane.spans) == 5000
    assert sum(span.records for span in lane.spans) == 5000 * 7
    neighbours = zip(lane.spans, lane.spans[1:], strict=False)
    assert all(one.end <= other.start for one, other in neighbours)


def test_kinds_that_alternate_stay_apart_and_within_the_limit():
    lane = Lane()
    for task in range(1, 2001):
        lane.see(task * 0.1, alive(task, 1, kind="EVALUATE" if task % 2 else "TRAIN"))
    assert len(lane.spans) <= MOST_SPANS
    assert lane.spans[-1].kind == "TRAIN"


def test_workers_come_before_servers_by_number():
    names = ["ps-0", "worker-10", "worker-9"]
    assert sorted(names, key=in_order) == ["worker-9", "worker-10", "ps-0"]
