"""Labels of the master's Job that show how the job goes: `kubectl get jobs -L shoal.dev/state`.

Knows no API: masters_job.py sets them, as often as the job's objects are looked after.
"""

from __future__ import annotations

import re
from typing import Any

from shoal.base.words import duration
from shoal.cluster.manifests import LEFT_LABEL, RECORDS_LABEL, STATE_LABEL
from shoal.master.job.job import Job
from shoal.master.work.phases import Phase

Labels = dict[str, str | None]
"""None: there is no such label."""

_WORKS = (Phase.EVALUATING_FIRST, Phase.TRAINING, Phase.EVALUATING, Phase.PREDICTING)


def labels_of(job: Job, _now: float) -> Labels:
    """The labels of a running job."""
    done, total = job.work.records
    rate = job.record.throughput.per_second if job.phases.phase in _WORKS else 0.0
    left = duration((total - done) / rate) if rate > 0 and total > done else ""
    return _shown(job.phases.phase.state, done, total, left)


def labels_of_end(result: dict[str, Any]) -> Labels:
    """The labels of a job that has ended with this result."""
    ledger = result.get("ledger") or {}
    done = result.get("records") or 0
    return _shown(result["state"], done, ledger.get("total") or done, "")


def _shown(state: str, done: int, total: int, left: str) -> Labels:
    """left: a length of time, in words; empty if it is not known."""
    return {
        STATE_LABEL: re.sub("[^A-Za-z]+", "-", state),
        RECORDS_LABEL: f"{done}-of-{total}" if total else None,
        LEFT_LABEL: left.replace(" ", "") or None,
    }
