"""`python -m shoal.ps.log_to_checkpoint`: a checkpoint of what a dead server's log has.

For a job that is to be resumed, whose single server kept its log in files. Owns the making
of the share: an older checkpoint, if there is one, with the log's pushes done again. The
manifest of the whole, and whether the job goes on from it, are the master's, which is told
on standard output, as JSON: "replayed" pushes, "why" if the log could not be read to its end,
and "share" as `write_share` returns it; null if nothing is to be gained.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from shoal import log
from shoal.checkpoints.folders import Checkpoint, folder_name
from shoal.checkpoints.manifests import CheckpointError
from shoal.checkpoints.storage import open_storage
from shoal.config import JobConfig
from shoal.errors import EXIT_USER_ERROR, UserError
from shoal.job_folder import JobFolder
from shoal.proto.memory import keep_freed_memory
from shoal.proto.routing import Routing
from shoal.ps.checkpoint import cut, restore, write_share
from shoal.ps.logfile import FileSink
from shoal.ps.pushes import PushRegister
from shoal.ps.replay import recover
from shoal.ps.tables import ServerModel

ALONE = Routing.even(1)


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The job.json.")
@click.option("--base", required=True, type=int, help="Checkpoint to start from; 0: none.")
@click.option("--number", required=True, type=int, help="Of the checkpoint to be made.")
def main(config: Path, base: int, number: int) -> None:
    """Write the share of checkpoint NUMBER: checkpoint BASE and the log after it."""
    try:
        job = JobConfig.load(config)
        log.configure("log-to-checkpoint", job.log_level)
        keep_freed_memory()
        made = recovered(JobFolder(config.parent).update_log, job.checkpoint_dir, base, number)
    except (UserError, CheckpointError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    click.echo(json.dumps(made))


def recovered(logs: Path, root: str, base: int, number: int) -> dict[str, object]:
    """Make the share; returns what is to be printed.

    Raises CheckpointError if checkpoint `base` is not good, OSError if files cannot be written.
    """
    pushes = PushRegister()
    model: ServerModel | None = None
    storage = open_storage(root)
    if base:
        model = restore(Checkpoint(storage, base), 0, ALONE, pushes)
    sink = FileSink(logs, 0, 0, sync=False)
    try:
        done = recover(sink, 0, 1, model, pushes)
    finally:
        sink.close()
    made: dict[str, object] = {"replayed": done.count, "why": done.why, "share": None}
    if done.model is not None and done.count:
        at = cut(done.model, pushes)
        folder = storage.child(folder_name(number))
        folder.make()
        made["share"] = write_share(folder, 0, ALONE, done.model, at)
    return made


if __name__ == "__main__":
    main()
