"""Checkpoints: every row comes back, on any number of servers; damaged ones never do."""

import random
import re
import shutil
import threading

import numpy as np
import pytest

from shoal.checkpoints import contents
from shoal.checkpoints.folders import Attempt, Checkpoint, begin, complete, folder_name, numbers
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.newest import newest_good
from shoal.files.storage import LocalStorage, open_storage
from shoal.native import ids as native_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.pushes import PushRegister
from shoal.ps.saved.checkpoint import cut, write_empty_shard, write_shard
from shoal.ps.saved.continued import Continued
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.restoring import restore
from tests.ps.groups import IDS, Group, restored


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("before", [1, 2, 3, 4, 5])
def test_every_row_slot_and_header_comes_back_on_any_number_of_servers(tmp_path, before, after):
    group = Group(before)
    for sequence in (1, 2, 3):
        group.push(sequence, IDS[sequence:].copy())
    group.save(tmp_path, 1)
    again = restored(tmp_path, 1, after)
    rows, *dense = again.content()
    expected, *expected_dense = group.content()
    assert rows == expected
    assert len(rows) == IDS.size - 1
    assert dense == expected_dense
    assert [model.version for model in again.models] == [3] * after
    # Training goes on from there as if nothing had been: slots, steps, everything.
    if before == after:
        group.push(4)
        again.push(4)
        assert again.content() == group.content()


def test_a_restored_server_knows_which_pushes_it_has(tmp_path):
    group = Group(2)
    group.push(1)
    group.pushes[0].fence(5, 2)
    group.save(tmp_path, 1)
    again = restored(tmp_path, 1, 2)
    # A pull tells it to its worker, and to no other.
    told = [model.moment(worker, 0, -2).applied for model in again.models for worker in (0, 5)]
    assert told == [1, 0, 1, 0]
    before = again.content()
    again.push(1)
    assert again.content() == before
    assert [register.duplicates for register in again.pushes] == [1, 1]
    again.push(2)
    assert again.content() != before
    assert again.pushes[1].fence(0, 0) == pb.FenceReply(sequence=2, task=7, records_done=2)
    with (
        pytest.raises(WireError, match="FENCED"),
        again.pushes[0].admit(
            pb.PushRequest(identity=pb.PushIdentity(worker=5, incarnation=2, sequence=1))
        ),
    ):
        pass


@pytest.mark.parametrize("later", [0, 1])
def test_of_shards_that_were_cut_at_different_pushes_it_knows_those_that_all_have(tmp_path, later):
    """Without a log, a server that got slots meanwhile has rows that lack the other's pushes."""
    group, shards = Group(2), {}
    attempt = begin(open_storage(str(tmp_path)), 1, "job")
    for sequence, server in enumerate((1 - later, later), 1):
        group.push(sequence)
        model = group.models[server]
        at = cut(model, group.pushes[server])
        shards[server] = write_shard(attempt, server, group.routing, model, at)
    complete(attempt, [shards[0], shards[1]], {})
    opened = Checkpoint(open_storage(str(tmp_path)), 1)
    owners = group.routing.owners.copy()
    owners[-5000:] = 0
    for server, expected in ((0, 1), (1, 1 + later)):  # the second one has rows of its own alone
        register = PushRegister()
        restore(opened, server, Routing(2, 2, owners), register, Progress())
        assert [push.identity.sequence for push in register.last()] == [expected]


@pytest.mark.parametrize("moved", ["swapped", "some", "even"])
def test_a_job_that_continues_has_each_row_at_its_owner_alone(tmp_path, moved):
    group = Group(2)
    owners = group.routing.owners.copy()
    if moved == "swapped":
        owners = 1 - owners
    elif moved == "some":
        owners[np.random.default_rng(5).random(owners.size) < 0.3] = 1
    before = group.routing
    group.routing = Routing(2, 2, owners)
    group.push(1)
    group.save(tmp_path, 1)
    location = str(tmp_path / "checkpoint-00000001")
    for server in range(2):
        given = Continued(location, server, before, Progress(), open_storage)
        model = given.read(group.models[0].spec)
        ids = np.concatenate([rows[0] for rows in model.tables[0].export()])
        expected = IDS[before.owners[native_ids.slot_of(IDS)] == server]
        np.testing.assert_array_equal(np.sort(ids), np.sort(expected))


def test_a_shard_is_of_one_moment_while_pushes_go_on(tmp_path):
    group = Group(1)
    group.push(1)
    done = threading.Event()

    def train(worker):
        sequence = 1
        # A row counts its uses up to 2047 only.
        while not done.is_set() and sequence < 1000:
            sequence += 1
            group.push(sequence, worker=worker)

    threads = [threading.Thread(target=train, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 6):
            group.save(tmp_path, number)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    for number in range(1, 6):
        again = restored(tmp_path, number, 1)
        # Each push updates every row once: all rows have had exactly the pushes named.
        uses = {row[-1] for row in again.content()[0].values()}
        (shard,) = Checkpoint(LocalStorage(tmp_path), number).shards
        sequences = {each["worker"]: each["sequence"] for each in shard["pushes"]}
        named = sequences[0] + max(0, sequences.get(1, 1) - 1)
        assert uses == {named} == {shard["version"]}


def mutate(chance, folder, other):
    """Damage one file of `folder` in a random way; its path, None if nothing changed."""
    path = chance.choice(sorted(folder.iterdir()))
    data = bytearray(path.read_bytes())
    kind = chance.choice(["cut", "flip", "mix", "remove", "extend"])
    if kind == "cut":
        data = data[: chance.randrange(len(data))]
    elif kind == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "mix":
        (same,) = other.glob(re.sub(r"[0-9a-f]{16}", "*", path.name))
        data = bytearray(same.read_bytes())
    elif kind == "extend":
        data += bytes([chance.randrange(256)])
    if kind != "remove" and bytes(data) == path.read_bytes():
        return None
    path.unlink()
    if kind != "remove":
        path.write_bytes(data)
    return path


@pytest.mark.slow
def test_every_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_taken(tmp_path):
    group = Group(2)
    group.push(1, IDS[:40].copy())
    root = tmp_path / "root"
    first = group.save(root, 1)
    group.push(2, IDS[:50].copy())
    second = group.save(root, 2)
    whole = tmp_path / "whole"
    shutil.copytree(second, whole)
    assert newest_good(LocalStorage(root))[0].number == 2
    chance = random.Random(17)
    mutations = 0
    while mutations < 500:
        path = mutate(chance, second, first)
        if path is None:
            continue
        mutations += 1
        found, refused = newest_good(LocalStorage(root))
        assert found.number == 1
        (error,) = refused
        assert str(path) in str(error)
        shutil.copy(whole / path.name, path)
    assert newest_good(LocalStorage(root))[0].number == 2


def test_a_checkpoint_without_its_manifest_or_in_anothers_place_is_none(tmp_path):
    group = Group(1)
    folder = group.save(tmp_path, 1)
    shutil.copytree(folder, tmp_path / folder_name(2))
    (folder / manifests.MANIFEST).unlink()
    found, refused = newest_good(LocalStorage(tmp_path))
    assert found is None
    assert [manifests.MANIFEST in str(error) for error in refused] == [True, True]


@pytest.mark.parametrize("servers", [1, 2, 3, 4])
def test_a_checkpoint_without_a_server_that_is_absent_restores_on_any_number(tmp_path, servers):
    group = Group(3)
    group.push(1)
    group.push(2)
    before = group.content()
    group.save(tmp_path, 1)
    owners = np.where(group.routing.owners == 1, 2, group.routing.owners).astype(np.uint16)
    routing = Routing(2, 3, owners, dense=1, absent=(1,))
    opened = Checkpoint(open_storage(str(tmp_path)), 1)
    registers = [PushRegister() for _ in range(3)]
    models = [restore(opened, i, routing, registers[i], Progress()) for i in range(3)]
    attempt = begin(open_storage(str(tmp_path)), 2, "job")
    cuts = {i: cut(models[i], registers[i]) for i in routing.present}
    shards = {i: write_shard(attempt, i, routing, models[i], cuts[i]) for i in routing.present}
    shards[1] = write_empty_shard(attempt, 1, routing, models[0].spec, cuts[0])
    complete(attempt, [shards[i] for i in range(3)], {})
    contents.verify(Checkpoint(open_storage(str(tmp_path)), 2))
    again = restored(tmp_path, 2, servers)
    assert again.content() == before
    has = [
        [(each.identity.worker, each.identity.sequence) for each in register.last()]
        for register in again.pushes
    ]
    assert has == [[(0, 2)]] * servers


def test_a_failed_write_leaves_the_model_as_it_was(tmp_path):
    group = Group(1)
    group.push(1)
    (model,), (pushes,) = group.models, group.pushes
    gone, at = Attempt(LocalStorage(tmp_path / "gone"), 1, "0" * 16), cut(model, pushes)
    with pytest.raises(OSError, match="No such file"):
        write_shard(gone, 0, group.routing, model, at)
    group.push(2)
    assert newest_good(LocalStorage(tmp_path)) == (None, [])
    group.save(tmp_path, 1)
    assert restored(tmp_path, 1, 1).content() == group.content()


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_checkpoint_behind_a_url(tmp_path, scheme):
    root = f"{scheme}://{tmp_path}/remote"
    group = Group(2)
    group.push(1)
    group.save(root, 1)
    group.push(2)
    group.save(root, 2)
    storage = open_storage(root)
    assert numbers(storage) == [1, 2]
    found, refused = newest_good(storage)
    assert (found.number, found.ledger, refused) == (2, {"position": 2}, [])
    assert restored(root, 2, 2).content() == group.content()
    last = storage.child(folder_name(2))
    damaged = found.shards[1]["files"][0]["name"]
    with last.write(damaged) as file:
        file.write(b"something else")
    found, (error,) = newest_good(storage)
    assert found.number == 1
    assert f"{root}/checkpoint-00000002/{damaged}" in str(error)
    storage.child(folder_name(1)).remove()
    assert numbers(storage) == [2]


def test_what_cannot_be_opened_is_an_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match="nowhere://a"):
        open_storage("nowhere://a")
    with pytest.raises(CheckpointError, match=r"checkpoint-00000007/manifest.json: No such file"):
        Checkpoint(open_storage(str(tmp_path)), 7)


def test_pushes_go_on_beyond_32_bits_of_steps_and_after_a_restore(tmp_path):
    """As after two days at 25,000 pushes a second."""
    last = 2**32 - 1
    group = Group(1)
    model = group.models[0]
    model.moments.restore(last - 2, last - 2, {})
    for sequence in range(1, 5):
        group.push(sequence)
    assert model.version == model.step == last + 2
    group.save(tmp_path, 1)
    again = restored(tmp_path, 1, 1)
    assert again.content() == group.content()
    again.push(5)
    assert again.models[0].version == again.models[0].step == last + 3
    rows, _, _ = again.content()
    assert {row[-2:] for row in rows.values()} == {(last + 3, 5)}
