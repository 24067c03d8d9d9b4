"""Storage that fails costs a server time, and no checkpoint; damage and missing files do."""

import errno
import threading

import numpy as np
import pytest

from shoal.errors import StorageError
from shoal.files.patient_storage import PatientStorage
from shoal.files.storage import LocalStorage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.routing import Routing
from shoal.ps.model.pending import PendingGradients
from shoal.ps.model.pushes import PushRegister
from shoal.ps.saved.progress import Progress, StoppedError
from shoal.ps.saved.recovery import Sources, newest_shard
from tests.ps.groups import Group, asked_once, spec
from tests.ps.restoring_server import PATIENCE


class Flaky(LocalStorage):
    """Its calls fail as `fails` says, by their number from 1 on, and the name of the file."""

    def __init__(self, location, fails):
        super().__init__(location)
        self.fails = fails
        self.calls = 0
        self.lock = threading.Lock()

    def child(self, name):
        return Flaky(self._folder / name, self._fail)

    def _fail(self, number, name):
        with self.lock:
            self.calls += 1
            return self.fails(self.calls, name)

    def _before(self, name):
        if self._fail(0, name):
            raise OSError(errno.EIO, "the store did not answer", str(self._folder / name))

    def size(self, name):
        self._before(name)
        return super().size(name)

    def read(self, name):
        self._before(name)
        storage = self

        class File:
            def __init__(self, file):
                self._file = file

            def __getattr__(self, what):
                return getattr(self._file, what)

            def read(self, *size):
                storage._before(name)
                return self._file.read(*size)

        opened = super().read(name)

        class Opened:
            def __enter__(self):
                return File(opened.__enter__())

            def __exit__(self, *error):
                return opened.__exit__(*error)

        return Opened()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_FIRST", 0.001)
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_LIMIT", 0.01)
    monkeypatch.setattr("shoal.files.patience.TOLD_SECONDS", 0.0)


@pytest.fixture
def plan(tmp_path):
    group = Group(2)
    group.push(1)
    group.save(tmp_path, 1)
    group.push(2)
    group.save(tmp_path, 2)
    sources = Sources(checkpoints=str(tmp_path))
    return pb.RestoreReply(again=True, checkpoints=[2, 1], nonces=["", ""]), sources


def restored(plan, fails, progress=None, seconds=PATIENCE):
    offer, sources = plan
    progress = progress or Progress()
    storage = Flaky(sources.checkpoints, fails)
    pushes = PushRegister()
    model, number, said = newest_shard(
        *(offer, sources, 0, Routing.even(2), pushes, progress),
        lambda _: PatientStorage(storage, seconds, progress),
        PendingGradients(),
    )
    assert said.endswith(f"it has restored checkpoint {number}") == bool(number)
    return model, said, storage


@pytest.mark.parametrize("servers", [1, 2])
def test_whichever_call_fails_the_newest_checkpoint_is_restored(plan, servers, tmp_path):
    model, said, storage = restored(plan, lambda *_: False)
    assert said == "it has restored checkpoint 2"
    for number in range(1, storage.calls + 1):
        again, said, _ = restored(plan, lambda call, _, number=number: call == number)
        assert said == "it has restored checkpoint 2", number
        assert again.version == model.version


def test_every_third_call_may_fail(plan):
    model, said, _ = restored(plan, lambda call, _: call % 3 == 0)
    assert said == "it has restored checkpoint 2"
    (ids, *_), *_ = model.tables[0].export()
    assert ids.size


def test_a_missing_or_damaged_file_is_refused_at_once(plan, tmp_path):
    newest = tmp_path / "checkpoint-00000002"
    (shard,) = newest.glob("server-0000.*.json")
    shard.rename(tmp_path / "elsewhere")
    _, said, _ = restored(plan, lambda *_: False)
    assert "server-0000" in said
    assert said.endswith("it has restored checkpoint 1")
    shard.write_text("no manifest")
    _, said, _ = restored(plan, lambda *_: False)
    assert "damaged" in said
    assert said.endswith("it has restored checkpoint 1")


def test_the_end_of_the_patience_is_no_reason_for_an_older_checkpoint(plan):
    told = []
    progress = Progress()

    def fails(_, name):
        told.append(progress.now().what)
        return name == "manifest.json"

    with pytest.raises(StorageError, match="the store did not answer") as caught:
        restored(plan, fails, progress, seconds=0.05)
    assert "--storage-patience-seconds 0.05" in str(caught.value)
    assert any(
        what.startswith("wait for storage: OSError: [Errno 5] the store did not") for what in told
    )


def test_a_server_that_is_told_to_end_waits_no_longer(plan):
    stopped = threading.Event()

    def fails(*_):
        stopped.set()
        return True

    with pytest.raises(StoppedError):
        restored(plan, fails, Progress(stopped))


def test_a_file_is_read_on_where_the_storage_failed(tmp_path):
    data = np.random.default_rng(1).bytes(1000)
    (tmp_path / "file").write_bytes(data)
    progress = Progress()
    flaky = Flaky(tmp_path, lambda call, _: call % 2 == 1)
    storage = PatientStorage(flaky, PATIENCE, progress)
    with storage.read("file") as file:
        parts = [file.read(300) for _ in range(5)]
        assert b"".join(parts) == data
        file.seek(990)
        assert file.read(100) == data[990:]
    assert progress.now().what == ""


def test_rows_of_restore_from_are_read_again_too(plan):
    failed = []

    def fails(call, name):
        # A page of rows, once; whatever else is read before.
        if name.endswith(".arrow") and not failed:
            failed.append(name)
            return True
        return False

    rows = asked_once(
        plan[1].checkpoints,
        0,
        2,
        lambda location: PatientStorage(Flaky(location, fails), PATIENCE, Progress()),
        spec(),
    )
    rows._thread.join(PATIENCE)
    model = rows.model(spec())
    (ids, *_), *_ = model.tables[0].export()
    assert ids.size
    assert failed
