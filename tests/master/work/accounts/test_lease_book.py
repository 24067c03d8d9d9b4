"""Leases are the same whether they are packed or not, and take few bytes where they are."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from shoal.master.work.accounts import lease_book
from shoal.master.work.accounts.lease_book import LeaseBook
from shoal.master.work.accounts.lease_copies import Lease
from shoal.master.work.ids import WorkerId
from shoal.master.work.units import Span, Task
from shoal.proto import shoal_pb2 as pb


def lease(number, worker=0, source="s", records=4, done=None, before=0):
    """One that has ended, of the task with this number, all of whose records are there."""
    done = records if done is None else done
    span = Span(source, 10 * number, 10 * number + records)
    return Lease(
        Task(number, pb.TRAIN, span, number % 3, trained_before=before),
        WorkerId(worker),
        worker % 2,
        number,
        began=number / 7,
        ended=number / 3,
        last=5 * number,
        begun=number // 10,
        acknowledged=done,
        head=done,
    )


LEASES = st.lists(
    st.builds(
        lease,
        st.integers(1, 2**40),
        st.integers(0, 3),
        st.sampled_from(["a", "b"]),
        st.integers(1, 4),
        st.sampled_from([None, 0]),
        st.integers(0, 1),
    ),
    max_size=40,
    unique_by=lambda each: each.task.id,
)


def book_of(leases):
    book = LeaseBook()
    for each in leases:
        book.add(dataclasses.replace(each))
        book.ended(next(found for found in book.loose() if found.task.id == each.task.id))
    return book


def sorted_by_task(leases):
    return sorted(leases, key=lambda each: each.task.id)


@given(LEASES)
def test_what_is_packed_is_had_again(leases):
    book = book_of(leases)
    assert sorted_by_task(book) == sorted_by_task(leases)
    for each in leases:
        assert book.order_of((each.worker, each.incarnation), each.task.id) == each.order
    assert book.order_of((WorkerId(9), 0), 1) == 0
    partial = [each.task.id for each in leases if not each.whole]
    # What is not whole is never packed, and few that are whole wait for others.
    assert set(partial) <= {each.task.id for each in book.loose()}
    assert len(list(book.loose())) < len(partial) + lease_book.PACKED_TOGETHER


@given(LEASES, st.integers(0, 3))
def test_what_a_server_loses_is_kept_with_the_lease(leases, worker):
    book = book_of(leases)
    changed = WorkerId(worker), worker % 2
    for each in book.changing(changed):
        each.lose(1, ((0, 1),), 3)
    for each in book:
        assert bool(each.lost(1)) == ((each.worker, each.incarnation) == changed)
    for each in leases:
        if (each.worker, each.incarnation) == changed:
            each.lose(1, ((0, 1),), 3)
    assert sorted_by_task(book) == sorted_by_task(leases)


@given(LEASES, st.integers(0, 20))
def test_what_is_settled_is_there_no_more(leases, before):
    book = book_of(leases)
    out = list(book.settled(before, lambda each: each.task.id % 2 == 0 or each.whole))
    gone = [e for e in leases if e.begun < before and (e.task.id % 2 == 0 or e.whole)]
    assert sorted_by_task(out) == sorted_by_task(gone)
    assert sorted_by_task([*book, *out]) == sorted_by_task(leases)


def test_a_packed_lease_takes_few_bytes(monkeypatch):
    monkeypatch.setattr(lease_book, "PACKED_TOGETHER", 512)
    book = book_of([])
    for number in range(1, 5121):
        each = lease(number, worker=number % 4)
        each.begun = 0
        book.add(each)
        book.ended(each)
    assert not list(book.loose())
    packed = sum(len(pack.columns) for pack in book._packs)
    assert packed / 5120 < 40
