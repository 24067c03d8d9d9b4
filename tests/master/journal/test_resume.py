"""A resumed job's ledger is what its model holds, whenever it was killed and resumed.

Workers and servers are played by the test, which knows of each server how often it has
applied each record: what the audit says is compared with that.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import UserError
from shoal.master.journal.resume import _refuse_unknown
from shoal.master.work.accounts.applied import LastPush
from shoal.master.work.outcomes import DataDescribed
from shoal.master.work.units import Source
from tests.master.journal.resumed_world import World
from tests.master.strategies import begun, take, w


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    logs=st.booleans(),
    kills=st.lists(st.integers(5, 200), max_size=3),
    bad=st.sampled_from(((), (("a", 5),), (("a", 0), ("b", 8)), (("a", 10), ("a", 11), ("b", 2)))),
)
def test_the_ledger_is_what_the_model_holds(seed, logs, kills, bad):
    world = World(seed, bad, logs=logs)
    report = world.report_at_the_end(kills, 5000)
    if world.job.phases.phase.state == "failed":
        return  # workers died too often
    first, second = (server.applied for server in world.servers)
    left = 64 - 2 * len(bad)
    assert len(first) == len(second) == left == report.records["once"] + report.records["more"]
    assert report.records["failed"] == 2 * len(bad)
    repeated = [record for record in first if first[record] > 1 or second[record] > 1]
    # A record that the ledger takes for trained once was applied once, everywhere.
    assert len(repeated) <= report.records["more"]
    assert min(first.values()) >= 1
    assert min(second.values()) >= 1


def test_a_push_after_a_task_whose_report_is_missing_is_refused_by_name():
    job = begun(DataDescribed((Source("t", 80),)))
    task = take(job, w(0))
    ahead = job.task_ahead_wanted(w(0), 0, task.id, 1.0)
    of_task = LastPush(w(0), 0, 2, task.id, 10)
    _refuse_unknown(job, ((of_task,),))
    after = LastPush(w(0), 0, 3, ahead.id, 5)
    missing = rf"journal's end is missing: worker-0\.0 has pushed .* after task {task.id}, and"
    with pytest.raises(UserError, match=missing):
        _refuse_unknown(job, ((of_task,), (after,)))
