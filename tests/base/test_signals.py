"""A signal that comes while the main thread holds the lock that its handling needs."""

import os
import signal
import threading

import pytest

from shoal.base.signals import on_signal
from tests.waiting import PATIENCE


@pytest.fixture
def before():
    number = signal.SIGUSR1
    kept = signal.getsignal(number)
    yield number
    signal.signal(number, kept)


def test_an_event_may_be_set_though_the_main_thread_is_about_to_wait_for_it(before):
    told = threading.Event()
    on_signal(before, told.set)
    with told._cond:  # as in the midst of told.wait()
        os.kill(os.getpid(), before)
        # Handled here, between two steps, by the thread that has the lock.
        assert not told.is_set()
    assert told.wait(PATIENCE)


def test_without_a_thread_it_is_done_at_once(before, monkeypatch):
    done = []

    def none_left(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", none_left)
    on_signal(before, lambda: done.append(True))
    os.kill(os.getpid(), before)
    assert done == [True]
