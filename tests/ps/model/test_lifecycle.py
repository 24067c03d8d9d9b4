"""Rows that expire and tables with a cap: what is there after each push, and after each restore."""

import collections
import json
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.checkpoints import contents
from shoal.checkpoints.folders import Checkpoint
from shoal.files.storage import open_storage
from shoal.native import ids as native_ids
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from shoal.ps.forgetting.caps import share_of
from shoal.ps.forgetting.clock import CONFIRMING, RESOLUTION, SECOND
from shoal.ps.forgetting.planning import EVERY
from shoal.ps.forgetting.sweeps import PART_IDS
from shoal.ps.model.gradients import Gradients, Update
from shoal.ps.model.tables import ServerModel
from tests.examples import examples
from tests.ps.groups import Group, restored
from tests.waiting import until

pytestmark = pytest.mark.slow

SPAN = 64
"""Seconds: an entry a second."""


def spec(**table):
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name="items",
                dim=1,
                initializer=InitializerSpec("zeros").to_json(),
                optimizer=OptimizerSpec("sgd").to_json(),
                **table,
            )
        ],
        dense_optimizer=OptimizerSpec("sgd").to_json(),
    )


class Server:
    """One server's model, and what is pushed to it. logged: the parts of sweeps."""

    def __init__(self, model=None, **table):
        self.model = model or ServerModel(spec(**table), 0, 1, 16384)
        if model is None:
            self.model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
        self.logged = []

    @property
    def table(self):
        return self.model.tables[0]

    def push(self, ids, seconds=None):
        ids = np.asarray(ids, np.int64)
        time = None if seconds is None else int(seconds * SECOND)
        ones = np.full((ids.size, 1), -1.0, np.float32)
        push = Gradients({0: (ids, ones)}, None, 1.0, 0, 0.0, event_time=time)
        ticket = self.model.ticket(push)
        self.model.apply(push, ticket)
        self.model.leave(lambda step, frame: self.logged.append((step, frame)))
        return ticket.step

    def rows(self):
        return {int(key) for piece in self.table.export() for key in piece[0]}

    def counted(self):
        return {int(key) for piece in self.table.export_counting() for key in piece[0]}


def pass_time(server, begin, end):
    """Pushes between which so little time passes that none has to be confirmed."""
    for second in range(begin, end + 1, 8):
        server.push([-1], second)


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.lists(st.integers(0, 30), max_size=6, unique=True)),
        max_size=120,
    ),
    admit_after=st.integers(1, 3),
)
def test_rows_are_those_pushed_within_the_span_to_a_64th(steps, admit_after):
    """After each push: what is younger than the span is there, what is older than 65/64 is not."""
    server = Server(expire_after=SPAN, admit_after=admit_after)
    now, last, uses = 0.0, {}, collections.Counter()
    for rise, ids in steps:
        now += rise / 2
        for key in ids:
            # What was gone begins anew, at a count of 1.
            if key in last and key not in server.rows() | server.counted():
                uses[key] = 0
            uses[key] += 1
            last[key] = now
        server.push(ids, now)
        rows, counted = server.rows(), server.counted()
        assert not rows & counted
        for key, time in last.items():
            if time > now - SPAN:
                assert (key in rows) == (uses[key] >= admit_after)
                assert key in rows | counted
            elif time < now - SPAN * (1 + 1 / RESOLUTION) - 1 / RESOLUTION:
                assert key not in rows | counted


def test_an_id_that_comes_again_begins_anew():
    server = Server(expire_after=SPAN)
    for second in range(3):
        server.push([1, 2], second)
    for second in range(3, 90):
        server.push([2], second)
    assert server.rows() == {2}
    server.push([1], 90)
    values, _, step, uses = server.table.find(1)
    # The push, and behind it a sweep, which finds nothing.
    assert (values.tolist(), step, uses) == ([1.0], server.model.step - 1, 1)
    assert server.model.lifecycle.removed[0] == pb.RemovedIds(expired=1)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("one batch of the future", [10**6, *range(64, 70)]),
        ("a back-fill", [5] * 300),
        ("a stream that stops", []),
        ("a stream that goes on", [63.5] * 50),
    ],
)
def test_nothing_goes_by_what_says_nothing_of_the_time(name, after):
    server = Server(expire_after=SPAN * 4)
    for second in range(64):
        server.push([second], second)
    for second in after:
        server.push([1000], second)
    assert server.rows() >= set(range(64)), name
    assert server.model.lifecycle.removed[0] == pb.RemovedIds()


def test_after_a_pause_of_the_stream_rows_go_once_it_is_confirmed():
    server = Server(expire_after=SPAN)
    for second in range(64):
        server.push([second], second)
    for _ in range(CONFIRMING - 1):
        server.push([1000], 500)
        assert server.rows() == {*range(64), 1000}
    assert "99 pushes is" in server.model.lifecycle.clock.doubt
    server.push([1001], 501)
    # Those of the pushes that waited are of the new time.
    assert server.rows() == {1000, 1001}


def test_a_table_has_no_more_rows_than_its_cap_after_any_push():
    server = Server(max_rows=500)
    random_ids = np.random.default_rng(0)
    for _ in range(200):
        server.push(np.unique(random_ids.zipf(1.2, 300) % 10**6))
        assert len(server.table) <= 500
    removed = server.model.lifecycle.removed[0]
    assert removed.evicted > 1000
    assert removed.expired == removed.counts == 0
    # Each time down to nine tenths, not row by row.
    assert len(server.logged) < 200


def test_a_large_table_that_grows_slowly_is_swept_before_its_cap(in_slices):
    """A slice behind each eighth push, from where a 32nd is left; then parts until a tenth is."""
    server, cap = Server(max_rows=32_000), 32_000
    server.push(np.arange(31_000))
    assert not server.logged
    sizes, looks, parts = [], [], []
    for number in range(1_500):
        before = in_slices.copy()
        server.push([-number - 1, 30_999])
        sizes.append(len(server.table))
        assert in_slices.total() <= before.total() + 1
        looks += [number] * (in_slices["look"] - before["look"])
        parts += [number] * (in_slices["remove"] - before["remove"])
    removed = server.model.lifecycle.removed[0]
    assert looks == list(range(0, 2 * 32 * EVERY, EVERY))
    assert parts[0] == 2 * 32 * EVERY
    assert len(parts) == len(server.logged) - 1
    # One behind each push until the cap is not near any more, and then behind each eighth.
    near = next(number for number in range(parts[0], 1_500) if sizes[number] <= 31_000)
    assert parts[: near - parts[0] + 1] == list(range(parts[0], near + 1))
    assert set(np.diff([each for each in parts if each >= near])) == {EVERY}
    assert max(sizes) == sizes[parts[0] - 1] == 31_000 + parts[0]
    # All are of one step, of whose ids whole 16ths go: no fewer than wanted.
    assert 1 + 31_000 - cap * 9 // 10 <= removed.evicted < 1 + 31_000 * 3 // 16
    assert 30_999 in server.rows()


@pytest.mark.parametrize("new", [30, 200, 5_000])
def test_a_large_table_that_grows_fast_has_its_slices_sooner_and_keeps_its_cap(in_slices, new):
    server, cap = Server(max_rows=32_000), 32_000
    draw = np.random.default_rng(new)
    first = 0
    while first < 100_000:
        before = in_slices.copy()
        server.push(np.append(np.arange(first, first + new), draw.integers(-100, 0)))
        first += new
        assert len(server.table) <= cap
        looked = in_slices["look"] - before["look"]
        if new <= 200:
            # Of the 64 slices, as many as of the last 1,000 rows, or those left, have come.
            assert looked <= 2 + 64 * (new + 1) // (1_000 - 2 * new)
            assert in_slices["remove"] - before["remove"] <= 2 + new // 20
    removed = server.model.lifecycle.removed[0]
    assert removed.evicted > 60_000
    assert len(server.table) > cap * 8 // 10
    # Of 5,000 that are of one step, no fewer go than have to, but may be a 16th more.
    newest = cap * (8 if new <= 200 else 7) // 10
    assert server.rows() >= set(range(first - newest, first))


def go_on(restored, server):
    """From the rows and the state of a server."""
    for ids, values, slots, steps, uses in server.table.export():
        restored.table.assign(ids, values, versions=steps, use_counts=uses, slots=slots)
    restored.model.moments.reach(server.model.step)
    saved = json.loads(json.dumps(server.model.lifecycle.state()))
    restored.model.lifecycle.restore(saved, server.model.step)


@pytest.mark.parametrize("left", [31_001, 15_000], ids=["all its rows", "half of them"])
def test_slots_that_leave_while_a_plan_is_made_take_their_part_of_the_cap(in_slices, left):
    """After each push, also of a server that goes on from its state."""
    server, restored = Server(max_rows=32_000), Server(max_rows=32_000)
    server.push(np.arange(31_001))
    lifecycle = server.model.lifecycle
    assert lifecycle.state()["planning"] is not None
    lifecycle.suspend(True)
    lifecycle.own(8_192)
    server.table.remove(np.arange(left, 31_001))
    lifecycle.suspend(False)
    server.model.settle(lambda step, frame: server.logged.append((step, frame)))
    restored.model.lifecycle.own(8_192)
    go_on(restored, server)
    for first in range(10**5, 10**5 + 40_000, 50):
        before = in_slices.copy()
        for each in (server, restored):
            each.push(np.arange(first, first + 50))
        assert len(server.table) <= 16_000
        assert server.rows() == restored.rows()
        if left < 16_000:
            # The room that is left is that of the smaller cap.
            assert in_slices["look"] - before["look"] <= 2 * (2 + 64 * 51 // 450)
    assert server.model.lifecycle.removed[0].evicted > 20_000


@pytest.mark.parametrize("pushes", [1, 2 * 32 * EVERY + 2], ids=["planned", "carried out"])
@pytest.mark.parametrize(("most", "goes"), [(64_000, 0), (32_000, 3_000), (16_000, 14_000)])
def test_a_sweep_is_not_gone_on_with_if_the_cap_is_another_one(in_slices, pushes, most, goes):
    server, resumed = Server(max_rows=32_000), Server(max_rows=most)
    server.push(np.arange(31_001))
    for _ in range(pushes):
        server.push([0])
    state = server.model.lifecycle.state()
    assert [state["planning"] is None, state["plan"] is None] == [pushes > 1, pushes == 1]
    gone = server.model.lifecycle.removed[0].evicted
    go_on(resumed, server)
    resumed.model.settle(lambda step, frame: None)
    for _ in range(1_100):
        resumed.push([0])
        if most == 32_000:
            server.push([0])
    evicted = resumed.model.lifecycle.removed[0].evicted
    if goes:
        assert evicted >= goes
        assert len(resumed.table) <= most
    else:
        assert evicted == gone
    if most == 32_000:
        assert resumed.rows() == server.rows()


def test_counted_ids_have_a_cap_of_four_times_as_many():
    server = Server(max_rows=100, admit_after=9)
    for first in range(0, 3_000, 30):
        server.push(np.arange(first, first + 30))
        assert server.table.counting <= 400
    assert len(server.table) == 0
    left = server.counted()
    assert left >= set(range(2_700, 3_000))
    removed = server.model.lifecycle.removed[0]
    assert removed == pb.RemovedIds(counts=3_000 - len(left))


def test_used_rows_outlive_others_but_not_for_good():
    server = Server(max_rows=1_000)
    for _ in range(64):
        server.push(np.arange(100))
    new = 1_000
    evicted = None
    for step in range(400):
        server.push(np.arange(new, new + 50))
        new += 50
        if step == 60:
            assert server.rows() >= set(range(100))
        evicted = evicted or (step if not server.rows() & set(range(100)) else None)
    # A row of 64 uses may be seven times as old as one of a single use.
    assert 90 < evicted < 200


def test_a_sweep_of_many_rows_takes_a_part_between_two_pushes():
    count = 16 * 30_000
    server = Server(expire_after=SPAN)
    for first in range(0, count, 30_000):
        server.push(np.arange(first, first + 30_000), first / count)
    pass_time(server, 1, SPAN)
    sizes = []
    for number in range(200):
        before = len(server.table)
        server.push([-1], SPAN + 2.0 + number / 1000)
        sizes.append(before - len(server.table))
    parts = [size for size in sizes if size > 0]
    assert sum(parts) == 30_000
    assert len(parts) == -(-30_000 // 3_500)
    assert max(parts) <= PART_IDS
    # Pushes of others wait for few parts; and for few slices of the plan, of which there are two of
    # each of four parts of the table.
    assert sizes[2 * 4 * EVERY :: EVERY][: len(parts)] == parts


def test_memory_goes_back_after_much_was_removed():
    server = Server(expire_after=SPAN)
    table = server.table
    for first in range(0, 400_000, 40_000):
        server.push(np.arange(first, first + 40_000), first / 400_000)
    full = table.memory_bytes()
    pass_time(server, 1, SPAN)
    number = 0
    while len(table) > 100_000:
        number += 1
        server.push([-1], SPAN + 2 + number / 100)
    until("the memory", lambda: table.free_rows <= 0.13 * (table.free_rows + len(table)) or None)
    assert table.memory_bytes() < 0.75 * full


class Fleet(Group):
    """The servers of a job with one table that lives."""

    def __init__(self, servers, **table):
        self.table_spec = table
        super().__init__(servers)
        slots = self.routing.slots
        self.models = [ServerModel(spec(**table), i, servers, slots(i)) for i in range(servers)]
        for model in self.models:
            model.dense.initialize(np.zeros(0, np.float32), np.zeros(0, np.float32))
        self.parts = [[] for _ in range(servers)]

    def push(self, sequence, ids, seconds=None, skip=()):
        ids = np.asarray(ids, np.int64)
        owner = self.routing.owners[native_ids.slot_of(ids)]
        for index, model in enumerate(self.models):
            own = ids[owner == index]
            if index in skip and not own.size:
                continue  # a server that owns nothing of a batch need not hear of it
            server = Server(model)
            server.push(own, seconds)
            self.parts[index] += server.logged

    def rows(self):
        return set().union(*(Server(model).rows() for model in self.models))

    def again(self, root, number, servers):
        """Restored onto so many servers."""
        group = restored(root, number, servers)
        fleet = Fleet(servers, **self.table_spec)
        fleet.models = group.models
        return fleet


def all_of(fleet):
    """Rows with their headers, counted ids, and the state of clocks and sweeps."""
    found = []
    for model in fleet.models:
        table = model.tables[0]
        rows = sorted(
            (int(key), value.tolist(), int(step), int(uses))
            for ids, values, _, steps, counts in table.export()
            for key, value, step, uses in zip(ids, values, steps, counts, strict=True)
        )
        counted = sorted(
            each
            for piece in table.export_counting()
            for each in zip(*map(np.ndarray.tolist, piece), strict=True)
        )
        found.append((rows, counted, model.lifecycle.state(), model.step))
    return found


OPTIONS = {
    "expiry": {"expire_after": SPAN},
    "cap": {"max_rows": 200},
    "both": {"expire_after": SPAN, "max_rows": 150, "admit_after": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(2))
def test_servers_that_are_restored_do_the_same_sweeps(tmp_path, options, seed):
    draw = random.Random(seed)
    plain, saved = Fleet(2, **options), Fleet(2, **options)
    now = 0.0
    for sequence in range(1, 120):
        now += draw.choice([0, 0.3, 2, 9, 15])
        ids = sorted({int(draw.paretovariate(0.4)) % 4000 for _ in range(40)})
        for fleet in (plain, saved):
            fleet.push(sequence, ids, now)
        if sequence % 5 == 0:
            assert all_of(saved) == all_of(plain)
        if draw.random() < 0.2:
            saved.save(tmp_path, sequence)
            saved = saved.again(tmp_path, sequence, 2)
    removed = [model.lifecycle.removed[0] for model in plain.models]
    assert sum(each.expired + each.evicted for each in removed) > 60


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_another_number_of_servers_removes_nothing_too_early_and_not_much_late(
    tmp_path, servers, seed
):
    """Also where the servers had not been called by the same pushes."""
    draw = random.Random(seed)
    fleet = Fleet(2, expire_after=SPAN)
    now, last = 0.0, {}
    for sequence in range(1, 260):
        now += draw.choice([0, 0.1, 0.4, 1])
        ids = draw.sample(range(400), draw.choice([1, 2, 5]))
        last.update(dict.fromkeys(ids, now))
        fleet.push(sequence, ids, now, skip=(0, 1))
        if sequence == 130:
            fleet.save(tmp_path, 1)
            before = sum(model.lifecycle.removed[0].expired for model in fleet.models)
            fleet = fleet.again(tmp_path, 1, servers)
            after = sum(model.lifecycle.removed[0].expired for model in fleet.models)
            assert before == after
    # Every server hears of the time.
    for more in (0.1, 2.0, 4.0):
        fleet.push(1000, range(10_000, 10_200), now + more)
    now += 4.0
    rows = fleet.rows()
    for key, time in last.items():
        if time > now - SPAN:
            assert key in rows
        if time < now - SPAN - 6:
            assert key not in rows
    assert {key for key, time in last.items() if time < now - SPAN - 6}


def test_a_checkpoint_has_the_rows_removed_since_the_one_before(tmp_path):
    fleet = Fleet(2, expire_after=SPAN, max_rows=10_000)
    fleet.push(1, range(1000), 1)
    fleet.save(tmp_path, 1)
    for number in range(200):
        fleet.push(2 + number, [5000 + number], 2 + number / 2)
    fleet.save(tmp_path, 2)
    for model in fleet.models:
        model.has_saved(model.step)
    for number in range(200, 400):
        fleet.push(2 + number, [5000 + number], 2 + number / 2)
    fleet.save(tmp_path, 3)
    found = []
    for number in (1, 2, 3):
        checkpoint = Checkpoint(open_storage(str(tmp_path)), number)
        contents.verify(checkpoint)
        pages = [
            contents.page_rows(checkpoint, page)
            for server in range(2)
            for page in contents.removed_pages(checkpoint, server, 0)
        ]
        found.append([page for page in pages if page is not None])
        assert sum(map(sum, (shard["removed"] for shard in checkpoint.shards))) == sum(
            len(page["id"]) for page in found[-1]
        )
    first, second, third = ({int(i) for page in each for i in page["id"]} for each in found)
    assert not first
    assert second >= set(range(1000))
    assert second & third == set()
    assert second | third == set(range(1000)) | {
        5000 + number for number in range(400) if 5000 + number not in fleet.rows()
    }
    for page in found[1]:
        assert not page["eviction"].any()
        assert (page["event_time"] >= (1 + SPAN) * SECOND).all()
        assert (np.diff(page["step"]) >= 0).all()


def test_a_restored_server_has_told_what_its_checkpoint_has(tmp_path):
    fleet = Fleet(1, expire_after=SPAN)
    fleet.push(1, [1, 2, 3], 0)
    for second in range(0, 80, 8):
        fleet.push(second, [4], second)
    assert fleet.models[0].lifecycle.removals.pending(0)
    fleet.save(tmp_path, 1)
    again = fleet.again(tmp_path, 1, 1)
    assert again.models[0].lifecycle.removals.pending(0) == []
    assert again.models[0].lifecycle.removed[0].expired == 3


def test_shares_of_a_cap_are_the_whole():
    for servers in (1, 3, 7):
        routing = Routing.even(servers)
        shares = [share_of(1000, routing.slots(server)) for server in range(servers)]
        assert 1000 - servers < sum(shares) <= 1000
    assert share_of(1000, 0) == 1


def test_pushes_from_many_threads_keep_the_cap_and_each_count():
    """A sweep is between two pushes, whoever makes them."""
    server = Server(max_rows=300, expire_after=SPAN)
    errors, pushed = [], collections.Counter()
    barrier = threading.Barrier(4)

    def work(worker):
        draw = np.random.default_rng(worker)
        barrier.wait()
        try:
            for number in range(150):
                server.push(np.unique(draw.integers(0, 2_000, 40)), number / 4)
                pushed[worker] += 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert server.model.version == 600
    assert len(server.table) <= 300
    # Each part had a step of its own, and so had each push.
    steps = [step for step, _ in server.logged]
    assert len(set(steps)) == len(steps)
    assert server.model.step == 600 + len(steps)
    removed = server.model.lifecycle.removed[0]
    assert removed.evicted + removed.expired > 100


def test_a_cap_of_a_cluster_is_cut_by_servers():
    models = [ServerModel(spec(max_rows=1001), i, 2, 8192) for i in range(2)]
    assert [model.lifecycle._caps.most(0)[0] for model in models] == [500, 500]
    models[0].lifecycle.own(4096)
    assert models[0].lifecycle._caps.most(0)[0] == 250
    assert ServerModel(spec(), 0, 1, 16384).lifecycle is None
    assert Routing.even(2).servers == 2


def test_a_push_without_memory_for_its_ticket_holds_up_no_sweep(monkeypatch):
    server = Server(max_rows=100)
    server.push([1])

    class Failing:
        def ticket(self, *_):
            raise MemoryError("no memory for the last push of a worker")

    with monkeypatch.context() as patched:
        patched.setattr(server.model.lifecycle, "_moments", Failing())
        with pytest.raises(MemoryError):
            server.push([2], seconds=1)  # the first time there is, which is not plain
    server.push(range(200))
    assert len(server.table) <= 100
    assert not server.model.lifecycle.between.closed


def test_an_update_that_is_done_again_removes_nothing_by_itself():
    """The cap may have been larger then, before slots moved: what was removed is in the log."""
    server = Server(max_rows=100)
    server.model.lifecycle.own(16384 // 50)
    ids = np.arange(10, dtype=np.int64)
    update = Update({0: (ids, np.ones((10, 1), np.float32))}, None, 1.0, [(0, 0.0)])
    server.model.apply_update(update, again=True)
    assert len(server.table) == 10
    parts = []
    server.model.settle(lambda step, frame: parts.append(step))
    assert len(server.table) <= 2
    assert parts == [2]
