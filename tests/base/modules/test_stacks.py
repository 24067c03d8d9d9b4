"""Where threads stand, as a message: grouped, of bounded size, the user's lines marked."""

import runpy
import threading
from contextlib import contextmanager

from shoal.base.modules.stacks import process_stacks

MODULE = """
def wait_here(there, go_on):
    there.release()
    go_on.wait()
"""


@contextmanager
def standing(count, function, *arguments):
    """Have so many threads call `function(there, go_on, ...)`, which waits for go_on."""
    there, go_on = threading.Semaphore(0), threading.Event()
    threads = [
        threading.Thread(target=function, args=(there, go_on, *arguments), name=f"standing-{i:03}")
        for i in range(count)
    ]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert there.acquire(timeout=60)
    try:
        yield
    finally:
        go_on.set()
        for thread in threads:
            thread.join()


def deep(there, go_on, depth):
    if depth:
        deep(there, go_on, depth - 1)
    else:
        there.release()
        go_on.wait()


def test_many_threads_at_one_place_are_told_once_and_a_deep_stack_in_part():
    with standing(300, deep, 400):
        told = process_stacks("worker-0", 2, 7)
    assert (told.process, told.incarnation, told.question) == ("worker-0", 2, 7)
    places = [each for each in told.stacks if "deep" in {call.function for call in each.frames}]
    place = max(places, key=lambda each: each.threads)
    # All but those that had not yet come from the release to the wait.
    assert 250 < place.threads <= 300
    assert told.threads >= 300
    assert (len(place.names), len(place.frames)) == (4, 60)
    assert place.left_out + 60 > 400
    assert place.frames[-1].where == "threading"  # the last call last
    assert told.ByteSize() < 200_000


def test_the_user_s_calls_are_marked_with_their_file_and_come_first(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODULE)
    with standing(1, runpy.run_path(str(path))["wait_here"]):
        told = process_stacks("worker-0")
    of_user = next(each for each in told.stacks if list(each.names) == ["standing-000"])
    assert of_user.frames[0].where == str(path)
    assert of_user.frames[0].function == "wait_here"
    assert of_user.frames[0].line in (3, 4)
    assert of_user.frames[0].own
    assert not any(frame.own for frame in of_user.frames[1:])
    marked = [any(frame.own for frame in each.frames) for each in told.stacks]
    assert marked == sorted(marked, reverse=True)
    # The caller does not tell where it stands itself.
    assert not any("MainThread" in each.names for each in told.stacks)


def test_a_file_name_that_is_not_utf_8_is_written_out():
    names = {}
    exec(compile(MODULE, "/models/caf\udce9.py", "exec"), names)
    with standing(1, names["wait_here"]):
        told = process_stacks("master")
    frames = [each for stacks in told.stacks for each in stacks.frames]
    assert "/models/caf\\udce9.py" in {each.where for each in frames}
