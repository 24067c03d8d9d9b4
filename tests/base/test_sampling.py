"""Where threads spend their time, as the process itself sees it."""

import sys
import threading

from shoal.base.sampling import TURN_SECONDS, sampled_stacks
from tests.base.test_stacks import standing
from tests.waiting import until


def spin(there, go_on):
    there.release()
    number = 0
    while not go_on.is_set():
        number += 1


def wait_here(there, go_on):
    there.release()
    go_on.wait()


def test_threads_that_compute_are_seen_and_those_that_wait_are_not():
    looks = []

    def seen_once():
        looks.append(sampled_stacks("ps-1", 0.5, threading.Event(), incarnation=2, question=5))
        return any(f.function == "spin" for each in looks[-1].stacks for f in each.frames)

    with standing(1, spin), standing(3, wait_here):
        until("a look at it", seen_once)
    told = looks[-1]
    assert (told.process, told.incarnation, told.question) == ("ps-1", 2, 5)
    functions = {each.frames[-1].function for each in told.stacks}
    assert "wait_here" not in functions
    seen = [each for each in told.stacks if any(f.function == "spin" for f in each.frames)]
    # Its name is without its number: threads of a pool are seen together.
    assert {tuple(each.names) for each in seen} == {("standing",)}
    assert sum(each.threads for each in seen) <= told.samples
    assert all(frame.own for each in seen for frame in each.frames if frame.function == "spin")


def test_a_file_name_that_is_not_utf_8_is_written_out():
    names = {}
    code = "def count(there, go_on):\n there.release()\n while not go_on.is_set(): pass\n"
    exec(compile(code, "/models/caf\udce9.py", "exec"), names)
    told = []

    def seen():
        told[:] = sampled_stacks("ps-0", 0.2, threading.Event()).stacks
        return any(f.where == "/models/caf\\udce9.py" for each in told for f in each.frames)

    with standing(1, names["count"]):
        until("a look at it", seen)


def test_it_ends_when_the_process_is_to_end():
    stopped = threading.Event()
    stopped.set()
    assert sampled_stacks("ps-0", 600.0, stopped).samples == 0


def test_threads_take_short_turns_until_the_last_that_looks_is_done():
    usual = sys.getswitchinterval()
    ends = threading.Event(), threading.Event()
    threads = [
        threading.Thread(target=sampled_stacks, args=("ps-0", 600.0, end), daemon=True)
        for end in ends
    ]
    for thread in threads:
        thread.start()
        until("short turns", lambda: sys.getswitchinterval() < 2 * TURN_SECONDS)
    ends[0].set()
    threads[0].join()
    assert sys.getswitchinterval() < 2 * TURN_SECONDS
    ends[1].set()
    threads[1].join()
    assert sys.getswitchinterval() == usual
