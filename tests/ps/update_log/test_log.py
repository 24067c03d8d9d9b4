"""--durability=log over real gRPC: whatever a server dies of, it comes back as if it had not."""

import collections
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest

from shoal.master.calls.server_work import note_status
from shoal.master.job.events import ServerRegistered
from shoal.master.result import result_of
from shoal.master.work.ids import ServerId
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from shoal.native import ids as native_ids
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.wire import frames
from shoal.ps.saved.recovery import Sources
from shoal.ps.service import ParameterServer
from shoal.ps.update_log import file_sink, peer_sink
from shoal.ps.update_log.space import LogSpace
from tests.master.strategies import begun, exited
from tests.ps.logged import DIM, POINTS, SPEC, content, lost, numbers


@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_server_that_died_anywhere_is_as_if_it_had_not(world, servers, seed):
    """Random pushes, checkpoints whole and half, and deaths, one at a time."""
    draw = random.Random(seed)
    spec = pb.ModelSpec()
    spec.CopyFrom(SPEC)
    # Of the four seeds, two round at random: a log that is done again rounds alike.
    spec.tables[0].value_dtype = ("", "bfloat16", "", "float16")[seed]
    spec.tables[0].admit_after = 1 + seed * 2
    job = world(servers, spec=spec)
    pushes = collections.Counter()
    for _ in range(60):
        chance = draw.random()
        if chance < 0.15:
            job.checkpoint(draw.choice(["begun", "written", "complete", "told", "told"]))
        elif chance < 0.35:
            # All are protected: as a job is some seconds after a death.
            job.look_after()
            if any(job.status(index).wants_checkpoint for index in range(servers)):
                job.checkpoint()
            assert [job.status(index).unprotected for index in range(servers)] == [""] * servers
            job.faults.armed = draw.choice(POINTS)
            if job.faults.armed == "log-replaying":
                victim = draw.randrange(servers)
                job.kill(victim)
                job.start(victim)
                job.meet(victim)
        ids = np.array(draw.sample(range(40), draw.randrange(1, 8)), np.int64) * 9973
        job.push(draw.randrange(3), ids, draw)
        pushes.update(ids.tolist())
        job.same()
        tables = [server.model.tables[0] for server in job.servers]
        admitted = {row for table in tables for piece in table.export() for row in piece[0]}
        assert admitted == {row for row, n in pushes.items() if n > seed * 2}
        assert sum(table.counting for table in tables) == len(pushes) - len(admitted)
    assert sum(job.incarnations) > 3
    assert [lost(server) for server in job.servers] == [0] * servers


def pushed(job, count, draw=None):
    """Pushes of two workers in turn, which see the newest values."""
    draw = draw or random.Random(5)
    for turn, ids in enumerate(numbers(count)):
        job.push(turn % 2, ids, draw)


def test_two_dead_at_once_restore_the_checkpoint_and_the_loss_is_counted(world):
    job = world(2)
    pushed(job, 3)
    job.checkpoint()
    pushed(job, 5)
    for index in (0, 1):
        job.kill(index)
    # The first finds nobody who keeps its log, the second one who does not have it.
    for index in (0, 1):
        job.start(index)
        job.meet(index)
    assert [lost(server) for server in job.servers] == [5, 5]
    assert all(job.status(index).unprotected for index in (0, 1))
    job.look_after()
    assert all(job.status(index).wants_checkpoint for index in (0, 1))
    job.checkpoint()
    assert [job.status(index).unprotected for index in (0, 1)] == ["", ""]


def test_who_dies_unprotected_is_counted_so_until_its_successor_is_protected(world):
    job, server = world(2), ServerId(0)
    master = begun(
        DataDescribed(training=(Source("t", 20),)),
        durability="log",
        checkpoint_seconds=9.0,
        servers="2",
    )
    pushed(job, 3)
    job.checkpoint()
    job.kill(1)
    job.look_after_one(0)  # nobody keeps its log
    note_status(server, job.status(0), master, 1.0)
    job.kill(0)
    master.on(exited(server), 2.0)
    job.start(0)
    # From its recovery on the successor counts itself.
    status = job.status(0)
    assert (bool(status.unprotected), status.absences) == (True, 1)
    master.on(ServerRegistered(server, 1, "host:1"), 4.0)
    note_status(server, status, master, 4.0)
    job.start(1)
    for index in (0, 1):
        job.meet(index)
    job.look_after()
    job.checkpoint()
    status = job.status(0)
    assert status.unprotected == ""
    note_status(server, status, master, 9.0)
    unprotected = result_of(master, 9.0)["log"]["unprotected"]
    assert unprotected == {"times": 2, "seconds": 3.0 + status.absent_seconds}


def test_who_loses_its_keeper_says_so_and_asks_for_a_checkpoint(world):
    job = world(2)
    pushed(job, 3)
    job.kill(1)
    job.look_after_one(0)  # before the other one is back
    status = job.status(0)
    assert "ps-1, which keeps it, cannot be reached" in status.unprotected
    assert (status.absences, status.wants_checkpoint) == (1, False)
    job.start(1)
    job.meet(1)
    pushed(job, 2)
    job.same()
    assert job.status(1).unprotected == ""
    job.look_after_one(0)
    status = job.status(0)
    assert (bool(status.unprotected), status.wants_checkpoint) == (True, True)
    pushed(job, 2)  # are in the new log, which stands on nothing yet
    job.checkpoint("complete")
    assert job.status(0).unprotected
    job.checkpoint()
    status = job.status(0)
    assert (status.unprotected, status.absences) == ("", 1)
    assert status.absent_seconds > 0
    pushed(job, 2)
    job.kill(0)
    job.start(0)
    job.meet(0)
    job.same()
    assert lost(job.servers[0]) == 0


def test_a_server_that_was_started_again_unseen_is_found_out(world):
    job = world(2)
    pushed(job, 2)
    job.checkpoint()
    job.kill(1)
    job.start(1)
    job.look_after_one(0)
    assert "ps-1, which keeps it, cannot be reached" in job.status(0).unprotected
    # Nothing came after the checkpoint: a new log protects at once.
    job.look_after_one(0)
    assert job.status(0).unprotected == ""
    assert not job.status(0).wants_checkpoint


@pytest.mark.parametrize("servers", [1, 2])
def test_a_full_log_makes_pushes_wait_for_a_checkpoint(world, servers):
    job = world(servers, bound=2000)
    with pytest.raises(WireError, match=r"NOT_READY.*--log-mb.*checkpoint"):
        pushed(job, 100)
    sizes = [job.status(index).log_bytes for index in range(servers)]
    assert all(1000 < size <= 2000 for size in sizes)
    if servers == 2:
        assert [job.status(index).held_log_bytes for index in (1, 0)] == sizes
    assert all(job.status(index).wants_checkpoint for index in range(servers))
    job.checkpoint()
    for index in range(servers):
        status = job.status(index)
        assert (status.log_bytes, status.held_log_bytes, status.wants_checkpoint) == (0, 0, False)
    pushed(job, 1)


def test_a_log_that_grows_asks_for_a_checkpoint_once_it_has_as_much_as_the_tables(world):
    job = world(1, bound=2000, grows=True)

    def asks():
        status = job.status(0)
        tables = sum(each.memory_bytes for each in status.tables)
        assert status.wants_checkpoint == (status.log_bytes > max(1000, tables))
        return status.wants_checkpoint

    while not asks():
        pushed(job, 1)
    assert job.status(0).log_bytes > 2000
    job.checkpoint()
    assert not asks()
    pushed(job, 9)
    job.kill(0)
    job.start(0)
    assert not asks()
    job.same()


def test_rows_that_are_loaded_are_protected_by_a_checkpoint(world):
    job = world(1)
    ids = np.arange(5, dtype=np.int64)
    header = pb.AssignRowsRequest(routing_epoch=1)
    frame = frames.encode(header, [ids, np.ones((5, DIM), np.float32)])
    for _ in range(2):
        job.call(0, methods.ASSIGN_ROWS, frame)
    job.twin[0].assign_rows(frame)
    status = job.status(0)
    assert "rows were loaded" in status.unprotected
    assert (status.absences, status.wants_checkpoint) == (1, True)
    pushed(job, 1)
    job.checkpoint()
    pushed(job, 1)
    job.kill(0)
    job.start(0)
    job.same()


def test_a_push_that_is_refused_is_not_logged(world):
    job = world(2)
    pushed(job, 1)
    before = job.status(0).log_bytes
    ids = np.arange(40, dtype=np.int64)
    other = ids[job.routing.owners[native_ids.slot_of(ids)] == 1]
    with pytest.raises(WireError, match="NOT_OWNER"):
        job.call(0, methods.PUSH, job._frame(0, 1, 9, other, 1, random.Random(1)))
    header = pb.PushRequest(
        identity=pb.PushIdentity(worker=1, sequence=9), routing_epoch=1, has_dense=True
    )
    frame = frames.encode(header, [np.zeros(99, np.float32)] * 2)
    with pytest.raises(WireError, match="BAD_REQUEST"):
        job.call(0, methods.PUSH, frame)
    assert job.status(0).log_bytes == before


def test_an_incarnation_whose_log_was_taken_over_ends(world):
    job = world(2)
    pushed(job, 2)
    old, address = job.servers[0], job.addresses[0]
    job.addresses[0], grpc_server, connection = "", job.grpc[0], job.connections[0]
    job.start(0)
    job.meet(0)
    job.same()
    frame = job._frame(0, 2, 1, np.zeros(0, np.int64), 2, random.Random(1))
    with pytest.raises(WireError, match=r"NOT_READY.*incarnation 1 writes its log"):
        connection.call(methods.PUSH, frame, patience=0.0)
    assert old.stopped.is_set()
    grpc_server.stop(None).wait()
    connection.close()
    assert address != job.addresses[0]
    pushed(job, 2)
    job.same()


def test_a_job_that_was_resumed_does_not_do_an_older_log_again(world):
    for servers in (1, 2):
        job = world(servers)
        pushed(job, 2)
        job.checkpoint()
        pushed(job, 2)
        for index in range(servers):
            job.kill(index)
        for index in range(servers):
            job.start(index, replay=False)
        assert [server.model.version for server in job.servers] == [2] * servers
        # Nor does one that dies before its new log has begun.
        job.kill(0)
        job.start(0)
        assert job.servers[0].model.version == 2


def test_a_checkpoint_that_is_complete_late_leaves_a_newer_log_as_it_is(world, monkeypatch):
    """The log is lost, and begun anew, while the server lets go of the old one's entries."""
    job = world(2)
    pushed(job, 3)
    job.checkpoint("complete")
    drop = peer_sink.PeerSink.drop

    def late(sink, *arguments):
        monkeypatch.undo()
        if sink is job.logs[0]._sink:
            job.servers[1].held_logs._logs.pop(0)  # as if its keeper had been started again
            job.look_after_one(0)
            assert job.status(0).unprotected
            pushed(job, 2)  # in no log and in no checkpoint
            job.look_after_one(0)
        drop(sink, *arguments)

    monkeypatch.setattr(peer_sink.PeerSink, "drop", late)
    monkeypatch.setattr(faults, "point", job.faults.point)
    job.call(0, methods.COMPLETE_CHECKPOINT, pb.CompleteCheckpointRequest(**job.attempt))
    pushed(job, 4)  # in the newer log
    job.kill(0)
    job.start(0)
    job.meet(0)
    # Four entries without the two before them would be another model, and no loss be told.
    assert job.servers[0].model.version == 3
    assert lost(job.servers[0]) == 2 + 4


def test_rows_of_restore_from_are_in_no_log_that_begins_with_the_model(world, tmp_path):
    """A server that has them from elsewhere would be without them when its log is done again."""
    job = world(1)
    pushed(job, 3)
    job.checkpoint()
    job.kill(0)
    sources = Sources(saved=str(job.root.location))
    server = ParameterServer(0, job.routing, sources=sources)
    sink = file_sink.FileSink(tmp_path / "another", 0, 1, sync=False)
    bases, begin = [], sink.begin
    sink.begin = lambda base: (
        bases.append(pb.LogBase.FromString(base.SerializeToString())),
        begin(base),
    )
    log = server.keep_log(sink, 1, LogSpace(1 << 30), server.stopped.set)
    server.registration.restore(pb.RestoreReply(again=True))
    request = pb.RegisterRequest(model=SPEC)
    while True:
        try:
            server.registration.register(request)
        except WireError as error:
            if error.kind != pb.NOT_READY:
                raise
        else:
            break
    job.initialize(0, server.registration.initialize_dense)
    assert len(server.model.tables[0]) == len(job.twin[0].model.tables[0])
    assert [base.HasField("model") for base in bases] == [False]
    status = server.status(pb.ServerStatusRequest())
    # The checkpoint that it asks for follows at once: no reason for a warning yet.
    assert (status.unprotected, status.absences, status.wants_checkpoint) == ("", 0, True)
    log.look_after()
    sink.close()


def test_who_writes_on_in_a_log_after_a_checkpoint_has_its_keeper_let_go_of_what_is_in_it(world):
    """L6: nobody had told the server that the checkpoint is complete."""
    job = world(2)
    pushed(job, 3)
    job.checkpoint("complete")
    pushed(job, 2)
    job.kill(0)
    job.start(0)
    job.meet(0)
    job.same()
    assert job.servers[0].model.version == 5
    status = job.status(0)
    assert status.log_bytes > 0
    assert job.status(1).held_log_bytes == status.log_bytes
    assert [step for step, _ in job.servers[1].held_logs._logs[0].entries()] == [4, 5]


def test_nothing_is_kept_of_checkpoints_that_were_given_up(world):
    job = world(2)
    pushed(job, 1)
    for _ in range(5):
        job.checkpoint("begun")
        for index in (0, 1):
            job.call(index, methods.DROP_CHECKPOINT, pb.DropCheckpointRequest(**job.attempt))
    assert [log._cuts._noted for log in job.logs] == [{}, {}]
    job.checkpoint()
    assert job.status(0).log_bytes == 0


# ---------------------------------------------------------------- the file


@pytest.mark.slow
def test_what_was_being_written_when_the_server_died_is_left_out(world):
    """The file cut at every byte: what is whole comes back, and nothing else."""
    job = world(1)
    (log,) = job.logs
    sizes, (segment,) = [], log._sink._segments()
    draw = random.Random(3)
    for ids in numbers(3):
        sizes.append(segment.stat().st_size)
        job.push(0, ids, draw)
    job.kill(0)
    whole = segment.read_bytes()
    for length in range(sizes[0], len(whole), 7):
        segment.write_bytes(whole[:length])
        job.start(0)
        assert job.servers[0].model.version == sum(length >= size for size in sizes) - 1
        job.kill(0)
        for other in log._sink._segments()[1:]:
            other.unlink()
    segment.write_bytes(whole)
    job.start(0)
    job.same()


def test_a_damaged_file_gives_what_is_before_the_damage_and_the_rest_is_counted(world):
    job = world(1)
    (log,) = job.logs
    pushed(job, 2)
    (segment,) = log._sink._segments()
    size = segment.stat().st_size
    pushed(job, 4)
    data = bytearray(segment.read_bytes())
    data[size + 60] ^= 1
    job.kill(0)
    segment.write_bytes(data)
    job.start(0)
    # By this one's log, which goes on in a segment of its own.
    job.kill(0)
    job.start(0)
    job.meet(0)
    assert job.servers[0].model.version == 2
    assert lost(job.servers[0]) == 4


def test_a_disk_that_cannot_be_written_is_said_and_training_goes_on(world, monkeypatch):
    job = world(1)
    pushed(job, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(file_sink.os, "writev", full)
        pushed(job, 1)
        assert "No space left on device" in job.status(0).unprotected
        job.look_after()
        assert not job.status(0).wants_checkpoint
    job.look_after()
    assert job.status(0).wants_checkpoint
    job.checkpoint()
    assert job.status(0).unprotected == ""
    pushed(job, 1)
    job.kill(0)
    job.start(0)
    job.same()


@pytest.mark.slow
def test_pushes_of_several_workers_at_once_are_each_applied_once(world):
    """Servers are killed beside pushes, whose threads go on in the dead one for a moment.

    Workers push until there were deaths enough, however late those come.
    """
    job = world(2)
    chosen = {worker: numbers(4000, seed=worker) for worker in range(3)}
    done, enough = Counter(), threading.Event()

    def deliver(index, worker, sequence, frame):
        while True:
            try:
                job.call(index, methods.PUSH, frame)
            except (RuntimeError, PeerUnavailableError):
                time.sleep(0.01)
            except WireError as error:
                if error.kind not in (pb.NOT_REGISTERED, pb.NOT_READY):
                    raise
                time.sleep(0.01)
            else:
                job.sequences[worker, index] = sequence
                return

    def work(worker):
        draw = random.Random(worker)
        for sequence, ids in enumerate(chosen[worker], 1):
            owner = job.routing.owners[native_ids.slot_of(ids)]
            for index in (0, 1):
                frame = job._frame(index, worker, sequence, ids[owner == index], 0, draw)
                deliver(index, worker, sequence, frame)
            done[worker] += 1
            if sequence >= 45 and enough.is_set():
                return

    threads = [threading.Thread(target=work, args=(worker,)) for worker in chosen]
    for thread in threads:
        thread.start()
    draw = random.Random(3)
    while any(thread.is_alive() for thread in threads):
        job.look_after()
        if any(job.status(index).wants_checkpoint for index in (0, 1)):
            job.checkpoint()
        before = done.total()
        if [job.status(index).unprotected for index in (0, 1)] == ["", ""]:
            victim = draw.randrange(2)
            job.kill(victim)
            job.start(victim)
            job.meet(victim)
            if sum(job.incarnations) >= 3:
                enough.set()
        while done.total() < before + 9 and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert enough.is_set()
    pushed = [ids for worker, count in done.items() for ids in chosen[worker][:count]]
    expected = Counter(int(i) for ids in pushed for i in ids)
    rows = content(job.servers[0].model)[0] | content(job.servers[1].model)[0]
    assert {i: row[-1] for i, row in rows.items()} == expected
    assert [server.model.version for server in job.servers] == [done.total()] * 2
    assert [lost(server) for server in job.servers] == [0, 0]
