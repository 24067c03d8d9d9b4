"""A follower has the job's newest rows, whatever becomes of single deltas."""

import random
import shutil
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.checkpoints.formats import manifests
from shoal.deltas import chain, walking
from shoal.deltas.following import Follower
from shoal.deltas.shares import Page
from tests.deltas.history import IDS, History
from tests.deltas.published import ALL, write_delta
from tests.deltas.test_reading import damage, folder_of
from tests.deltas.test_rows import found_in


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Looks again at once, and takes no wait for a sign of a gap."""
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.002)
    monkeypatch.setattr(walking, "GAP_SECONDS", 0.0)


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path / "live")
    (tmp_path / "live").mkdir(exist_ok=True)
    made.push()
    made.publish()
    return made


@pytest.fixture
def follower(history):
    with shoal.follow(history.root.location) as made:
        yield made


def hint(history, base):
    content = {"format": "shoal-live-1", "base": base, "oldest": 1}
    manifests.write(history.root, chain.HINT, content)


def more(history, count=1, **options):
    for _ in range(count):
        history.push()
        history.sweep()
        history.publish(**options)


def test_a_follower_has_each_delta(history, follower):
    assert follower.number == 1
    for number in range(2, 8):
        more(history, base=number == 5)
        assert follower.wait(number, 60)
        assert found_in(follower.rows) == history.rows
    for table, rows in zip("ab", history.rows, strict=True):
        looked = follower.lookup(table, np.arange(IDS))
        assert [bytes(each) for each in looked] == [
            rows.get(i, bytes(looked.shape[1] * 4)) for i in range(IDS)
        ]
    for table, rows in zip("ab", history.rows, strict=True):
        assert follower.rows.table(table).reads.tolist() == [IDS, IDS - len(rows)]
    assert follower.tables == ["a", "b"]
    assert follower.trouble == ""


def test_the_age_is_that_of_the_newest_delta(history, follower):
    more(history, created=time.time() - 5)
    assert follower.wait(2, 60)
    assert 5 <= follower.age < 300
    assert Follower(history.root.location).age == float("inf")


def test_it_stops_where_it_is_told_to(history):
    more(history, 2)
    more(history, 2, base=True)
    hint(history, 5)
    with shoal.follow(history.root.location, until=3) as follower:
        assert follower.wait(3, 60)
        assert not follower.wait(4, 0.05)
        assert follower.number == 3
    with pytest.raises(shoal.deltas.NotKeptError, match="no whole base up to delta 0"):
        shoal.follow(history.root.location, until=0)


def test_it_begins_at_the_hint(history):
    more(history, 2)
    more(history, base=True)
    hint(history, 4)
    with shoal.follow(history.root.location, tables=["b"]) as follower:
        assert follower.counts.deltas == follower.counts.bases == 1
        assert found_in(follower.rows) == history.rows[1:]
        with pytest.raises(shoal.UserError, match="there is no table 'a'; there are b"):
            follower.lookup("a", [1])
    with pytest.raises(shoal.UserError, match=r"there is no table 'bb' \(did you mean b\?\)"):
        shoal.follow(history.root.location, tables=["bb"])


def test_it_begins_at_the_base_before_a_damaged_one(history):
    before = [dict(each) for each in history.rows]
    more(history, base=True)
    hint(history, 2)
    damage(next(folder_of(history, 2).glob("server-0000*")))
    with pytest.raises(shoal.deltas.DamagedDeltaError, match="server-0000"):
        shoal.follow(history.root.location)
    with Follower(history.root.location) as follower:
        follower.start()
        assert follower.wait(1, 60)
        assert found_in(follower.rows) == before
        until_trouble(follower, "damaged")
        more(history, base=True)
        hint(history, 3)
        assert follower.wait(3, 60)
        assert found_in(follower.rows) == history.rows


def test_it_waits_for_a_folder_that_is_not_there_yet(tmp_path):
    with Follower(str(tmp_path / "live")) as follower:
        follower.start()
        with pytest.raises(shoal.UserError, match="nothing has been read yet"):
            follower.lookup("a", [1])
        history = History(tmp_path / "live")
        more(history)
        assert follower.wait(1, 60)
        assert found_in(follower.rows) == history.rows


def test_a_folder_without_deltas_is_told(tmp_path):
    with pytest.raises(shoal.deltas.NoDeltasError, match="there is no delta here"):
        shoal.follow(tmp_path)


def test_a_damaged_delta_is_passed_by_at_the_next_base(history, follower):
    history.push()
    history.publish()  # may be read before it is damaged
    assert follower.wait(2, 60)
    held = threading.Lock()
    with held, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain, "exists", lambda *a, was=chain.exists: was(*a) and held_off(held))
        more(history, 2)
        damage(next(folder_of(history, 3).glob("server-0001*")))
    until_trouble(follower, "damaged")
    assert follower.number == 2
    assert follower.lookup("a", [1]).shape == (1, 2)
    more(history, base=True)
    hint(history, 5)
    assert follower.wait(5, 60)
    assert found_in(follower.rows) == history.rows
    assert follower.counts.refused >= 1
    assert follower.trouble == ""


def held_off(lock):
    """False while somebody holds the lock: the reader waits for what is still being made."""
    return not lock.locked()


def until_trouble(follower, words):
    end = time.monotonic() + 60
    while words not in follower.trouble:
        assert time.monotonic() < end, follower.trouble
        time.sleep(0.01)


def test_a_lost_delta_is_passed_by_at_the_next_base(history, follower):
    history.push()
    folder = folder_of(history, 2)
    history.deltas.append(history.deltas[-1]._replace(checksum="1" * 32))  # nobody sees it
    more(history)
    assert not folder.exists()
    until_trouble(follower, "delta-000000002 is not kept any more, or was lost")
    assert follower.number == 1
    more(history, base=True)
    assert follower.wait(4, 60)
    assert found_in(follower.rows) == history.rows
    assert follower.counts.gaps


def test_a_delta_of_another_chain_is_not_applied(history, follower):
    history.deltas[-1] = history.deltas[-1]._replace(checksum="1" * 32)
    before = found_in(follower.rows)
    more(history)
    until_trouble(follower, "does not follow on the delta 1")
    assert found_in(follower.rows) == before
    more(history, base=True)
    hint(history, 3)
    assert follower.wait(3, 60)
    assert found_in(follower.rows) == history.rows


@pytest.mark.parametrize("deltas", [1, 6])
def test_a_folder_that_was_begun_anew_is_begun_anew(history, follower, tmp_path, deltas):
    more(history, 3)
    assert follower.wait(4, 60)
    old = follower.rows
    again = History(tmp_path / "again", seed=7)
    more(again, deltas)
    hint(again, 1)
    shutil.move(tmp_path / "live", tmp_path / "old")
    shutil.move(tmp_path / "again", tmp_path / "live")
    end = time.monotonic() + 60
    while follower.rows is old or follower.number != deltas:
        assert time.monotonic() < end, follower.trouble
        time.sleep(0.01)
    assert found_in(follower.rows) == again.rows


@pytest.mark.parametrize("same", [True, False])
def test_another_model_takes_the_place_of_the_old_one(history, follower, same):
    """Its tables stay where they are if they are the same, else they are made beside."""
    rows = follower.rows
    dims = history.dims if same else (5, 4)
    other = History(history.root.location, seed=3, job="f" * 16, dims=dims)
    other.deltas = history.deltas
    if not same:
        other.push()
        other.publish()
        until_trouble(follower, "delta 2 has another model, and is no base")
        assert follower.rows is rows
    other.push()
    other.publish(base=True)
    assert follower.wait(len(other.deltas), 60)
    assert (follower.rows is rows) == same
    assert follower.lookup("a", [1]).shape == (1, dims[0])
    assert found_in(follower.rows) == other.rows


def test_only_saved_models_predict(history, follower):
    with pytest.raises(shoal.UserError, match=r"cannot predict here, .*: it was written by a test"):
        follower.predict({"x": [1]})


FATES = st.lists(
    st.sampled_from(["publish", "publish", "publish", "sweep", "lose", "base", "lost", "damaged"]),
    max_size=25,
)


@given(FATES, st.integers(0, 10_000), st.booleans())
def test_lost_and_damaged_deltas_cost_time_only(tmp_path_factory, fates, seed, hinted):
    """After a base, a follower has the rows of the job, whatever was lost before."""
    history = History(tmp_path_factory.mktemp("live"), seed)
    draw = random.Random(seed)
    more(history)
    follower = Follower(history.root.location)
    follower.step()
    for fate in fates:
        if fate in ("sweep", "lose"):
            getattr(history, fate)()
            continue
        more(history, base=fate == "base")
        number = len(history.deltas)
        if fate == "base" and hinted:
            hint(history, number)
        if fate == "lost":
            shutil.rmtree(folder_of(history, number))
        if fate == "damaged":
            damage(draw.choice([*folder_of(history, number).iterdir()]))
        if draw.random() < 0.6:
            settled(follower)
    more(history, base=True)
    if hinted:
        hint(history, len(history.deltas))
    settled(follower)
    assert follower.number == len(history.deltas)
    assert found_in(follower.rows) == history.rows


def settled(follower):
    """Let a follower go as far as it can now, without its thread."""
    for _ in range(2 * walking.TRIES):
        try:
            while follower._walk.step():
                pass
        except shoal.Error:
            pass


def test_memory_does_not_double_while_bases_come(tmp_path):
    history = History(tmp_path, dims=(16, 2))
    follower = None
    n, sizes = 200_000, []
    values = np.ones((n, 16), np.float32)
    previous = ""
    for number in range(1, 5):
        pages = [
            Page("rows", 0, ids=each, values=values[: each.size] * number)
            for each in np.array_split(np.arange(n), 8)
        ]
        pages.append(Page("trainable", values=np.zeros(2, np.float32)))
        made = write_delta(history.root, number, previous, history.model, [(ALL, ALL, pages)])
        previous = made.checksum
        if follower is None:
            follower = Follower(str(tmp_path))
            follower.step()
        settled(follower)
        assert follower.number == number
        sizes.append(follower.rows.memory_bytes())
    assert len(follower.rows) == n
    assert max(sizes) <= 1.05 * sizes[0]
