"""Sweeps with --durability=log: a server that died anywhere has removed what it would have."""

import random

import numpy as np
import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.ps.forgetting import caps, planning, sweeps
from shoal.ps.forgetting.clock import SECOND
from tests.ps.logged import POINTS, SPEC, content
from tests.ps.update_log.test_log_of_updates import Master, protected

SPAN = 64

OPTIONS = {
    "expiry": {"expire_after": SPAN},
    "cap": {"max_rows": 40},
    "both": {"expire_after": SPAN, "max_rows": 30, "admit_after": 2},
}


@pytest.fixture
def world(world):
    def make(count, synchronous=False, **table):
        spec = pb.ModelSpec()
        spec.CopyFrom(SPEC)
        spec.tables[0].MergeFrom(pb.TableSpec(**table))
        return world(count, spec=spec, synchronous=synchronous)

    return make


def removals(server):
    """What it has removed that no complete checkpoint has."""
    return [
        (each.step, each.event_time, each.eviction, each.ids.tolist())
        for each in server.model.lifecycle.removals.pending(0)
    ]


def sweeps_of(server):
    """The state of clock and sweeps, but for how far a plan is that is being made."""
    state = server.model.lifecycle.state() | {"owing": False}
    if state["planning"] is not None:
        state["planning"] = {**state["planning"], "whole": None, "counts": None}
    return state


@pytest.fixture
def in_slices(monkeypatch):
    """Tables of more than a few rows are large ones."""
    monkeypatch.setattr(planning, "SLICE", 100)
    monkeypatch.setattr(planning, "EVERY", 3)
    monkeypatch.setattr(caps, "NEAR", 12)
    monkeypatch.setattr(sweeps, "PART_IDS", 8)
    monkeypatch.setattr(sweeps, "PART_FILL", 4)


def assert_same(job):
    """Rows, counts, clocks, sweeps and removed ids are bit for bit those of the twin."""
    for server, twin in zip(job.servers, job.twin, strict=True):
        assert content(server.model) == content(twin.model)
        ours, theirs = (sweeps_of(each) for each in (server, twin))
        assert ours == theirs
        pending = removals(server)
        first = pending[0][0] if pending else server.model.step + 1
        # The twin takes no checkpoints, and remembers all.
        assert pending == [each for each in removals(twin) if each[0] >= first]


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_server_that_died_anywhere_has_swept_as_if_it_had_not(world, servers, options):
    draw = random.Random(servers)
    job = world(servers, **options)
    now = 0.0
    for number in range(90):
        now += draw.choice([0, 0.4, 3, 10])
        job.event_time = int(now * SECOND)
        chance = draw.random()
        if chance < 0.12:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told", "told"]))
        elif chance < 0.45 and number > 10:
            job.look_after()
            if any(job.status(index).wants_checkpoint for index in range(servers)):
                job.checkpoint()
            job.faults.armed = draw.choice([*POINTS, *["sweep-half-done", "sweep-logged"] * 3])
            if job.faults.armed == "log-replaying":
                victim = draw.randrange(servers)
                job.kill(victim)
                job.start(victim)
                job.meet(victim)
        ids = np.unique([int(draw.paretovariate(0.3)) % 5000 * 9973 for _ in range(12)])
        job.push(draw.randrange(3), ids, draw)
        assert_same(job)
    assert sum(job.incarnations) > 5
    removed = [server.model.lifecycle.removed[0] for server in job.servers]
    assert sum(each.expired + each.evicted for each in removed) > 30


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    "options",
    [
        {"expire_after": SPAN},
        {"expire_after": SPAN, "admit_after": 2},
        {"expire_after": SPAN, "max_rows": 200},
        {"max_rows": 250},
        {"max_rows": 110, "admit_after": 2},
    ],
    ids=str,
)
@pytest.mark.usefixtures("in_slices")
def test_a_plan_that_is_made_in_slices_is_made_by_a_server_that_died_anywhere(
    world, options, synchronous
):
    """Before its beginning is logged, in the middle of it, of a part; with checkpoints anywhere."""
    draw = random.Random(7)
    job = world(1, synchronous=synchronous, **options)
    master = Master(job)
    now, plans = 0.0, 0
    for number in range(300):
        now += draw.choice([0, 0.2, 0.4, 0.4, 3])
        job.event_time = int(now * SECOND)
        chance = draw.random()
        if chance < 0.06:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told", "told"]))
        elif chance < 0.2 and number > 10:
            protected(job)
            job.faults.armed = draw.choice(["sweep-half-done", "sweep-logged", "push-logged"])
        elif chance < 0.25:
            job.kill(0)
            job.start(0)
            job.meet(0)
        ids = np.unique([int(draw.paretovariate(0.2)) % 5000 * 9973 for _ in range(6)])
        if synchronous:
            master.push(draw.randrange(3), ids, draw)
            master.update(1)
        else:
            job.push(draw.randrange(3), ids, draw)
        plans += job.servers[0].model.lifecycle.state()["planning"] is not None
        assert_same(job)
    assert sum(job.incarnations) > 5
    assert plans > 10
    removed = job.servers[0].model.lifecycle.removed[0]
    assert removed.expired + removed.evicted + removed.counts > 50
    assert removed.evicted > 20 or "max_rows" not in options


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_sweep_that_finds_nothing_is_planned_as_often_as_by_a_server_that_lives(world, seed):
    """Few ids come once, so most plans are empty, and what they are about is nothing."""
    draw = random.Random(seed)
    job = world(1, expire_after=SPAN)
    now = 0.0
    for number in range(140):
        now += draw.choice([0.3, 0.4, 0.6, 2])
        job.event_time = int(now * SECOND)
        ids = [1, 2, 3] + [100 + number] * (draw.random() < 0.12)
        job.push(0, np.array(ids), draw)
        if draw.random() < 0.04:
            job.checkpoint()
        if draw.random() < 0.3:
            job.kill(0)
            job.start(0)
            job.meet(0)
        assert_same(job)
    assert job.servers[0].model.lifecycle.removed[0].expired


def test_a_part_that_was_not_logged_is_done_again_before_the_next_push(world):
    """The server dies in the middle of it: nobody sees what is between."""
    job = world(1, max_rows=40)
    draw = random.Random(0)
    for first in range(0, 40, 8):
        job.push(0, np.arange(first, first + 8), draw)
    job.faults.armed = "sweep-half-done"
    job.push(0, np.arange(100, 108), draw)
    assert job.incarnations == [1]
    assert_same(job)
    assert len(job.servers[0].model.tables[0]) == 36


def test_a_checkpoint_has_a_sweep_that_is_under_way(world):
    """Parts are between pushes; a restored server does the rest of them, after the same pushes."""
    job = world(1, expire_after=SPAN)
    draw = random.Random(1)
    for first in range(0, 96_000, 8_000):
        job.event_time = int(first / 96_000 * SECOND)
        job.push(0, np.arange(first, first + 8_000), draw)
    for second in range(2, 82, 8):
        job.event_time = second * SECOND
        job.push(0, np.array([-1]), draw)
        if job.servers[0].model.lifecycle.state()["plan"] is not None:
            break
    job.checkpoint()
    assert job.servers[0].model.lifecycle.state()["part"] == 1
    job.kill(0)
    job.start(0)
    job.meet(0)
    assert_same(job)
    for _ in range(2 * planning.EVERY):
        job.push(0, np.array([-1, 5]), draw)
        assert_same(job)
    assert job.servers[0].model.lifecycle.state()["plan"] is None
    assert job.servers[0].model.lifecycle.removed[0].expired > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_with_updates_a_server_that_died_anywhere_has_swept_as_if_it_had_not(world, options):
    draw = random.Random(3)
    job = world(1, synchronous=True, **options)
    master, now, points = Master(job), 0.0, ["sweep-half-done", "sweep-logged", "update-logged"]
    for number in range(60):
        now += draw.choice([0, 0.4, 3, 10])
        job.event_time = int(now * SECOND)
        chance = draw.random()
        if chance < 0.15:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told"]))
        elif chance < 0.5 and number > 10:
            protected(job)
            job.faults.armed = draw.choice(points)
        ids = np.unique([int(draw.paretovariate(0.3)) % 5000 * 9973 for _ in range(12)])
        master.push(draw.randrange(3), ids, draw)
        master.update(1)
        master.same()
        assert_same(job)
    assert sum(job.incarnations) > 3
    removed = job.servers[0].model.lifecycle.removed[0]
    assert removed.expired + removed.evicted > 15
