"""Patience with storage, as a worker has it."""

from shoal.worker.reports.progress import Progress
from shoal.worker.storage_patience import StoragePatience


def patience(seconds=60.0, *, known=True, progress=None):
    return StoragePatience(seconds, progress or Progress(), known=known)
