"""`shoal export`: an export of a checkpoint's values, made without servers.

    python -m shoal.worker.inspect.export_saved --config job.json --root FOLDER --number N

Owns the process. The model is built as a worker builds it, and the export is
outputs/export.py's, so that it is the one that a job would make of the same values.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from shoal.config.job import JobConfig
from shoal.errors import (
    EXIT_JOB_FAILED,
    EXIT_USER_ERROR,
    StorageError,
    UserCodeError,
    UserError,
)


def export_checkpoint(config: JobConfig, root: str, number: int) -> None:
    """Export checkpoint `number` below the path or URL `root` to --output.

    config: of the job, or as much of it as building the model takes.
    Raises UserError if the model is not that of the checkpoint, the checkpoint is damaged or
    --output must not be replaced; StorageError if it cannot be written; UserCodeError for what
    the user's code raises.
    """
    from shoal.checkpoints.folders import Checkpoint
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.checkpoints.storage import open_storage
    from shoal.worker.code.module import load_module
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.outputs.export import export
    from shoal.worker.reports.progress import Progress
    from shoal.worker.servers.local import CheckpointServers

    module = load_module(config.model_zoo, config.model_def, config.model_params)
    try:
        servers: Any = CheckpointServers(Checkpoint(open_storage(root), number))
    except CheckpointError as error:
        raise UserError(str(error)) from error
    features = None  # as the model tells, if it does
    if config.training_data:
        features = JobData(config, module).pipeline("training").features_spec
    model = ServedModel(config, module, servers, features, None, 0, Progress())
    try:
        model.register(servers.saved.dense())
        export(model, servers, config, servers)
    except UserError as error:
        # Reading what was saved is also what --restore-from does.
        raise UserError(str(error).removeprefix("--restore-from: ")) from error


@click.command()
@click.option("--config", required=True, help="A job.json.")
@click.option("--root", required=True, help="Folder of checkpoints.")
@click.option("--number", required=True, type=int, help="Which of them.")
def main(config: str, root: str, number: int) -> None:
    """Export a checkpoint; exit 2 if it cannot be, and 1 if a disk fails."""
    from shoal.worker.inspect.check import import_quietly

    import_quietly("export")
    try:
        job = JobConfig.load(config)
        export_checkpoint(job, root, number)
    except UserError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    except StorageError as error:
        again = "Nothing of the checkpoint is lost: run the command again when that is mended"
        click.echo(f"Error: {error}. {again}", err=True)
        sys.exit(EXIT_JOB_FAILED)
    except UserCodeError as error:
        click.echo(f"Error: {error.message}", err=True)
        click.echo(error.traceback, err=True)
        sys.exit(EXIT_USER_ERROR)
    click.echo(f"checkpoint {number} of {root} is exported to {job.output}")


if __name__ == "__main__":
    main()
