"""A job's state as bytes, as every Python that shoal runs on has it."""

import enum

from shoal.master.job.members.members import ProcessState
from shoal.master.journal import state
from shoal.master.journal.events import RecordedJob
from shoal.master.work.phases import Phase
from tests.master.strategies import config


def test_a_state_can_be_read_where_enums_would_be_pickled_by_name(monkeypatch):
    # As Python 3.11.0 to 3.11.3 do for all enums.
    for kind in (Phase, ProcessState):
        monkeypatch.setattr(kind, "__reduce_ex__", enum.pickle_by_enum_name)
    job = RecordedJob(config(), lambda _: None)
    job.begin(0.0)
    again = state.load(state.dump(job), lambda _: None)
    assert again.phases.phase is job.phases.phase
