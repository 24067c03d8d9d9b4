"""A journal grows with its events, not with states of its job, and these with what is under way."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.master.job.events import CheckpointBegun, CheckpointFixed, CheckpointTaken, Taken
from shoal.master.job.members.launcher import Waiting
from shoal.master.journal import journal as journals
from shoal.master.journal import segments
from shoal.master.journal import state as states
from shoal.master.journal.audit import audit
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.journal import Journal, StalledError
from shoal.master.journal.reading import read
from shoal.master.journal.resume import _given_by
from shoal.master.journal.segments import Segment
from shoal.master.work.ids import Start
from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed
from shoal.master.work.units import Source
from shoal.proto import shoal_pb2 as pb
from tests.master.journal.test_journal import fails
from tests.master.random_jobs import differences, plain, state
from tests.master.strategies import config, finish_next, register, take, w

pytestmark = pytest.mark.slow

CHECKPOINTS = 40
FILES = 3_000


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """A function that runs a job of many files and checkpoints in a folder of its own.

    Returns the folder, the configuration and the events.
    """

    def take(name, states_kept):
        monkeypatch.setattr(journals, "STATES", states_kept)
        configuration = config(sync=True, grads_to_wait=1, keep_checkpoint_max=2)
        folder = JobFolder(tmp_path / name)
        folder.path.mkdir()
        journal = Journal(folder.journal, configuration)
        job, events = journal.restore(), []
        job.listen(lambda event: (events.append(plain(event)), journal.add(event)))
        names = random.Random(1)
        files = tuple(Source(names.randbytes(8).hex(), 10) for _ in range(FILES))
        register(job, DataDescribed(training=files))
        for number in range(1, CHECKPOINTS + 1):
            now = float(number)
            finish_next(job, w(0), Done(), now=now)
            job.on(CheckpointBegun(), now)
            job.on(CheckpointFixed(), now)
            job.on(CheckpointTaken(Taken(number, number, 1, 0.1), False), now)
            journal.commit()
        journal.close()
        return folder, configuration, events

    return take


def test_old_segments_of_a_journal_have_no_state(taken):
    folder, _, _ = taken("job", journals.STATES)
    paths = segments.segments(folder.journal)
    assert len(paths) == CHECKPOINTS + 1
    kept = [bool(Segment(path).header.state) for path in paths]
    newest = journals.STATES
    assert kept == [False] * (len(paths) - newest) + [True] * newest
    # The first one has the list of files.
    old, new = ([path.stat().st_size for path in some] for some in (paths[1:-newest], paths[-2:-1]))
    assert max(old) * 10 < min(new)


def test_a_journal_without_old_states_tells_the_same(taken, monkeypatch):
    """As one that has all states: to the audit, a resumption and masters of any version."""
    folder, configuration, events = taken("job", 1)
    whole, _, _ = taken("whole", CHECKPOINTS)
    assert list(read(folder.journal)[1]) == events
    audits = [audit(each) for each in (folder, whole)]
    assert audits[0].records == audits[1].records
    assert audits[0].records["once"] == CHECKPOINTS * 10
    assert audits[0].problems == audits[1].problems == []

    def seen():
        """What a new master has, and resumptions from an old and a new checkpoint."""
        found = []
        for each in (folder, whole):
            journal = Journal(each.journal, configuration)
            numbers = (CHECKPOINTS // 2, CHECKPOINTS)
            # `register` says without an event that there were pushes.
            job = state(journal.restore(), skip=frozenset({"count"}))
            found.append([job, *(_given_by(journal, number) for number in numbers)])
            journal.close()
        assert differences(*found) == []
        return found[0]

    same = seen()
    monkeypatch.setattr(states, "version", lambda: "another")
    assert differences(seen(), same) == []


def test_a_state_of_a_job_has_metric_states_once_and_none_of_rounds_that_are_over():
    job = RecordedJob(config(validation_data="v", evaluation_steps=1), lambda _: None)
    data = DataDescribed(training=(Source("t", 100),), validation=(Source("v", 20),))
    register(job, data)
    values = np.random.default_rng(1).random(20_000)
    metric = pb.MetricState(
        name="m", variables=[pb.DoubleArray(shape=values.shape, values=values)], appended=True
    )
    of_a_task = pb.MetricStates(metrics=[metric])
    sizes = []
    for version in (1, 2, 3):
        finish_next(job, w(0), Done(), version=version)
        before = len(states.dump(job))
        for _ in range(2):
            finish_next(job, w(0), StatesComputed(of_a_task), version=version)
        take(job, w(0))  # which turns them into numbers
        sizes.append((len(states.dump(job)) - before) / (2 * values.nbytes))
        finish_next(job, w(0), MetricsComputed({"m": 0.5}), version=version)
        sizes.append((len(states.dump(job)) - before) / (2 * values.nbytes))
    assert sizes == pytest.approx([1, 0] * 3, abs=0.1)


def test_events_that_wait_for_a_full_disk_begin_one_segment_together(tmp_path, monkeypatch):
    """Each would have a state of the job with it, in memory first and then on disk."""
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 1)
    journal = Journal(tmp_path / "journal", config())
    job = journal.restore()
    with monkeypatch.context() as full:
        full.setattr(journals.os, "pwrite", fails(errno.ENOSPC))
        for number in range(100):
            job.on(Waiting(Start(w(0), 0), f"reason {number}"), float(number))
            with pytest.raises(StalledError):
                journal.commit(0.0)
    journal.close()
    assert len(segments.segments(journal.path)) == 2
    assert len(list(read(journal.path)[1])) == 100
