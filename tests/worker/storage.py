"""Patience with storage, as a worker has it."""

from shoal.files.patience import Patience
from shoal.worker.reports.progress import Progress


def patience(seconds=60.0, *, known=True, progress=None):
    return Patience(
        seconds, progress or Progress(), lambda trouble: trouble.may_be_mistake and not known
    )
