"""Shares of deltas: after random histories a reader has what the servers have."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import shutil

import numpy as np
import pytest

from shoal.deltas import chain, walking
from shoal.deltas.errors import DeltaError
from shoal.deltas.following import Follower
from shoal.master.calls import publish
from shoal.master.calls.publish import PublishError
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import SLOTS
from shoal.ps import publishing
from shoal.ps.forgetting import removals
from tests.deltas.published import write_model
from tests.deltas.reader import Reader
from tests.ps.logged import DiedError
from tests.ps.publishing_world import IDS, SPAN, PublishingWorld

TABLES = [
    {},
    {"expire_after": SPAN},
    {"max_rows": 150},
    {"expire_after": SPAN, "max_rows": 100, "admit_after": 2},
]

OF_SERVERS = ["publish-cut", "share-half-written", "share-written"]
"""Points of a server that writes a share."""

WORLD = []
"""The world of the history."""

WHAT = {
    "push": 40,
    "publish": 10,
    "publish_beside_pushes": 12,
    "publish_and_die": 4,
    "publish_and_lose": 3,
    "publish_and_end_master": 3,
    "publish_where_storage_fails": 2,
    "checkpoint": 6,
    "die": 3,
    "lose": 3,
    "move": 3,
    "set_rows": 1,
    "new_master": 2,
    "lose_delta": 2,
    "damage_delta": 2,
}


def history(folder, seed, servers=3):
    """A random history; at its end what was published is what the servers have."""
    draw = random.Random(seed)
    WORLD[:] = []
    world = PublishingWorld(folder, draw, servers, **TABLES[seed % len(TABLES)])
    WORLD.append(world)
    try:
        reader = Reader(world.live)
        for _ in range(draw.randint(20, 70)):
            step(world, draw.choices(list(WHAT), list(WHAT.values()))[0])
            if draw.random() < 0.3:
                reader.catch_up()
        assert world.publishes(tries=3)
        for each in (reader, Reader(world.live)):
            each.catch_up()
            if each.checksum != chain.newest(world.live).checksum:
                # What it lacks was lost, or it has a delta that was: the next base has all.
                for server in world.servers:
                    server._publishing.assigned()
                assert world.publishes()
                each.catch_up()
            assert each.checksum == chain.newest(world.live).checksum
            world.assert_follows(each)
    finally:
        world.close()


def step(world, what):
    draw = world.draw
    match what:
        case "publish":
            world.publishes()
        case "publish_beside_pushes":
            beside = draw.choice([world.push, world.push, world.set_rows])
            world.publishes_while(draw.choice(OF_SERVERS), beside)
        case "publish_and_die" | "publish_and_lose":
            world.publishes_while(draw.choice(OF_SERVERS), dies)
            world.die(replay=what == "publish_and_die")
        case "publish_and_end_master":
            world.publishes_while(draw.choice(["before-manifest", "delta-published"]), dies)
        case "publish_where_storage_fails":
            newest = chain.newest(world.live)
            number = 1 if newest is None else newest.number + 1
            in_place = world.folder / "live" / chain.delta_name(number)
            if not in_place.exists():
                in_place.write_text("a file, where a folder is to be")
                assert not world.publishes()
                in_place.unlink()
        case "lose":
            world.die(replay=False)
        case "lose_delta":
            for each in newest_folder(world):
                each.unlink()
        case "damage_delta":
            for each in newest_folder(world):
                if each.suffix == ".arrows" and (data := bytearray(each.read_bytes())):
                    data[draw.randrange(len(data))] ^= 1
                    each.write_bytes(data)
        case _:
            getattr(world, what)()


def dies():
    raise DiedError


def newest_folder(world):
    """The files of the newest delta; of an older one the next master would know nothing."""
    newest = chain.newest(world.live)
    if newest is None:
        return []
    return sorted((world.folder / "live" / chain.delta_name(newest.number)).iterdir())


@pytest.fixture(autouse=True)
def points(monkeypatch):
    monkeypatch.setattr(
        faults, "point", lambda name, first=None: [each.come(name) for each in WORLD]
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("HISTORIES", "8"))))
def test_a_reader_has_what_the_servers_have(tmp_path, seed):
    history(tmp_path, seed)


# Each rule by which a share tells more than what has changed, with a history that needs it.


def _died(world):
    """The rows that came after the checkpoint are gone, and others may have their steps."""
    world.checkpoint()
    world.push()
    assert world.publishes()
    world.die(0, replay=False)
    world.push()


def _set_rows(world):
    world.set_rows()


def _moved(world):
    """Steps are counted by each server, for sweeps too: what is new here was long ago there."""
    world.push()
    for server in world.servers[:2]:
        server.model.moments.reach(server.model.step + 40)
    owners = world.routing.owners
    world.move_to(np.where(owners < 2, 2, owners))


def _moved_twice(world):
    """Rows that change at another server come back with older steps than the last share has."""
    for _ in range(30):
        world.push()
    assert world.publishes()
    owners = world.routing.owners.copy()
    world.move_to(np.where(owners == 0, 1, owners))
    for _ in range(3):
        world.push()
    for index in range(1, 3):
        world.servers[index].model.moments.reach(world.servers[index].model.step + 40)
    world.move_to(owners)


def _removed_more(world):
    """More ids are removed than are remembered, and do not come again."""
    for _ in range(40):
        world.now += SPAN / 4
        world.push(among=IDS[:40])


def _remembered(self, first, last):
    nothing = np.empty(0, np.int64)
    found = [[a.ids for a in each if first <= a.step <= last] for each in self._lists]
    return [np.concatenate([nothing, *each]) for each in found]


RULES = {
    "an earlier life": (_died, (publishing.secrets, "token_hex", lambda _: "0" * 16)),
    "rows that were set": (_set_rows, (publishing.Publishing, "assigned", lambda _: None)),
    "slots that came": (_moved, (publish, "_came", lambda _: np.zeros(SLOTS, bool))),
    "slots that came back": (_moved_twice, (publish, "_one_move", lambda *_: True)),
    "removed ids that are forgotten": (_removed_more, (removals.Removals, "since", _remembered)),
}


@pytest.mark.parametrize("off", [False, True], ids=["on", "off"])
@pytest.mark.parametrize("rule", RULES)
def test_a_share_tells_what_changed_without_a_push(tmp_path, monkeypatch, rule, off):
    history, planted = RULES[rule]
    monkeypatch.setattr(publish, "_base_due", lambda *_: False)  # which would tell all
    if history is _removed_more:
        monkeypatch.setattr(removals, "MOST", 3)
        monkeypatch.setattr(removals, "RECENT", 3)
    if off:
        monkeypatch.setattr(*planted)
    world = PublishingWorld(tmp_path, random.Random(1), 3, expire_after=SPAN)
    try:
        for _ in range(10):
            world.push()
        assert world.publishes()
        history(world)
        assert world.publishes()
        reader = Reader(world.live)
        reader.catch_up()
        if not off:
            world.assert_follows(reader)
        else:
            with pytest.raises(AssertionError):
                world.assert_follows(reader)
    finally:
        world.close()


# ------------------------------------------------------------ the folder


@pytest.fixture
def world(tmp_path):
    made = PublishingWorld(tmp_path, random.Random(1), 2)
    yield made
    made.close()


def test_bases_come_as_deltas_grow_and_old_ones_go(world, monkeypatch):
    monkeypatch.setattr(publish, "KEEP_SECONDS", 0.0)
    bases = []
    for _ in range(24):
        world.push()
        assert world.publishes()
        newest = chain.newest(world.live).manifest
        if newest["base"]:
            bases.append(newest["number"])
            assert chain.read_hint(world.live)["base"] == newest["number"]
    assert len(bases) > 3
    # Bytes that were written: of each base no more than about those of the deltas before it.
    assert bases[1] > 2
    kept = chain.numbers(world.live)
    assert kept == list(range(bases[-2], 25))
    assert chain.read_hint(world.live)["oldest"] == kept[0]
    reader = Reader(world.live)
    reader.catch_up()
    world.assert_follows(reader)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_new_master_uses_no_number_of_a_lost_delta_again(world, left, monkeypatch):
    """The storage loses all but the first deltas, and the master dies."""
    monkeypatch.setattr(walking, "GAP_SECONDS", 0.0)
    world.push()
    assert world.publishes()
    late = Follower(world.publish)
    late.step()
    for _ in range(2):
        world.push()
        assert world.publishes()
    ahead, reader = Follower(world.publish), Reader(world.live)
    while ahead.number < 3:
        ahead.step()
    reader.catch_up()
    for number in range(left + 1, 4):
        shutil.rmtree(world.folder / "live" / chain.delta_name(number))
    world.new_master()
    world.push()
    assert world.publishes()  # the last one of the job
    made = chain.newest(world.live)
    assert (made.number, made.manifest["base"]) == (4, True)
    assert (made.manifest["previous"] == "") is (left == 0)
    assert chain.numbers(world.live) == [*range(1, left + 1), 4]
    for each in (ahead, late, Follower(world.publish)):
        for _ in range(10):
            with contextlib.suppress(DeltaError):
                each.step()
        assert each.checksum == made.checksum
        ids = IDS.copy()
        reader.catch_up()
        world.assert_follows(reader)
        found = each.lookup("items", ids)
        rows = reader.rows[0]
        for row, key in zip(found, ids.tolist(), strict=True):
            if key in rows:
                assert row.tobytes() == rows[key]
    world.push()
    assert world.publishes()
    assert ahead.step()
    assert (ahead.number, ahead.checksum) == (5, chain.newest(world.live).checksum)


def test_what_a_slow_follower_may_read_stays(world):
    for _ in range(12):
        world.push()
        assert world.publishes()
    assert chain.numbers(world.live) == list(range(1, 13))


def test_a_delta_without_a_push_is_small_and_has_no_dense_values(world):
    world.push()
    assert world.publishes()
    assert world.publishes()
    for share in chain.newest(world.live).manifest["shares"]:
        assert share["file"]["pages"] == []
        assert not share["dense"]


def test_another_job_that_publishes_into_the_folder_is_told(world):
    world.push()
    assert world.publishes()
    other = PublishingWorld(world.folder / "other", random.Random(2), 2)
    try:
        config = dataclasses.replace(world.config, token="another", job_name="other")
        write_model(world.live, other.spec, config.job_id)
        publisher = publish.DeltaPublisher(config, other.calls)
        with pytest.raises(PublishError, match="does not continue") as told:
            publisher.check()
        assert told.value.for_good
        forced = dataclasses.replace(config, overwrite=True)
        publisher = publish.DeltaPublisher(forced, world.calls)
        publisher.publish(world.places(), publish.Position(world.routing, 0))
        with pytest.raises(PublishError, match="another job publishes there, too") as told:
            world.publisher.publish(world.places(), publish.Position(world.routing, 0))
        assert told.value.for_good
    finally:
        other.close()


def test_servers_of_another_routing_table_write_no_share(world):
    world.push()
    other = dataclasses.replace(world.routing, epoch=world.routing.epoch + 1)
    with pytest.raises(PublishError, match="routing epoch 2 has not reached this server yet"):
        world.publisher.publish(world.places(), publish.Position(other, 0))
    assert chain.newest(world.live) is None


def test_a_job_without_a_folder_writes_no_share(world):
    request = pb.PublishRequest(number=1, nonce="0" * 16, routing_epoch=1, whole=bytes(SLOTS // 8))
    world.servers[0]._publishing._writer = None
    with pytest.raises(WireError, match="was given no folder"):
        world.call(0, methods.PUBLISH, request)
    for wrong in ({"number": 0}, {"nonce": "../x"}, {"whole": b""}):
        changed = pb.PublishRequest()
        changed.CopyFrom(request)
        changed.MergeFrom(pb.PublishRequest(**wrong))
        if "number" in wrong or "whole" in wrong:
            changed.ClearField(next(iter(wrong)))
        with pytest.raises(WireError):
            world.call(1, methods.PUBLISH, changed)
