"""Batches of evaluation and prediction with what the model needs for them, pulled ahead.

Owns two threads: one reads, one pulls, while the caller computes. Training has its own stages
(training/pipeline.py), as its pulls wait for pushes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

from shoal.worker.attribution import attributing
from shoal.worker.engines.engine import StepInputs
from shoal.worker.input.batch import Batch
from shoal.worker.input.channel import read_ahead
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress


def pulled_ahead(
    batches: Iterator[Batch], model: ServedModel, progress: Progress
) -> Generator[tuple[Batch, StepInputs], None, None]:
    """The batches, each with the servers' values of some moment since the first was asked for.

    To be closed, which ends the threads. What reading or pulling raises is raised in its place,
    with the records that a pull was for.
    """

    def pulled() -> Iterator[tuple[Batch, StepInputs]]:
        with closing(read_ahead(batches, None)) as read:
            for batch in read:
                with progress.watch.doing("the pull", batch.records), attributing(batch.records):
                    inputs = model.pull_inputs(batch.features)
                yield batch, inputs

    return read_ahead(pulled(), None, "pull")
