"""Rows that came from another server, and the log that has them is damaged after a death."""

import pytest

from tests.ps.logged import lost
from tests.ps.test_moving_dense import Divided


@pytest.fixture
def moved(tmp_path):
    """Two servers; rows moved since the newest checkpoint, which has three of the five pushes."""
    world = Divided(2, tmp_path)
    for _ in range(3):
        world.push_all()
    world.save()
    world.push_all()
    world.push_all()
    world.divide(2)  # as many divide the dense variables: only rows move
    yield world
    world.close()


def damage(path, part):
    """Flip a bit in the middle of the first or the last `part` of a segment."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * part)] ^= 1
    path.write_bytes(bytes(data))


def rows(server):
    return {int(key) for ids, *_ in server.model.tables[0].export() for key in ids}


def segments(world):
    return world.logs[1]._sink._segments()


@pytest.mark.parametrize("begun", [False, True])
def test_rows_of_a_move_that_a_log_lacks_are_those_of_the_checkpoint(moved, begun):
    """Also where a checkpoint was begun: the segment after them says what comes before it."""
    if begun:
        moved.checkpoint(until="begun")
    damaged = segments(moved)[-1 - begun]
    damage(damaged, 0.99)
    moved.kill(1)
    moved.start(1)
    moved.meet(1)
    assert str(damaged) in moved.status(1).unprotected
    # What the givers' shard lacks is lost of these rows, whatever the server's own log has.
    assert [each.identity.sequence for each in moved.servers[1].had] == [3]
    assert lost(moved.servers[1]) == 2


def test_a_log_with_all_of_a_move_is_done_again_whole(moved):
    moved.checkpoint(until="begun")
    for _ in range(2):
        before = rows(moved.servers[1])
        moved.start_again(1)
        assert moved.status(1).unprotected == ""
        assert rows(moved.servers[1]) == before
        assert lost(moved.servers[1]) == 0
        moved.push_all()
    moved.check()


def test_damage_of_what_a_later_checkpoint_has_costs_nothing(moved):
    moved.checkpoint(until="complete")
    moved.push_all()
    damage(segments(moved)[-2], 0.99)
    moved.start_again(1)
    assert moved.status(1).unprotected == ""
    assert lost(moved.servers[1]) == 0
    moved.check()
