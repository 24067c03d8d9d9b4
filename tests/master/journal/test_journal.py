"""What a journal says is what the job was, and nothing but a whole journal is believed."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import threading
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.master.job.events import (
    JobBegun,
    MasterRestarted,
    Noted,
    ServerRegistered,
    TakenForDead,
    TaskReported,
    TaskWanted,
    TrainingAllowed,
    WorkerFenced,
    WorkerRegistered,
)
from shoal.master.job.instructions import AdoptProcess, FenceWorker, KillProcess
from shoal.master.journal import journal as journals
from shoal.master.journal import records, segments
from shoal.master.journal import state as states
from shoal.master.journal.events import Entry, RecordedJob, decode, encode
from shoal.master.journal.journal import Journal, JournalError, StalledError
from shoal.master.journal.reading import read, read_segments
from shoal.master.journal.records import Header
from shoal.master.journal.segments import Segment
from shoal.master.work.ids import Start
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.examples import examples
from tests.master.random_jobs import RandomJob, differences, plain, state
from tests.master.strategies import config, exited, finish_next, register, take, w

SOMETIMES_UNTOLD = frozenset(
    {"done", "_trained_once", "_repeated", "version", "_clocks", "_slowest", "_training", "_at"}
    | {"acknowledged", "_acknowledged", "count"}
)
"""What workers tell between two events, and again after a restart."""


def replayed(configuration, events):
    """The job of a journal with these events, through the text that would be on disk."""
    job = RecordedJob(configuration, lambda event: None)
    replay(job, events)
    return job


def of_a_random_job(seed, sync, **fields):
    """The configuration of a job in which anything may happen."""
    arrives = seed % 4 == 1
    return config(
        workers="3",
        servers="2",
        arriving=float(arrives),
        until_idle=20.0 * arrives,
        output="o",
        staleness_bound=-1 if sync else 2,
        sync=sync,
        grads_to_wait=2 if sync else 0,
        max_bad_records=2,
        seed=seed % 100,
        evaluate_first=seed % 3 == 0 and not arrives,
        continue_from="" if seed % 3 else "/before/checkpoint-00000001",
        **{"relaunch_limit": 5, "validation_data": "v", "epochs": 1 if arrives else 2} | fields,
    )


PROGRESSIVE = {
    "validation_data": "",
    "epochs": 1,
    "progressive_steps": 1,
    "progressive_window": 12,
}


def replay(job, events):
    job.replay(map(plain, events))


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 250),
    every=st.sampled_from((0, 7)),
    sync=st.booleans(),
    progressive=st.booleans(),
)
def test_replaying_any_prefix_gives_the_job_that_was(seed, steps, every, sync, progressive):
    evaluates = PROGRESSIVE if progressive else {"evaluation_steps": every}
    configuration = of_a_random_job(seed, sync, **evaluates)
    world = RandomJob(configuration, seed)
    again = replayed(configuration, [])
    for _ in range(steps):
        before = len(world.events)
        world.step()
        new = world.events[before:]
        replay(again, new)
        # How the repeated records were told, in one piece or several, is not kept.
        skip = frozenset({"repeats"}) if new else SOMETIMES_UNTOLD | {"repeats"}
        assert differences(state(again, skip=skip), state(world.job, skip=skip)) == []


def test_values_survive_their_text():
    values = [
        exited(w(1), 2),
        DataDescribed((Source("a", 3, ((1, 3),)),)),
        {"auc": float("inf")},
        MetricsComputed({"m": 0.5}, slices=(pb.SliceMetrics(feature="f", value="v", auc=0.5),)),
        (None, 1.5),
    ]
    for value in values:
        assert decode(json.loads(json.dumps(encode(value)))) == value


@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 200),
    every=st.integers(1, 30),
    sync=st.booleans(),
)
def test_a_journal_with_segments_that_begin_anywhere_gives_the_job_that_was(
    tmp_path_factory, seed, steps, every, sync
):
    """every: events in a segment."""
    path = tmp_path_factory.mktemp("job") / "journal"
    configuration = of_a_random_job(seed, sync, evaluation_steps=7, min_workers=1 + seed % 3)
    world = RandomJob(configuration, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "SEGMENT_EVENTS", every)
        journal = Journal(path, configuration)
        world.adopt(journal.restore())
        for _ in range(steps):
            before = journal._added
            world.step()
        told = journal._added > before
        live = state(world.job, skip=frozenset() if told else SOMETIMES_UNTOLD)
        journal.close()
        again = Journal(path, configuration)
        restored = again.restore()
        skip = frozenset() if told else SOMETIMES_UNTOLD
        assert differences(state(restored, skip=skip), state(world.job, skip=skip)) == []
        assert live is not None
        again.close()
    stored, entries = read(path)
    assert list(entries) == [plain(event) for event in world.events]
    assert len(segments.segments(path)) == 1 + len(world.events) // every
    assert stored == configuration


EVENT = Entry(JobBegun(), 1.5)
SEGMENT_AT = 3


@pytest.fixture
def journal(tmp_path):
    """A closed journal of three segments of three events each, but for the last; its folder."""
    path = tmp_path / "journal"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journals, "SEGMENT_EVENTS", SEGMENT_AT)
        opened = Journal(path, config())
        job = opened.restore()
        for index in range(8):
            job.on(Noted(f"reason {index}"), float(index))
        opened.close()
    return path


def files(journal):
    return sorted(path.name for path in journal.iterdir())


def test_events_come_back_and_more_can_be_added(journal):
    assert files(journal) == ["000001.journal.gz", "000002.journal.gz", "000003.journal"]
    again = Journal(journal, config())
    assert (again.begun, again.position.number) == (True, 8)
    again.restore()
    again.add(EVENT)
    again.close()
    stored, entries = read(journal)
    *reasons, last = entries
    assert stored == config()
    assert [each.event for each in reasons] == [Noted(f"reason {i}") for i in range(8)]
    assert last == EVENT


@pytest.mark.parametrize("reading", [1, 2, 3])
def test_a_journal_is_whole_for_who_reads_while_a_segment_begins(tmp_path, monkeypatch, reading):
    """`events` more were written each time that a segment had just been read."""
    monkeypatch.setattr(journals, "SEGMENT_EVENTS", SEGMENT_AT)
    path = tmp_path / "journal"
    opened = Journal(path, config())
    job = opened.restore()
    written = 0

    def write(events):
        nonlocal written
        for _ in range(events):
            job.on(Noted(f"reason {written}"), float(written))
            written += 1
        opened.commit()

    reads = 0

    class Overtaken(Segment):
        def __init__(self, path):
            nonlocal reads
            super().__init__(path)
            reads += 1
            if reads == reading:
                write(5)

    write(2)
    monkeypatch.setattr(journals, "Segment", Overtaken)
    found = [entry.event.text for entry in read(path)[1]]
    opened.close()
    assert found == [f"reason {index}" for index in range(len(found))]
    assert len(found) >= 2


def test_a_new_master_reads_the_newest_segment_alone(journal):
    (journal / "000001.journal.gz").write_bytes(b"damaged")
    opened = Journal(journal, config())
    messages = opened.restore().record.messages
    opened.close()
    assert [text.split(": ")[-1] for text in messages] == [f"reason {i}" for i in range(8)]
    with pytest.raises(UserError, match=r"000001\.journal\.gz"):
        read(journal)


def record_to_come(payload, before):
    """As records.record_of, of a version whose events have another form."""
    payload, number = b'{"method":"to_come"}', before.number + 1
    checksum = records.chained(number, payload, before.checksum)
    after = records.Position(before.journal, number, checksum)
    return records.record_bytes(records.EVENT, number, checksum, payload), after


@pytest.mark.parametrize("writer", ["9.9.9 abcd", ""])
def test_a_whole_segment_of_another_version_names_the_version(tmp_path, monkeypatch, writer):
    monkeypatch.setattr(states, "version", lambda: writer)
    newer = config().to_json().replace("{", '{"flag_to_come": 1, ', 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(config()), "to_json", lambda self: newer)
        with pytest.raises(UserError, match="flag_to_come"):  # as it is read at once
            Journal(tmp_path / "header", config())
    events = Journal(tmp_path / "events", config())
    with monkeypatch.context() as patch:
        patch.setattr(records, "record_of", record_to_come)
        events.add(EVENT)
        events.commit()
    events.close()
    for folder in ("header", "events"):
        which = f"shoal {writer}" if writer else "another version of shoal"
        with pytest.raises(UserError, match=f"000001.journal was written by {which}, ") as refused:
            list(read(tmp_path / folder)[1])
        assert "damaged" not in str(refused.value)


def test_a_state_of_another_version_is_not_used(journal, monkeypatch):
    monkeypatch.setattr(states, "version", lambda: "another")
    opened = Journal(journal, config())
    messages = opened.restore().record.messages
    opened.close()
    assert len(messages) == 8


def test_many_threads_wait_for_few_syncs(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal", config())
    units = []
    write = journal._write
    monkeypatch.setattr(journal, "_write", lambda unit: (units.append(unit.events), write(unit)))
    together, adding = threading.Barrier(8), threading.Lock()

    def work():
        together.wait()
        for _ in range(20):
            with adding:
                journal.add(EVENT)
            journal.commit()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert sum(units) == 160
    assert len(list(read(journal.path)[1])) == 160


@pytest.mark.parametrize("left", [1, 7, 24, 25, 40, -1])
def test_what_was_being_written_is_cut(journal, left):
    path = journal / "000003.journal"
    whole = path.read_bytes()
    opened = Journal(journal, config())
    opened.restore()
    opened.add(EVENT)
    opened.close()
    record = len(path.read_bytes()) - len(whole)
    kept = path.read_bytes()[: len(whole) + left % record]
    path.write_bytes(kept)
    assert len(list(read(journal)[1])) == 8  # also for those who only read
    again = Journal(journal, config())
    again.restore()
    assert again.position.number == 8
    again.add(EVENT)
    again.close()
    assert len(list(read(journal)[1])) == 9


@pytest.mark.parametrize("zeros", [1, 25, 5000])
def test_blocks_that_were_never_written_are_cut(journal, zeros):
    path = journal / "000003.journal"
    path.write_bytes(path.read_bytes() + bytes(zeros))
    again = Journal(journal, config())
    assert again.position.number == 8
    again.close()
    assert len(list(read(journal)[1])) == 8


def test_a_crash_before_the_end_of_a_segment_is_written(journal):
    """The new segment is there, the one before does not say so yet."""
    newest = Segment(journal / "000003.journal")
    opened = Journal(journal, config())
    opened._create(
        Header(config(), 4, newest.last, 1.0, 7.0, states.version(), newest.header.state)
    )
    opened.close()
    again = Journal(journal, config())
    again.restore()
    again.add(EVENT)
    again.close()
    assert len(list(read(journal)[1])) == 9
    assert files(journal)[-2:] == ["000003.journal.gz", "000004.journal"]


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def two_events(path):
    """What comes before the segment's two events, and these."""
    content, segment = path.read_bytes(), Segment(path)
    (first, _), _ = segment._records()
    at = segment._begin + records.HEAD_BYTES + first[1]
    return content[: segment._begin], content[segment._begin : at], content[at:]


def reorder(path):
    """The segment's two events change places."""
    header, first, second = two_events(path)
    path.write_bytes(header + second + first)


def take_out(path):
    """The first event of the segment is gone."""
    header, _, second = two_events(path)
    path.write_bytes(header + second)


def end_of_header(path):
    return Segment(path)._begin


NEWEST = "000003.journal"
DAMAGES = {
    "the head of the last event": (lambda p: flip(p, -150), NEWEST),
    "the last event": (lambda p: flip(p, -9), NEWEST),
    "a length": (lambda p: flip(p, end_of_header(p) + 1), NEWEST),
    "the state": (lambda p: flip(p, end_of_header(p) - 9), NEWEST),
    "the configuration": (lambda p: flip(p, 60), NEWEST),
    "a missing event": (take_out, NEWEST),
    "changed places": (reorder, NEWEST),
    "another format": (lambda p: flip(p, 8), NEWEST),
    "another program's": (lambda p: p.write_bytes(b"SQLite format 3" + bytes(500)), NEWEST),
    "an empty file": (lambda p: p.write_bytes(b""), NEWEST),
    "cut in the header": (lambda p: p.write_bytes(p.read_bytes()[:500]), NEWEST),
    "gone": (lambda p: p.unlink(), NEWEST),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_journal_is_refused_by_name(journal, damage):
    change, name = DAMAGES[damage]
    change(journal / name)
    for opens in (lambda: Journal(journal, config()), lambda: list(read(journal)[1])):
        with pytest.raises(UserError, match=name) as refused:
            opens()
        assert str(journal) in str(refused.value)


@pytest.mark.slow
def test_every_flipped_bit_of_the_newest_segment_is_refused(journal):
    path = journal / NEWEST
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        flip(path, at)
        with pytest.raises(UserError, match=NEWEST):
            Journal(journal, config())
        path.write_bytes(whole)
    Journal(journal, config()).close()


def test_a_segment_that_is_missing_or_another_ones_is_refused(journal):
    """Older segments: a new master needs none of them, whoever reads the history does."""
    older = journal / "000002.journal.gz"
    whole = older.read_bytes()
    older.unlink()
    with pytest.raises(UserError, match=r"000002\.journal is missing"):
        Journal(journal, config())
    older.write_bytes((journal / "000001.journal.gz").read_bytes())
    with pytest.raises(UserError, match=r"000002\.journal\.gz"):
        list(read(journal)[1])
    for at in range(0, len(whole), 29):
        older.write_bytes(whole)
        flip(older, at)
        with contextlib.suppress(UserError):  # gzip has bytes that mean nothing
            assert len(list(read(journal)[1])) == 8


def test_another_jobs_journal_is_refused(journal):
    with pytest.raises(UserError, match=f"{journal} is the journal of a job with another"):
        Journal(journal, config(seed=5))


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_that_does_not_end_is_the_end(tmp_path, monkeypatch, number):
    """F22: nobody spins, nobody is answered, and the reason is told."""
    journal = Journal(tmp_path / "journal", config())
    monkeypatch.setattr(journals.os, "fsync", fails(number))
    journal.add(EVENT)
    for _ in range(2):
        with pytest.raises(JournalError, match=rf"{tmp_path}/journal cannot be written any more"):
            journal.commit()
    with pytest.raises(JournalError):
        journal.close()
    assert journal.position.number == 0


def test_a_full_disk_is_told_and_nobody_waits_longer_than_he_will(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal", config())
    with monkeypatch.context() as full:
        full.setattr(journals.os, "pwrite", fails(errno.ENOSPC))
        journal.add(EVENT)
        with pytest.raises(StalledError, match="No space left"):
            journal.commit(0.0)
        assert "No space left" in journal.trouble[1]
    journal.commit()
    assert journal.trouble == (0.0, "")
    journal.close()
    assert len(list(read(journal.path)[1])) == 1


def fails(number):
    def call(*_):
        raise OSError(number, os.strerror(number))

    return call


def test_the_checksum_of_any_event_is_found(journal):
    opened = Journal(journal, config())
    positions = [p for segment in read_segments(journal) for p, _ in segment.entries()]
    for position in positions:
        assert opened.checksum_at(position.number) == position.checksum
    assert opened.position == positions[-1]
    assert opened.checksum_at(9) is None
    opened.close()


def test_a_state_names_nothing_but_parts_of_a_job():
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    with pytest.raises(UserError, match=r"has no posix\.system"):
        states.load(zlib.compress(pickle.dumps(Evil())), lambda _: None)


def test_an_event_that_leads_elsewhere_is_refused():
    with pytest.raises(UserError, match="cannot be done again"):
        replayed(config(), [EVENT, Entry(TaskWanted(w(7), 0), 2.0)])
    with pytest.raises(UserError, match="now the answer is"):
        replayed(config(), [EVENT, Entry(Noted("a task was leased"), 2.0, task=3)])


def test_training_that_was_allowed_stays_allowed():
    """Who asked when enough were there may have got no task, which is no event."""
    configuration = config(workers="2", min_workers=2)
    events = []
    job = RecordedJob(configuration, events.append)
    register(job, DataDescribed(training=(Source("t", 40),)))
    job.on(exited(w(1)), 1.0)
    job.on(WorkerFenced(w(1), 0, []), 1.5)
    job.on(WorkerRegistered(w(1), 1), 2.0)
    task = take(job, w(0))
    again = replayed(configuration, events)
    assert take(again, w(0)) == task
    assert [each.event for each in events].count(TrainingAllowed()) == 1


def test_a_new_master_finds_what_was_under_way():
    events = []
    job = RecordedJob(config(workers="3", servers="1"), events.append)
    job.on(JobBegun(), 0.0)
    (server,) = job.members.servers
    job.on(ServerRegistered(server, 0, "host:1"), 0.0)
    for worker in job.members.workers:
        job.on(WorkerRegistered(worker, 0), 0.0)
    finish_next(job, w(0), DataDescribed(training=(Source("t", 40),)))
    held = {worker: take(job, w(worker)) for worker in range(3)}
    job.on(exited(w(1)), 2.0)  # is to be fenced
    job.on(TakenForDead(w(2), 0, "silence"), 3.0)  # is to be killed and fenced

    again = replayed(config(workers="3", servers="1"), events)
    again.on(MasterRestarted(), 100.0)
    dead = Start(w(2), 0)
    assert again.take_instructions() == [
        *[AdoptProcess(start) for start in (Start(server, 0), Start(w(0), 0))],
        FenceWorker(w(1), 0),
        *[AdoptProcess(dead), KillProcess(dead), FenceWorker(w(2), 0)],
    ]
    # Nobody was heard while no master was there, and nobody dies of it.
    again.tick(110.0)
    assert again.members.workers_alive == 1
    assert take(again, w(0)) == held[0]
    again.on(TaskReported(w(0), 0, held[0].id, Done(), 1), 111.0)
    assert again.work.ledger.trained_once == 10
