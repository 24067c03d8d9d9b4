"""A folder of numbered versions has whole ones only, whoever is killed at whatever operation."""

import os
import signal
import sys
import threading
import traceback

import pytest

import shoal
from shoal.deltas import to_versions, walking
from shoal.deltas.to_versions import Versions, follow_into
from tests.deltas.history import History
from tests.deltas.test_following import hint, more
from tests.deltas.test_reading import damage, folder_of
from tests.deltas.versions import newest, whole

FILES = ("saved_model.pb", "variables/variables.data", "variables/variables.index")


def save(follower, folder):
    """In place of TensorFlow: each file has the number."""
    (folder / "variables").mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(str(follower.number))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(walking, "GAP_SECONDS", 0.0)
    monkeypatch.setattr(to_versions, "PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(to_versions, "RETRY_SECONDS", 0.002)


@pytest.fixture
def history(tmp_path):
    made = History(tmp_path / "live")
    more(made)
    return made


@pytest.fixture(params=["path", "url"])
def place(request, tmp_path):
    """A folder, and how it is named."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder, str(folder) if request.param == "path" else f"file://{folder}"


def written(history, to, number=None, **options):
    """Write the version of a delta, by default the newest one."""
    versions = Versions(to)
    try:
        until = number or len(history.deltas)
        follow_into(history.root.location, versions, save, 1e-3, until, **options)
    finally:
        versions.close()


def check(folder):
    """Each version that could be served is whole; gives their numbers."""
    for number in whole(folder):
        for name in FILES:
            assert (folder / str(number) / name).read_text() == str(number)
    return whole(folder)


def test_the_newest_two_versions_are_there(history, place):
    folder, to = place
    written(history, to)
    assert check(folder) == [1]
    for _ in range(3):
        more(history, 2)
        written(history, to)
    assert check(folder) == [5, 7]
    assert newest(folder).name == "7"
    assert {each.name for each in folder.iterdir()} == {"5", "7"}
    written(history, to)  # there is nothing new
    assert check(folder) == [5, 7]


def dies_at(operation, run):
    """Run something in a process that dies before its nth change of a file system.

    True if it did.
    """
    child = os.fork()
    if not child:
        left = [operation]

        def before(event, arguments):
            change = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
            if change or (event == "open" and arguments[1] is not None and "w" in arguments[1]):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(before)
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or not status
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_operation_leaves_whole_versions(history, place):
    folder, to = place
    written(history, to)
    more(history)
    written(history, to)
    operation, deaths = 0, 0
    while True:
        operation += 1
        more(history, base=True)
        hint(history, len(history.deltas))  # where it begins: it is not to read all of them
        before = check(folder)
        died = dies_at(operation, lambda: written(history, to))
        found = check(folder)
        assert len(history.deltas) in found or set(before) >= set(found)
        assert max(found) >= max(before)
        if not died:
            break
        deaths += 1
        if operation % 2:  # else the next one begins with what two deaths have left
            written(history, to)
            assert check(folder)[-1] == len(history.deltas)
    assert deaths > 8
    assert check(folder) == [len(history.deltas) - 1, len(history.deltas)]
    left = {each.name for each in folder.iterdir() if each.name[0] == "."}
    assert not left


def test_a_version_comes_no_more_often_than_asked(history, tmp_path):
    ends, saved = threading.Event(), []

    def once(follower, folder):
        save(follower, folder)
        saved.append(follower.number)
        more(history, 3)

    versions = Versions(str(tmp_path / "models"))
    follower = [history.root.location, versions]
    thread = threading.Thread(target=follow_into, args=[*follower, once, 1e9, None, ends])
    thread.start()
    seen = to_versions.Follower(history.root.location, 4)
    while not seen.ended:
        seen.step()
    ends.set()
    thread.join()
    assert saved == [1]
    versions.close()
    written(history, str(tmp_path / "models"), 4)  # the last one is written at once
    assert check(tmp_path / "models") == [1, 4]


def test_a_damaged_delta_is_passed_at_the_next_base(history, tmp_path, caplog):
    to = str(tmp_path / "models")
    written(history, to)
    more(history)
    damage(next(folder_of(history, 2).glob("*.arrows")))
    more(history, base=True)
    written(history, to)
    assert check(tmp_path / "models") == [1, 3]


def test_a_disk_that_fails_is_tried_again(history, tmp_path, caplog, monkeypatch):
    fails = [OSError(28, "No space left on device")] * 2

    def sometimes(follower, folder):
        save(follower, folder)
        if fails:
            raise fails.pop()

    monkeypatch.setattr(to_versions, "RETRY_SECONDS", 0.1)
    versions = Versions(str(tmp_path / "models"))
    follow_into(history.root.location, versions, sometimes, 1e-3, 1)
    versions.close()
    assert check(tmp_path / "models") == [1]
    assert [each.message for each in caplog.records if "No space" in each.message] == [
        "OSError: [Errno 28] No space left on device"
    ]


def test_each_wrong_folder_is_named(history, place, tmp_path):
    folder, to = place
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(shoal.UserError, match=r"has notes\.txt, and no version of a model: give"):
        Versions(to)
    (folder / "notes.txt").unlink()
    (folder / "3").mkdir()
    (folder / "3" / "saved_model.pb").write_text("of an export")
    with pytest.raises(shoal.UserError, match="/3 was not written by shoal follow: give"):
        Versions(to)
    assert (folder / "3" / "saved_model.pb").exists()
    (folder / "3" / "saved_model.pb").unlink()
    more(history, 2)
    written(history, to)
    (folder / "notes.txt").write_text("mine")  # beside versions it is no matter
    written(history, to)
    assert (folder / "notes.txt").exists()
    with pytest.raises(shoal.UserError, match=r"has version 3 already, and .* is at delta 2"):
        written(history, to, 2)

    other = History(tmp_path / "other", seed=1)
    more(other, 4)
    with pytest.raises(shoal.UserError, match="has versions of other deltas than those of"):
        written(other, to)
    label = folder / "3" / "assets.extra" / "shoal.json"
    label.write_text(label.read_text().replace('"delta": 3', '"delta": 2'))
    with pytest.raises(shoal.UserError, match=r"shoal\.json: .*: remove "):
        Versions(to)


def test_one_command_writes_into_a_folder(tmp_path):
    first = Versions(str(tmp_path / "models"))
    with pytest.raises(shoal.UserError, match=r"another shoal follow writes into .*/models now"):
        Versions(str(tmp_path / "models"))
    first.close()
    Versions(str(tmp_path / "models")).close()
