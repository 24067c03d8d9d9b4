"""Rows that the user's model brings: servers begin with them, and whoever dies, they stay."""

import random
import re

import numpy as np
import pytest

from shoal.checkpoints.folders import Checkpoint, begin, complete
from shoal.checkpoints.saved import SavedCheckpoint
from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.saved.recovery import Sources
from shoal.ps.service import ParameterServer
from shoal.ps.update_log.to_checkpoint import recovered
from tests.ps.caller import model_spec
from tests.ps.first_rows import write_first_rows
from tests.ps.logged import DIM, SIZE, STATE, content
from tests.ps.test_moving_dense import Divided

IDS = np.arange(200) * 9973
ROWS = np.random.default_rng(0).normal(size=(IDS.size, DIM)).astype(np.float32)
GIVEN = model_spec(
    DIM,
    size=SIZE,
    state=STATE,
    optimizer=OptimizerSpec("adam").to_json(),
    initial=InitializerSpec("zeros", given=True),
)


@pytest.fixture
def given(tmp_path, world):
    """A job whose servers begin with ROWS."""
    write_first_rows(tmp_path / "given", "items", IDS, ROWS)
    return lambda count: world(count, spec=GIVEN, first_rows=str(tmp_path / "given"))


def rows_of(job):
    """All rows of the servers, by id."""
    found = {}
    for server in job.servers:
        for ids, values in ((each[0], each[1]) for each in server.model.tables[0].export()):
            found |= dict(zip(ids.tolist(), values.tolist(), strict=True))
    return found


def pushed(job, count, seed=0):
    draw = random.Random(seed)
    for number in range(count):
        job.push(number % 3, np.array(draw.sample(IDS.tolist(), 5), np.int64), draw)


@pytest.mark.parametrize("servers", [1, 3])
def test_servers_begin_with_them_each_with_its_own(given, servers):
    job = given(servers)
    assert rows_of(job) == dict(zip(IDS.tolist(), ROWS.tolist(), strict=True))
    sizes = [len(server.model.tables[0]) for server in job.servers]
    assert sum(sizes) == IDS.size


@pytest.mark.parametrize("servers", [1, 3])
def test_a_server_that_dies_before_any_checkpoint_has_them_and_its_updates_again(given, servers):
    job = given(servers)
    pushed(job, 6)
    assert [job.status(index).unprotected for index in range(servers)] == [""] * servers
    job.start_again(0)
    job.same()
    pushed(job, 6, seed=1)
    job.same()


def test_without_a_log_it_begins_with_them_again(given, tmp_path):
    job = given(1)
    sources = Sources(first_rows=str(tmp_path / "given"))
    server = ParameterServer(0, job.routing, sources=sources)
    server.registration.restore(pb.RestoreReply(again=True))
    job.register(server.registration.register)
    job.initialize(0, server.registration.initialize_dense)
    assert content(server.model) == content(job.servers[0].model)


def test_a_job_that_is_resumed_before_its_first_checkpoint_has_them(given, tmp_path):
    job = given(1)
    pushed(job, 6)
    job.kill(0)
    root = str(job.root.location)
    attempt = begin(job.root, 1, "job")
    logs, first_rows = job.folder / "log", str(tmp_path / "given")
    made = recovered(logs, root, job.routing, 0, 1, attempt.nonce, first_rows)
    assert made["replayed"] == 6
    complete(attempt, made["shards"], {})
    saved = SavedCheckpoint(Checkpoint(job.root, 1))
    found = {}
    for ids, rows in saved.rows("items", DIM):
        found |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
    assert found == rows_of(job)


def test_they_move_and_are_where_they_were_after_a_death(tmp_path):
    ids = np.arange(IDS.size)  # some of which are pushed
    write_first_rows(tmp_path / "given", "items", ids, ROWS)
    world = Divided(3, tmp_path, spec=GIVEN, first_rows=str(tmp_path / "given"))
    world.push_all()
    for dense in (2, 1, 3):
        world.divide(dense)
        world.push_all()
        before = [content(server.model)[0] for server in world.servers]
        assert sorted(key for rows in before for key in rows) == ids.tolist()
        for index in range(3):
            world.start_again(index)
        assert [content(server.model)[0] for server in world.servers] == before
    world.close()


def test_a_row_removed_before_a_server_joined_does_not_come_back_at_that_servers_death(tmp_path):
    ids = np.arange(IDS.size)
    write_first_rows(tmp_path / "given", "items", ids, ROWS)
    world = Divided(3, tmp_path, spec=GIVEN, first_rows=str(tmp_path / "given"))
    world.push_all()
    world.divide(2)
    gone = ids[: IDS.size // 2]  # as by a sweep: rows that expired
    for server in world.servers:
        server.model.tables[0].remove(gone)
    # A new server takes the place of the one that has nothing any more.
    world.kill(2)
    world.incarnations[2] = -1
    world.start(2)
    world.incarnations[2] = 1  # the master had a connection to the former one
    assert world.servers[2].registration.model_if_any is None
    world.divide(3, joining=(2,))
    before = content(world.servers[2].model)[0]
    assert 0 < len(before) < IDS.size / 2
    for _ in range(2):
        world.start_again(2)
        assert content(world.servers[2].model)[0] == before
    assert not set(rows_of(world)) & set(gone.tolist())
    world.close()


def test_files_that_cannot_be_read_end_the_job_by_name(tmp_path):
    folder = tmp_path / "given"
    write_first_rows(folder, "items", IDS, ROWS)
    (folder / "0.parquet").write_bytes(b"other")
    server = ParameterServer(0, Routing.even(1), sources=Sources(first_rows=str(folder)))
    with pytest.raises(WireError, match="NOT_READY"):
        server.registration.register(pb.RegisterRequest(model=GIVEN))
    server.registration._beginning._thread.join()
    assert isinstance(server.registration.failure, UserError)
    words = r"the rows that the model brings cannot be read: .*0\.parquet: damaged"
    assert re.match(words, str(server.registration.failure))
