"""Keeping, beside a job's checkpoints, which sources it and its forerunners have trained."""

from __future__ import annotations

import logging

from shoal.checkpoints.storage import open_storage
from shoal.checkpoints.trained import Trained, read_trained, write_trained
from shoal.errors import UserError
from shoal.master.data_index import DataIndex
from shoal.master.job.job import Job
from shoal.master.work.phases import Phase

logger = logging.getLogger(__name__)

ENDED_WELL = (Phase.SUCCEEDED, Phase.DEGRADED)


def keep_trained(job: Job, index: DataIndex) -> None:
    """Write what a job has trained, if it has come to its end and has a checkpoint.

    Before its result is written: who finds that finds this. A failure is logged: then --only-new
    cannot follow this job, and says so.
    """
    config = job.config
    if config.command != "train" or job.phases.phase not in ENDED_WELL:
        return
    if not job.checkpoints.kept.all:
        return
    sources: dict[str, Trained] = {}
    if config.continue_from:
        try:
            sources = read_trained(config.continue_from)
        except UserError as error:
            logger.info("what was trained before this job is not known: %s", error)
    stamps = index.stamps("training")
    for source in job.work.board.sources:
        sources[source.name] = Trained(stamps.get(source.name, ""), config.job_name)
    try:
        write_trained(open_storage(config.checkpoint_dir), config.job_id, sources)
    except OSError as error:
        logger.warning("%s: %s; --only-new cannot follow this job", config.checkpoint_dir, error)
