"""Shares of deltas: after random histories a reader has what the servers have."""

from __future__ import annotations

import random

import numpy as np
import pytest

from shoal.deltas import chain
from shoal.master.calls import publish
from shoal.proto import faults
from shoal.proto.values.routing import SLOTS
from shoal.ps import publishing
from shoal.ps.forgetting import removals
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
        newest = chain.newest(world.live).number
        for each in (reader, Reader(world.live)):
            each.catch_up()
            if each.number < newest:
                # What it lacks was lost: the next base has it.
                for server in world.servers:
                    server._publishing.assigned()
                assert world.publishes()
                each.catch_up()
            assert each.number >= newest
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
@pytest.mark.parametrize("seed", range(12))
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
