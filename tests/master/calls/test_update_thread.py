"""Between two updates of --sync, and never within one."""

import threading

from shoal.master.calls.update_thread import UpdateThread


def test_what_is_done_between_updates_waits_for_those_that_are_decided():
    ending = threading.Event()
    thread = UpdateThread(ending)
    applied = []
    decided = 3

    def applying():
        # Decided after the first look: what waits for the thread comes before the next one.
        if not applied:
            for number in range(decided):
                thread.submit(lambda number=number: applied.append(number))
        return len(applied) < decided

    assert thread.between(applying, lambda: list(applied)) == [0, 1, 2]
    ending.set()
    thread.close()


def test_nobody_waits_for_an_update_of_a_job_that_has_ended():
    ending = threading.Event()
    thread = UpdateThread(ending)
    looked = threading.Event()

    def applying():
        looked.set()
        return True

    found = []
    waiting = threading.Thread(target=lambda: found.append(thread.between(applying, list)))
    waiting.start()
    assert looked.wait(30)
    ending.set()
    waiting.join(30)
    thread.close()
    assert found == [None]
