"""`shoal export`: an export of a checkpoint's values, made without servers.

    python -m shoal.worker.inspect.export_saved --config job.json --root FOLDER --number N

Owns the process. The model is built as a worker builds it, and the export is
outputs/export.py's, so that it is the one that a job would make of the same values.
"""

from __future__ import annotations

from typing import Any

import click

from shoal.config.job import JobConfig
from shoal.errors import StorageError, UserError
from shoal.worker.engines import check_backend
from shoal.worker.inspect.check import telling_errors


def export_checkpoint(config: JobConfig, root: str, number: int) -> None:
    """Export checkpoint `number` below the path or URL `root` to --output.

    config: of the job, or as much of it as building the model takes.
    Raises UserError if the model is not that of the checkpoint, the checkpoint is damaged or
    --output must not be replaced; StorageError if it cannot be written; UserCodeError for what
    the user's code raises.
    """
    from shoal.checkpoints.folders import Checkpoint
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.files.storage import open_storage
    from shoal.worker.code.module import load_module
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.outputs.export import export
    from shoal.worker.reports.progress import Progress
    from shoal.worker.servers.local import CheckpointServers

    module = load_module(config.model_zoo, config.model_def, config.model_params)
    check_backend()
    try:
        servers: Any = CheckpointServers(Checkpoint(open_storage(root), number))
    except CheckpointError as error:
        raise UserError(str(error)) from error
    features = None  # as the model tells, if it does
    if config.training_data:
        features = JobData(config, module).pipeline("training").features_spec
    model = ServedModel(config, module, servers, features, None, 0, Progress())
    model.register(servers.saved.dense())
    try:
        export(model, servers, config, servers)
    except StorageError as error:
        again = "Nothing of the checkpoint is lost: run the command again when that is mended"
        raise StorageError(f"{error}. {again}") from error


@click.command()
@click.option("--config", required=True, help="A job.json.")
@click.option("--root", required=True, help="Folder of checkpoints.")
@click.option("--number", required=True, type=int, help="Which of them.")
def main(config: str, root: str, number: int) -> None:
    """Export a checkpoint; exit 2 if it cannot be, and 1 if a disk fails."""
    with telling_errors("export", config) as job:
        export_checkpoint(job, root, number)
    click.echo(f"checkpoint {number} of {root} is exported to {job.output}")


if __name__ == "__main__":
    main()
