"""The search for a number of workers, on jobs whose speed is a known function of that number."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.job.scaling.worker_search import WorkerSearch, fit

SHAPES = {
    "all workers pay": lambda w: 100.0 * w,
    "servers have room for 5.3": lambda w: 100.0 * min(w, 5.3),
    "servers have room for 20": lambda w: 100.0 * min(w, 20),
    "each has an eighth in common": lambda w: 100.0 * w / (1 + 0.12 * (w - 1)),
    "they get in each other's way": lambda w: 100.0 * w / (1 + 0.05 * (w - 1) + 0.03 * w * (w - 1)),
    "the second adds a little": lambda w: 130.0 if w > 1 else 100.0,
    "none adds anything": lambda _: 100.0,
}
shapes = pytest.mark.parametrize("speed", SHAPES.values(), ids=SHAPES)


def the_best(speed, efficiency, least=1, most=32):
    """The largest number of which each worker pays."""
    workers = least
    while workers < most:
        mean = speed(workers) / workers
        if speed(workers + 1) - speed(workers) < efficiency * mean:
            break
        workers += 1
    return workers


def searched(search, speed, workers, windows=80, noise=0.0, seed=0):
    """The number of workers in each window."""
    chance, numbers = random.Random(seed), [workers]
    for _ in range(windows):
        found = search.measured(workers, speed(workers) * (1 + chance.uniform(-noise, noise)))
        workers = workers if found is None else found.workers
        numbers.append(workers)
    return numbers


@shapes
@pytest.mark.parametrize("start", [1, 8, 32])
@pytest.mark.parametrize("efficiency", [0.5, 0.1])
def test_it_finds_a_number_as_fast_as_the_best_and_stays(speed, start, efficiency):
    *numbers, last = searched(WorkerSearch(1, 32, efficiency), speed, start)
    assert speed(last) >= 0.95 * speed(the_best(speed, efficiency))
    assert set(numbers[20:]) == {last}


def test_from_one_worker_it_doubles_them():
    numbers = searched(WorkerSearch(1, 32, 0.5), SHAPES["all workers pay"], 1)
    assert numbers[:7] == [1, 2, 4, 8, 16, 32, 32]


@given(st.sampled_from(sorted(SHAPES)), st.sampled_from([1, 8, 32]), st.integers(0, 10**6))
def test_noise_makes_it_go_to_and_fro_for_a_while_only(shape, start, seed):
    speed = SHAPES[shape]
    *numbers, last = searched(WorkerSearch(1, 32, 0.5), speed, start, 90, noise=0.03, seed=seed)
    assert set(numbers[30:]) == {last}
    assert speed(last) >= 0.6 * speed(the_best(speed, 0.5))


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_it_never_leaves_its_range(least, more, data):
    most = least + more
    search, workers = WorkerSearch(least, most, 0.5), data.draw(st.integers(1, 30))
    for step in range(30):
        found = search.measured(workers, data.draw(st.floats(0.1, 1000)))
        if found is not None:
            assert least <= found.workers <= most
            assert found.workers != workers
            assert found.why
            workers = found.workers
        assert step == 0 or least <= workers <= most


def test_it_begins_again_if_the_speed_stays_another_one():
    search, knee = WorkerSearch(1, 32, 0.5), SHAPES["servers have room for 5.3"]
    *_, found = searched(search, knee, 1)
    assert found == 5
    slower = searched(search, lambda w: 0.4 * knee(min(w, 3)), found)
    assert slower[-1] == 3
    # Each further search takes longer to be begun.
    faster = searched(search, SHAPES["all workers pay"], 3)
    assert faster[:4] == [3] * 4
    assert faster[-1] == 32


def test_a_single_strange_window_changes_nothing():
    search, knee = WorkerSearch(1, 32, 0.5), SHAPES["servers have room for 5.3"]
    *_, found = searched(search, knee, 1)
    for _ in range(10):
        assert search.measured(found, 0.3 * knee(found)) is None
        assert search.measured(found, knee(found)) is None


def test_near_the_end_it_tries_no_more_workers_but_goes_back_from_those_that_do_not_pay():
    search = WorkerSearch(1, 32, 0.5)
    assert search.measured(1, 100.0, grows=False) is None
    assert search.measured(1, 100.0).workers == 2
    assert search.measured(2, 110.0, grows=False).workers == 1


@given(st.integers(0, 8), st.sampled_from(sorted(SHAPES)))
def test_a_search_goes_on_from_its_state(windows, shape):
    speed = SHAPES[shape]
    one, other = WorkerSearch(1, 32, 0.5), WorkerSearch(1, 32, 0.5)
    *_, workers = searched(one, speed, 1, windows)
    other.restore(json.loads(json.dumps(one.state())))
    assert searched(other, speed, workers) == searched(one, speed, workers)


@given(st.lists(st.integers(-4, 4), min_size=3, max_size=3))
def test_no_last_bit_of_a_speed_decides(bits):
    search = WorkerSearch(1, 32, 7 / 15)
    for (workers, speed), steps in zip({1: 50.0, 2: 100.0, 4: 150.0}.items(), bits, strict=True):
        for _ in range(abs(steps)):
            speed = math.nextafter(speed, math.copysign(math.inf, steps))
        found = search.measured(workers, speed)
    assert found.workers == 8  # which the fit gives exactly


def test_a_change_from_outside_lets_it_begin_again():
    search, knee = WorkerSearch(1, 32, 0.5), SHAPES["servers have room for 5.3"]
    searched(search, knee, 1)
    search.restart()
    assert searched(search, SHAPES["all workers pay"], 5)[-1] == 32


@given(
    st.floats(0.001, 10),
    st.floats(0, 10),
    st.lists(st.integers(1, 64), min_size=2, max_size=6, unique=True),
)
def test_the_fit_finds_what_speeds_were_made_of(a, c, numbers):
    found_a, found_c = fit({w: w / (a + c * w) for w in numbers})
    assert found_a == pytest.approx(a, rel=1e-6, abs=1e-6)
    assert found_c == pytest.approx(c, rel=1e-6, abs=1e-6)


@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1000), min_size=1, max_size=8))
def test_the_fit_is_never_negative_and_never_worse_than_a_constant(speeds):
    a, c = fit(speeds)
    assert a >= 0
    assert c >= 0
    assert a + c > 0
