"""Memory of removed rows is given back by every table, whatever another one does."""

import threading

import pytest

from shoal.ps.forgetting.compaction import Compactor
from tests.waiting import until


class Table:
    """One of whose records most are free."""

    def __init__(self, go_on):
        self.free_rows, self._go_on, self.compacted = 90, go_on, threading.Event()

    def __len__(self):
        return 10

    def compact(self):
        assert self._go_on.wait(60.0)
        self.free_rows = 0
        self.compacted.set()


def test_a_table_waits_while_another_one_is_compacted():
    go_on, compactor = threading.Event(), Compactor()
    tables = [Table(go_on) for _ in range(4)]
    for table in [*tables, *tables]:
        compactor.consider(table)
    go_on.set()
    assert all(table.compacted.wait(60.0) for table in tables)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_thread_that_cannot_begin_costs_nothing_but_the_wait(monkeypatch, error):
    go_on, compactor = threading.Event(), Compactor()
    go_on.set()
    first, second = Table(go_on), Table(go_on)

    def refused(_):
        raise error("there is none")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        compactor.consider(first)
    compactor.consider(second)
    assert first.compacted.wait(60.0)
    assert second.compacted.wait(60.0)
    until("the thread ends", lambda: not compactor._running or None)
