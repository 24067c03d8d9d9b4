"""Keeping, beside a job's checkpoints, which sources it and its forerunners have trained."""

from __future__ import annotations

import logging

from shoal.checkpoints.storage import open_storage
from shoal.checkpoints.trained import Trained, read_trained, write_trained
from shoal.errors import UserError
from shoal.master.data_index import DataIndex
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob

logger = logging.getLogger(__name__)


def keep_trained(shared: SharedJob, index: DataIndex) -> None:
    """Write what a job has trained, if it has come to its end and has a checkpoint.

    Before its result is written: who finds that finds this. A failure is logged: then --only-new
    cannot follow this job, and says so.
    """
    # Storage may be slow: the job is not held meanwhile.
    trained = shared.look(lambda job, _: _trained(job))
    if trained is None:
        return
    config = shared.config
    sources: dict[str, Trained] = {}
    if config.continue_from:
        try:
            sources = read_trained(config.continue_from)
        except UserError as error:
            if config.leaves_out_trained:
                # It was known as the job began. A list without it would have the next job train
                # all of that again; without a list that job is refused.
                logger.warning("%s; --only-new cannot follow this job", error)
                return
            logger.info("what was trained before this job is not known: %s", error)
    stamps = index.stamps("training")
    for name in trained:
        sources[name] = Trained(stamps.get(name, ""), config.job_name)
    try:
        write_trained(open_storage(config.checkpoint_dir), config.job_id, sources)
    except OSError as error:
        logger.warning("%s: %s; --only-new cannot follow this job", config.checkpoint_dir, error)


def _trained(job: Job) -> list[str] | None:
    """The sources that a job has trained, if another one can continue from it."""
    complete = job.config.command == "train" and job.phases.phase.complete
    if not complete or not job.checkpoints.kept.all:
        return None
    return [source.name for source in job.work.board.sources]
