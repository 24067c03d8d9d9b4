"""The task board: order, requeues and a ledger that adds up at every moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal.master.work.accounts.applied import AppliedPush, applied_heads
from shoal.master.work.accounts.ledger import Ledger
from shoal.master.work.accounts.spans import Interval
from shoal.master.work.tasks.cutting import cut
from shoal.master.work.units import Requester, Source, Span, Task
from shoal.proto import shoal_pb2 as pb
from tests.examples import examples
from tests.master import strategies
from tests.master.strategies import board


class TaskBoardMachine(RuleBasedStateMachine):
    """Random leases, progress, completions, deaths and failures against plain counting."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[int, Task] = {}
        self.acknowledged: dict[int, int] = {}
        self.settled: Counter[tuple[int, str, int]] = Counter()
        self.failures = 0

    @initialize(
        sources=strategies.sources,
        records_per_task=st.integers(1, 15),
        epochs=st.integers(1, 3),
        seed=st.integers(0, 3),
        more=st.lists(strategies.sources, max_size=3),
        shuffle_tasks=st.booleans(),
        shuffle_buffer=st.sampled_from([0, 0, 2, 7, 16, 100]),
    )
    def create(self, sources, records_per_task, epochs, seed, more, **shuffle):
        self.epochs = epochs
        self.sources = list(sources)
        self.more = [
            [replace(source, name=f"{number}/{source.name}") for source in part]
            for number, part in enumerate(more)
        ]
        self.board = board(
            *sources,
            records_per_task=records_per_task,
            epochs=epochs,
            seed=seed,
            complete=not more,
            **shuffle,
        )

    @precondition(lambda self: self.more)
    @rule()
    def extend(self):
        part = self.more.pop(0)
        self.sources += part
        self.board.extend(part, complete=not self.more)

    def settle(self, task, start, end):
        for record in range(task.span.start + start, task.span.start + end):
            self.settled[task.epoch, task.span.source, record] += 1

    @precondition(lambda self: len(self.leases) < 4)
    @rule(worker=st.integers(0, 3))
    def take(self, worker):
        task = self.board.take(Requester(worker))
        if task is None:
            # Later epochs begin when all parts are known.
            assert self.more or self.board.ledger().pending == sum(
                lease.records - self.acknowledged[lease.id] for lease in self.leases.values()
            )
            return
        assert task.id not in self.acknowledged, "an id was used twice"
        self.leases[task.id] = task
        self.acknowledged[task.id] = 0

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), done=st.integers(0, 20))
    def progress(self, data, done):
        task = data.draw(st.sampled_from(list(self.leases.values())))
        self.board.progress(task.id, done)
        before = self.acknowledged[task.id]
        after = max(before, min(done, task.records))
        self.settle(task, before, after)
        self.acknowledged[task.id] = after

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def complete(self, data):
        task = self.leases.pop(data.draw(st.sampled_from(list(self.leases))))
        self.board.complete(task.id)
        self.settle(task, self.acknowledged[task.id], task.records)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), done=st.integers(0, 20), ahead=st.integers(0, 5))
    def die(self, data, done, ahead):
        task = self.leases.pop(data.draw(st.sampled_from(list(self.leases))))
        before = self.acknowledged[task.id]
        by_all = max(before, min(done, task.records))
        self.board.progress(task.id, by_all)
        self.board.give_back(task.id, by_all + ahead)
        self.settle(task, before, by_all)

    @precondition(lambda self: self.leases and self.failures < 1)
    @rule(data=st.data())
    def fail(self, data):
        task = self.leases.pop(data.draw(st.sampled_from(list(self.leases))))
        self.board.fail(task.id)
        self.failures += 1
        self.settle(task, self.acknowledged[task.id], task.records)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "board"):
            return
        self.board.check()
        ledger = self.board.ledger()
        assert ledger.total == self.epochs * sum(source.records for source in self.sources)
        assert ledger.trained + ledger.failed == self.settled.total()
        assert max(self.settled.values(), default=1) == 1, "a record was settled twice"

    def teardown(self):
        if not hasattr(self, "board"):
            return
        while self.more:
            assert not self.board.finished
            assert not self.board.all_leased
            self.extend()
        for task_id in list(self.leases):
            self.board.give_back(task_id, 0)
        while (task := self.board.take()) is not None:
            self.settle(task, 0, task.records)
            self.board.complete(task.id)
        assert self.board.finished
        assert self.board.ledger().pending == 0
        everything = {
            (epoch, source.name, record)
            for epoch in range(self.epochs)
            for source in self.sources
            for record in range(source.records)
        }
        assert set(self.settled) == everything
        assert max(self.settled.values(), default=1) == 1
        assert self.failures or self.board.tasks_done == self.board.tasks_total


TestTaskBoardMachine = TaskBoardMachine.TestCase
TestTaskBoardMachine.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)


def drain(tasks):
    spans = []
    while (task := tasks.take()) is not None:
        spans.append((task.epoch, task.span))
        tasks.complete(task.id)
    return spans


def test_cut_covers_each_source_and_crosses_none():
    spans = cut([Source("a", 25), Source("b", 0), Source("c", 10)], 10, 5)
    assert spans == [Span("a", 0, 10), Span("a", 10, 20), Span("a", 20, 25), Span("c", 0, 10)]


def test_the_first_epoch_has_parts_in_turn_and_others_know_none():
    parts = [[Source(f"{part}-{i}", 20) for i in range(5)] for part in range(3)]
    whole = board(*parts[0], epochs=2, seed=3, complete=False)
    first = drain(whole)
    assert {span.source for _, span in first} == {source.name for source in parts[0]}
    assert not whole.finished
    whole.extend(parts[1], complete=False)
    whole.extend(parts[2], complete=True)
    rest = drain(whole)
    assert whole.finished
    assert [span.source[0] for epoch, span in rest if epoch == 0] == ["1"] * 10 + ["2"] * 10
    assert len({tuple(span.source[0] for _, span in rest[20 + i : 30 + i]) for i in (0, 10)}) == 2

    at_once = board(*parts[0], epochs=2, seed=3, complete=False)
    for part in parts[1:]:
        at_once.extend(part, complete=part is parts[2])
    assert drain(at_once) == first + rest
    assert at_once.ledger() == whole.ledger() == Ledger(600, trained_once=600)
    assert at_once.tasks_done == at_once.tasks_total == 60


def test_max_steps_that_end_in_a_part_need_no_other():
    tasks = board(Source("a", 30), max_steps=5, batch_size=10, complete=False)
    assert not tasks.all_known
    tasks.extend([Source("b", 30)], complete=False)
    assert tasks.all_known
    tasks.extend([Source("c", 30)], complete=False)
    assert [len(span) for _, span in drain(tasks)] == [10] * 5
    assert tasks.finished
    assert tasks.ledger() == Ledger(50, trained_once=50)


def test_a_board_that_is_resumed_goes_on_to_the_parts_that_come_later():
    tasks = board(Source("a", 30), epochs=2, complete=False)
    tasks.complete(tasks.take().id)
    tasks.resume([Interval("trained", 0, Span("a", 0, 10))], 1)
    tasks.extend([Source("b", 10)], complete=True)
    drained = drain(tasks)
    assert sorted(str(span) for epoch, span in drained if epoch == 0) == [
        "records 0 to 9 of b",
        "records 10 to 19 of a",
        "records 20 to 29 of a",
    ]
    assert tasks.ledger() == Ledger(80, trained_once=80)
    assert tasks.tasks_done == tasks.tasks_total


def test_order_depends_on_seed_and_epoch_alone():
    first = drain(board(300, epochs=2, seed=5))
    assert drain(board(300, epochs=2, seed=5)) == first
    assert drain(board(300, epochs=2, seed=6)) != first
    epochs = [[span for epoch, span in first if epoch == e] for e in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(map(str, epochs[0])) == sorted(map(str, epochs[1]))


def test_next_epoch_begins_while_the_last_task_is_in_flight():
    tasks = board(10, epochs=2)
    first, second = tasks.take(), tasks.take()
    assert (first.epoch, second.epoch) == (0, 1)
    assert tasks.take() is None
    assert not tasks.finished


def test_the_rest_of_a_dead_workers_task_goes_first():
    tasks = board(100)
    task = tasks.take()
    tasks.progress(task.id, 4)
    tasks.give_back(task.id, 7)
    rest = tasks.take()
    assert rest.span == Span(task.span.source, task.span.start + 4, task.span.end)
    assert rest.id != task.id
    assert rest.trained_before == 3
    tasks.complete(rest.id)
    assert tasks.ledger() == Ledger(total=100, trained_once=4 + 3, repeated=3, failed=0, pending=90)


def test_records_repeated_twice_count_once():
    tasks = board(10)
    for _ in range(3):
        tasks.give_back(tasks.take().id, 6)
    task = tasks.take()
    tasks.progress(task.id, 2)
    tasks.give_back(task.id, 2)
    tasks.complete(tasks.take().id)
    assert tasks.ledger() == Ledger(total=10, trained_once=4, repeated=6)


def test_death_after_the_last_push_leaves_nothing():
    tasks = board(10)
    tasks.progress((last := tasks.take()).id, 10)
    tasks.give_back(last.id, 10)
    assert tasks.finished
    assert tasks.tasks_done == tasks.tasks_total == 1


@pytest.mark.parametrize(
    ("pushes", "acknowledged", "heads"),
    [
        pytest.param([(3, 7, 6), (3, 7, 4)], 2, (4, 6), id="servers differ"),
        pytest.param([(3, 7, 6), (2, 6, 10)], 0, (0, 6), id="one is still at the task before"),
        pytest.param([(0, 0, 0), (0, 0, 0)], 0, (0, 0), id="nothing was pushed"),
        pytest.param([(3, 7, 6), None], 5, (5, 6), id="one cannot be asked"),
        pytest.param([None, None], 5, (5, 5), id="none can be asked"),
        pytest.param([(1, 7, 0), (0, 0, 0)], 0, (0, 10), id="shuffled, begun"),
        pytest.param([(2, 7, 10), (1, 7, 0)], 0, (0, 10), id="shuffled, ended on one"),
        pytest.param([(2, 7, 10), (2, 7, 10)], 0, (10, 10), id="ended on all"),
    ],
)
def test_applied_heads(pushes, acknowledged, heads):
    task = Task(7, pb.TRAIN, Span("a", 20, 30))
    applied = [push and AppliedPush(*push) for push in pushes]
    assert applied_heads(task, applied, acknowledged) == heads


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    epochs=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    max_steps=st.integers(1, 60),
)
def test_max_steps_takes_the_first_minibatches_of_the_same_order(
    lengths, epochs, batch_size, max_steps
):
    shape = {"records_per_task": 3 * batch_size, "epochs": epochs, "seed": 1}

    def minibatches(tasks):
        return [
            (task, span.source, record // batch_size)
            for task, (_, span) in enumerate(tasks)
            for record in range(0, len(span), batch_size)
        ], [(epoch, span.source, r) for epoch, span in tasks for r in range(span.start, span.end)]

    _, all_records = minibatches(drain(board(*lengths, **shape)))
    limited = board(*lengths, **shape, max_steps=max_steps, batch_size=batch_size)
    total = limited.ledger().total
    steps, records = minibatches(drain(limited))
    limited.check()
    assert records == all_records[: len(records)]
    assert len(records) == total == limited.ledger().trained_once
    assert limited.finished
    assert limited.tasks_done == limited.tasks_total
    assert len(steps) == max_steps or records == all_records


def test_a_stopped_board_trains_what_is_leased_and_gives_out_no_more():
    tasks = board(30, epochs=2)
    first, second = tasks.take(), tasks.take()
    tasks.stop()
    assert tasks.take() is None
    assert tasks.all_leased
    assert not tasks.finished
    tasks.complete(first.id)
    tasks.progress(second.id, 4)
    tasks.give_back(second.id, 4)
    tasks.check()
    assert tasks.finished
    assert tasks.ledger() == Ledger(60, trained_once=14, pending=46)
