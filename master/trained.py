"""Keeping, beside a job's checkpoints, which sources it and its forerunners have trained."""

from __future__ import annotations

from shoal.checkpoints.continued import read_trained
from shoal.checkpoints.trained import Trained, TrainedList, write_trained
from shoal.errors import UserError
from shoal.files.described import DescribedSources
from shoal.files.storage import open_storage
from shoal.master.job.events import Noted
from shoal.master.job.job import Job
from shoal.master.shared_job import SharedJob


def keep_trained(shared: SharedJob, index: DescribedSources) -> None:
    """Write what a job has trained, if it has come to its end and has a checkpoint.

    Before its result is written: who finds that finds this. A failure is a message of the job:
    --only-new cannot follow it then, and says so. Nor where it is not known what a forerunner has
    trained: by a list without that, the next job would train all of it again.
    """
    # Storage may be slow: the job is not held meanwhile.
    trained = shared.look(lambda job, _: _trained(job))
    if trained is None:
        return
    config = shared.config
    names, last = trained
    stamps = index.stamps("training")
    sources: dict[str, Trained] | None = {
        name: Trained(stamps.get(name, ""), config.job_name) for name in names
    }
    if config.continue_from:
        try:
            sources = read_trained(config.continue_from) | (sources or {})
        except UserError as error:
            _warn(shared, str(error))
            sources = None
    told = TrainedList(config.job_id, *last, sources)
    try:
        write_trained(open_storage(config.checkpoint_dir), told)
    except OSError as error:
        _warn(shared, f"{config.checkpoint_dir}: {error}")


def _warn(shared: SharedJob, why: str) -> None:
    text = f"warning: {why}; --only-new cannot follow this job"
    shared.apply(Noted(text))


def _trained(job: Job) -> tuple[list[str], tuple[int, str]] | None:
    """The sources that a job has trained, and the number and nonce of the checkpoint of all that.

    0 and "" where none has it. None if no job can continue from this one.
    """
    complete = job.config.command == "train" and job.phases.phase.complete
    if not complete or not job.checkpoints.kept.all:
        return None
    newest = job.checkpoints.kept.all[-1]
    last = (newest.number, newest.nonce) if job.phases.whole else (0, "")
    return [source.name for source in job.work.board.sources], last
