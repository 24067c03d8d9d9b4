"""Attempts to take a checkpoint: of masters that are killed, on stores of every kind."""

import io
import os
import subprocess
import sys
import threading
from collections import defaultdict

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shoal.checkpoints import contents, folders
from shoal.checkpoints.folders import Checkpoint, begin, numbers
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.newest import newest_good
from shoal.config.job import JobConfig
from shoal.files.storage import LocalStorage, open_storage
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.calls.take_checkpoint import CheckpointTaker, TakingError
from shoal.master.work.ids import ServerId
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.pushes import PushRegister
from shoal.ps.ownership import Ownership
from shoal.ps.saved import checkpoint
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.restoring import restore
from shoal.ps.shards import Shards
from tests.ps.groups import IDS, Group, restored

pytestmark = pytest.mark.slow


class Objects(MemoryFileSystem):
    """Keys and values: there is no folder, and nothing can be renamed."""

    protocol = "objects"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    writers: dict = defaultdict(set)  # noqa: RUF012  # the threads that wrote what of each server

    def open(self, path, mode="rb", **how):
        name = path.rpartition("/")[2]
        if "w" in mode and name.startswith("server-"):
            self.writers[name.partition(".")[0]].add(threading.get_ident())
        return super().open(path, mode, **how)

    def makedirs(self, path, exist_ok=False):
        pass

    def mkdir(self, path, create_parents=True, **kwargs):
        pass

    def mv(self, *args, **kwargs):
        raise NotImplementedError


class Killed(BaseException):
    """What SIGKILL is to a master: nothing after it is done."""


@pytest.fixture
def objects():
    fsspec.register_implementation("objects", Objects, clobber=True)
    yield "objects://bucket/saved"
    Objects.store.clear()
    Objects.writers.clear()


@pytest.fixture
def store():
    return "folders"


@pytest.fixture
def job(store, objects, tmp_path):
    """(the servers' group, a function that makes a master's taker, the folder of checkpoints)."""
    root = objects if store == "objects" else str(tmp_path)
    group = Group(2)
    shards = [
        Shards(i, lambda i=i: group.models[i], Ownership(i, group.routing), group.pushes[i], root)
        for i in range(2)
    ]
    servers, places, masters = [], {}, []
    for index, each in enumerate(shards):
        handlers = {
            methods.BEGIN_CHECKPOINT: each.begin,
            methods.WRITE_SHARD: each.write,
            methods.DROP_CHECKPOINT: each.drop,
        }
        server, port = serving.serve(handlers, "127.0.0.1:0", 4)
        servers.append(server)
        places[ServerId(index)] = Place(f"127.0.0.1:{port}", 0)

    def take(ledger=dict, root=root, token="token"):
        config = JobConfig(
            model_def="m.m", training_data="t", checkpoint_dir=str(root), token=token
        )
        masters.append(ServerConnections(""))
        return CheckpointTaker(config, masters[-1]).take(places, ledger)

    yield group, take, root
    for each in masters:
        each.close()
    for server in servers:
        server.stop(None).wait()


def killed():
    raise Killed


@pytest.mark.parametrize("store", ["folders", "objects"])
def test_a_master_after_a_killed_one_gets_the_cut_that_it_asked_for(store, job):
    group, take, root = job
    group.push(1)
    with pytest.raises(Killed):
        take(killed)
    group.push(2, IDS[:40].copy())
    taken = take()
    assert taken.version == 2
    assert restored(root, taken.number, 2).content() == group.content()
    # What was begun is gone; what is there is the checkpoint and nothing else.
    assert numbers(open_storage(root)) == [taken.number]
    assert folders.BEGUN not in open_storage(root).child(folders.folder_name(taken.number)).names()


def test_a_number_that_comes_again_is_another_attempt():
    group = Group(1)
    shards = Shards(
        0, lambda: group.models[0], Ownership(0, group.routing), group.pushes[0], "/nowhere"
    )
    group.push(1)
    first, second = ({"number": 7, "nonce": nonce * 16} for nonce in "ab")
    assert shards.begin(pb.BeginCheckpointRequest(**first)).version == 1
    assert shards.begin(pb.BeginCheckpointRequest(**first)).version == 1
    group.push(2)
    assert shards.begin(pb.BeginCheckpointRequest(**first)).version == 1
    assert shards.begin(pb.BeginCheckpointRequest(**second)).version == 2
    shards.drop(pb.DropCheckpointRequest(**first))  # a late word of the first master
    with pytest.raises(WireError, match="not waiting to be written"):
        shards.write(pb.WriteShardRequest(**first))
    with pytest.raises(WireError, match="/nowhere"):
        shards.write(pb.WriteShardRequest(**second))


@pytest.mark.parametrize(
    ("number", "nonce"),
    [(1, "/../../../elsewhere/a"), (1, ""), (1, "A" * 16), (1, "a" * 16 + "\n"), (-1, "a" * 16)],
)
def test_the_name_of_an_attempt_is_no_path(tmp_path, number, nonce):
    group = Group(1)
    root = str(tmp_path / "checkpoints")
    shards = Shards(0, lambda: group.models[0], Ownership(0, group.routing), group.pushes[0], root)
    group.push(1)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        shards.begin(pb.BeginCheckpointRequest(number=number, nonce=nonce))
    with pytest.raises(WireError, match="not waiting to be written"):
        shards.write(pb.WriteShardRequest(number=number, nonce=nonce))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_the_same_number_is_not_the_one_that_is_known(tmp_path):
    group = Group(1)
    group.save(tmp_path, 3)
    root = LocalStorage(tmp_path)
    nonce = Checkpoint(root, 3).nonce
    assert Checkpoint(root, 3, nonce).number == 3
    assert newest_good(root, {3: nonce})[0].number == 3
    found, (error,) = newest_good(root, {3: "0" * 16})
    assert found is None
    assert f"{tmp_path}/checkpoint-00000003/manifest.json: of another attempt" in str(error)


def test_only_what_killed_masters_of_the_same_job_left_is_removed(job, tmp_path):
    group, take, _ = job
    root = LocalStorage(tmp_path)
    group.push(1)
    first = take()
    ours = begin(root, 5, JobConfig(model_def="m.m", training_data="t", token="token").job_id)
    with ours.folder.write(f"server-0000.{ours.nonce}.table-0000.arrow") as file:
        file.write(b"half")
    (tmp_path / "checkpoint-00000005" / f"server-0001.{ours.nonce}.dense.arrow.tmp").touch()
    mixed = begin(root, 6, ours.job)
    (tmp_path / "checkpoint-00000006" / "notes.txt").write_text("mine")
    begin(root, 7, "another job")
    (tmp_path / "checkpoint-00000008").mkdir()
    last = take()
    assert last.number == 9
    assert numbers(root) == [first.number, mixed.number, 7, 8, last.number]
    assert (tmp_path / "checkpoint-00000006" / "notes.txt").read_text() == "mine"
    assert newest_good(root)[0].number == 9


def test_a_shard_that_is_no_shard_is_a_checkpoint_that_could_not_be_taken(job, tmp_path):
    group, take, _ = job
    group.push(1)
    (tmp_path / "root").write_text("a file")
    with pytest.raises(TakingError, match="root: "):
        take(root=tmp_path / "root")


def test_the_entries_of_new_folders_are_on_disk(tmp_path, monkeypatch):
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    begin(LocalStorage(tmp_path / "job" / "checkpoints"), 1, "job")
    folder = tmp_path / "job" / "checkpoints"
    wanted = {tmp_path, tmp_path / "job", folder, folder / "checkpoint-00000001"}
    assert set(map(str, wanted)) <= set(synced)


CUT_WHILE_READ = """
import os, sys
from shoal.checkpoints import contents
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.files.storage import LocalStorage
found = Checkpoint(LocalStorage(sys.argv[1]), 1)
pieces = contents.table_pieces(found, 0, 0)
first = next(pieces)
os.truncate(found.folder.path(found.shards[0]["files"][0]["name"]), 5000)
try:
    for piece in pieces:
        print(piece["values"].sum())
except CheckpointError as error:
    print(error)
"""


def test_a_file_that_ends_while_it_is_read_is_refused_and_not_the_end_of_the_process(tmp_path):
    """What is mapped ends the reader with SIGBUS then, as it does on an error of the disk."""
    group = Group(1)
    for start in range(0, 100_000, 10_000):
        group.push(start + 1, np.arange(start, start + 10_000))
    group.save(tmp_path, 1)
    done = subprocess.run(
        [sys.executable, "-c", CUT_WHILE_READ, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done
    assert "table-0000.arrow: damaged" in done.stdout


class CountedFile(io.FileIO):
    """A file that notes which bytes were read of it: the first and the one after the last."""

    def __init__(self, path, ranges):
        super().__init__(path)
        self._ranges = ranges

    def read(self, size=-1):
        start = self.tell()
        data = super().read(size)
        self._ranges[os.path.basename(self.name)].append((start, start + len(data)))
        return data


def many_pages(tmp_path, monkeypatch, servers):
    """A checkpoint whose first table has several pages of each part of the slots."""
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 20_000)
    group = Group(servers)
    group.push(1, np.arange(60_000, dtype=np.int64) * 9973)
    group.save(tmp_path, 1)
    opened = Checkpoint(LocalStorage(tmp_path), 1)
    assert all(len(shard["files"][0]["pages"]) > checkpoint.PARTS for shard in opened.shards)
    return group, opened


def counted(monkeypatch):
    """What is read from now on, by the file's name: first bytes, and those after the last."""
    read = defaultdict(list)
    monkeypatch.setattr(
        LocalStorage, "read", lambda self, name: CountedFile(f"{self.location}/{name}", read)
    )
    return read


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 1)])
def test_each_byte_is_read_once(tmp_path, monkeypatch, before, after):
    _, opened = many_pages(tmp_path, monkeypatch, before)
    read = counted(monkeypatch)
    restored(tmp_path, 1, after)
    for shard in opened.shards:
        for position, file in enumerate(shard["files"]):
            # The end of a table's file has no rows, and is read with the whole of it only.
            end = file["pages"][-1]["bytes"] if before != after and position < 2 else 0
            found = sorted((start, stop) for start, stop in read[file["name"]] if start < stop)
            starts = [start for start, _ in found]
            stops = [stop for _, stop in found]
            assert [*starts, file["bytes"] - end] == [0, *stops], file["name"]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 5), (2, 4), (2, 3), (3, 2), (5, 4)])
def test_a_server_reads_what_is_its_and_little_more(tmp_path, monkeypatch, before, after):
    group, opened = many_pages(tmp_path, monkeypatch, before)
    pages = [page for shard in opened.shards for page in shard["files"][0]["pages"]]
    rows = sum(page["bytes"] for page in pages if "rows" in page)
    read = counted(monkeypatch)
    again, routing = Group(after), Routing.even(after)
    for server in range(after):
        read.clear()
        progress = Progress()
        again.models[server] = restore(opened, server, routing, again.pushes[server], progress)
        pieces = {name: found for name, found in read.items() if "table" in name}
        assert all(len(found) == len(set(found)) for found in pieces.values())
        found = sum(stop - start for name in pieces for start, stop in read[name])
        # A part of the slots at each of its ends may be another's, too.
        most = 1.1 * rows / after + 2 * rows / before / checkpoint.PARTS
        assert 0.9 * rows / after < found < most
        arrow = (found for name, found in read.items() if name.endswith(".arrow"))
        whole = sum(stop - start for found in arrow for start, stop in found)
        assert progress.now().done == progress.now().total == whole
    assert again.content()[0] == group.content()[0]


def test_a_damaged_page_stops_only_servers_whose_rows_it_may_have(tmp_path, monkeypatch):
    _, opened = many_pages(tmp_path, monkeypatch, 1)
    (shard,) = opened.shards
    *pages, _ = shard["files"][0]["pages"]
    number = next(i for i, page in enumerate(pages) if page["slots"][0] >= 16384 // 2)
    at = sum(page["bytes"] for page in pages[:number]) + pages[number]["bytes"] // 2
    with open(opened.folder.path(shard["files"][0]["name"]), "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    routing = Routing.even(2)
    assert restore(opened, 0, routing, PushRegister(), Progress()).version == 1
    with pytest.raises(CheckpointError, match=r"table-0000\.arrow: damaged"):
        restore(opened, 1, routing, PushRegister(), Progress())
    with pytest.raises(CheckpointError, match=r"table-0000\.arrow: damaged"):
        contents.verify(opened)


@pytest.mark.parametrize("field", ["files", "rows", "slots"])
def test_a_shard_that_does_not_fit_its_files_is_refused(tmp_path, field):
    group = Group(2)
    group.push(1)
    group.save(tmp_path, 1)
    checkpoint = Checkpoint(LocalStorage(tmp_path), 1)
    if field == "rows":
        checkpoint.shards[1]["files"][0]["pages"][0]["rows"] += 1
    elif field == "slots":
        checkpoint.shards[1]["files"][0]["pages"][0]["slots"] = [0, 9000]
    else:
        one, other = (shard["files"][0] for shard in checkpoint.shards)
        for key in one:
            one[key], other[key] = other[key], one[key]
    with pytest.raises(CheckpointError, match=r"server-000[01]\..*\.table-0000\.arrow: "):
        contents.verify(checkpoint)


@pytest.mark.parametrize("store", ["objects"])
def test_the_same_thread_of_a_server_writes_all_its_shards(store, job):
    """So the memory that malloc keeps for a thread is not kept for each thread of the calls."""
    group, take, _ = job
    for sequence in range(1, 7):
        group.push(sequence)
        take()
    assert {server: len(threads) for server, threads in Objects.writers.items()} == {
        "server-0000": 1,
        "server-0001": 1,
    }


@pytest.mark.parametrize("error", [OSError, MemoryError, GeneratorExit])
def test_a_write_that_fails_leaves_no_temporary_file(tmp_path, error):
    storage = LocalStorage(tmp_path)

    def fail():
        with storage.write("rows") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail()
    assert not [*tmp_path.iterdir()]
