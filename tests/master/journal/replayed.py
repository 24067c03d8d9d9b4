"""A journal of a real master, done again from its beginning."""

from shoal.errors import UserError
from shoal.master.journal.events import RecordedJob
from shoal.master.journal.reading import read_segments
from shoal.master.journal.state import job_of, usable
from tests.master.random_jobs import differences, state

SHOWN = frozenset({"record", "_record", "memory"})
"""Parts of a job that are of what it heard: they are shown, or ask for what becomes an event."""


def replay_differences(path):
    """Where the states that a journal keeps differ from those that its events lead to.

    Compared after an event, which carries what was heard since the one before it. None where a
    test has damaged the journal, or its job had written none yet.
    """
    found, job = [], None
    try:
        for segment in read_segments(path):
            kept = None
            if job is None:
                job = RecordedJob(segment.header.config, lambda _: None)
            elif usable(segment.header):
                kept = job_of(segment.header)
            for _, entry in segment.entries():
                job.replay([entry.event])
                if kept is not None:
                    kept.replay([entry.event])
                    states = [state(each, skip=SHOWN) for each in (kept, job)]
                    found += differences(*states, f"segment {segment.header.index}")
                    kept = None
    except UserError:
        return None
    return found
