"""What a journal says is what the job was, and nothing but a whole journal is believed."""

from __future__ import annotations

import json
import sqlite3
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.master.events import Event, RecordedJob, decode, encode
from shoal.master.ids import Start
from shoal.master.instructions import AdoptProcess, FenceWorker, KillProcess
from shoal.master.journal import Journal, read
from shoal.master.outcomes import DataDescribed, Done
from shoal.master.work import Source
from tests.master.random_jobs import RandomJob, differences, state
from tests.master.strategies import config, exited, finish_next, take, w

SOMETIMES_UNTOLD = frozenset(
    {"done", "_trained_once", "_repeated", "version", "_clocks", "_slowest", "_training", "state"}
)
"""What workers tell between two events, and again after a restart."""


def replayed(configuration, events):
    """The job of a journal with these events, through the text that would be on disk."""
    job = RecordedJob(configuration, lambda event: None)
    replay(job, events)
    return job


def replay(job, events):
    texts = [json.dumps(vars(event)) for event in events]
    job.replay(Event(**json.loads(text)) for text in texts)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 250),
    every=st.sampled_from((0, 7)),
    sync=st.booleans(),
)
def test_replaying_any_prefix_gives_the_job_that_was(seed, steps, every, sync):
    configuration = config(
        num_workers=3,
        num_ps=2,
        num_epochs=2,
        validation_data="v",
        output="o",
        evaluation_steps=every,
        staleness_bound=-1 if sync else 2,
        sync=sync,
        grads_to_wait=2 if sync else 0,
        relaunch_limit=5,
        max_bad_records=2,
        seed=seed % 100,
    )
    world = RandomJob(configuration, seed)
    again = replayed(configuration, [])
    for _ in range(steps):
        before = len(world.events)
        world.step()
        new = world.events[before:]
        replay(again, new)
        # A worker's first call after an event makes it alive, and is no event.
        skip = frozenset({"state"}) if new else SOMETIMES_UNTOLD
        assert differences(state(again, skip=skip), state(world.job, skip=skip)) == []


def test_values_survive_their_text():
    values = [exited(w(1), 2), DataDescribed((Source("a", 3),)), {"auc": float("inf")}, (None, 1.5)]
    for value in values:
        assert decode(json.loads(json.dumps(encode(value)))) == value


EVENT = Event("begin", 1.5)


@pytest.fixture
def journal(tmp_path):
    """A journal of three events, closed; its path."""
    path = tmp_path / "journal.sqlite"
    opened = Journal(path, config())
    for index in range(3):
        opened.add(Event("stop", float(index), {"reason": f"reason {index}"}))
    opened.close()
    return path


def test_events_come_back_and_more_can_be_added(journal):
    again = Journal(journal, config())
    assert [e.event.arguments["reason"] for e in again.entries] == [f"reason {i}" for i in range(3)]
    again.add(EVENT)
    again.close()
    stored, entries = read(journal)
    assert stored == config()
    assert entries[-1].event == EVENT
    assert len(entries) == 4


def test_many_threads_wait_for_few_transactions(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.sqlite", config())
    batches = []
    write = journal._write
    monkeypatch.setattr(journal, "_write", lambda batch: (batches.append(len(batch)), write(batch)))
    together = threading.Barrier(8)

    def work():
        together.wait()
        for _ in range(20):
            journal.add(EVENT)
            journal.commit()
            assert not journal._pending or journal._writing.locked() or together.n_waiting == 0

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert sum(batches) == 160
    assert len(read(journal.path)[1]) == 160


def test_a_journal_whose_first_transaction_never_ended_is_begun_again(tmp_path):
    path = tmp_path / "journal.sqlite"
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=WAL")
    database.close()
    journal = Journal(path, config())
    journal.add(EVENT)
    journal.close()
    assert len(read(path)[1]) == 1


def change(path, *statements):
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()


DAMAGES = {
    "a changed event": lambda path: change(
        path, "UPDATE events SET body = replace(body, 'reason 1', 'reason 9') WHERE number = 2"
    ),
    "a missing event": lambda path: change(path, "DELETE FROM events WHERE number = 2"),
    "a changed configuration": lambda path: change(
        path,
        "UPDATE job SET configuration = replace(configuration, '256', '512')",
        "UPDATE job SET configuration = replace(configuration, 'test', 'best')",
    ),
    "another format": lambda path: change(path, "PRAGMA user_version=99"),
    "another program's": lambda path: change(path, "PRAGMA application_id=1"),
    "no database": lambda path: path.write_text("no database at all, but some text " * 99),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_journal_is_refused_by_name(journal, damage):
    DAMAGES[damage](journal)
    with pytest.raises(UserError, match=str(journal)):
        Journal(journal, config())


def test_another_jobs_journal_is_refused(journal):
    with pytest.raises(UserError, match=f"{journal} is the journal of a job with another"):
        Journal(journal, config(seed=5))


def test_an_event_that_leads_elsewhere_is_refused():
    with pytest.raises(UserError, match="cannot be done again"):
        replayed(config(), [EVENT, Event("task_wanted", 2.0, {"worker": encode(w(0))})])
    with pytest.raises(UserError, match="unheard_of"):
        replayed(config(), [Event("unheard_of", 2.0)])


def test_a_new_master_finds_what_was_under_way():
    events = []
    job = RecordedJob(config(num_workers=3, num_ps=1), events.append)
    job.begin(0.0)
    (server,) = job.members.servers
    job.server_registered(server, 0, "host:1", 0.0)
    for worker in job.members.workers:
        job.worker_registered(worker, 0, 0.0)
    finish_next(job, w(0), DataDescribed(training=(Source("t", 40),)))
    held = {worker: take(job, w(worker)) for worker in range(3)}
    job.process_exited(exited(w(1)), 2.0)  # is to be fenced
    job.taken_for_dead(w(2), 0, "silence", 3.0)  # is to be killed and fenced

    again = replayed(config(num_workers=3, num_ps=1), events)
    again.master_restarted(100.0)
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
    again.task_reported(w(0), 0, held[0].id, Done(), 1, 111.0)
    assert again.flow.work.ledger.trained_once == 10
