"""The SavedModel of a job that another engine computes, made by TensorFlow.

    python -m shoal.worker.inspect.saved_model --config job.json --given FILE --folder FOLDER

Owns the process, which the exporter of the other engine starts
(engines/jax/outputs/saved_models.py). The model is built as a worker of TensorFlow builds it.
"""

from __future__ import annotations

import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import click

from shoal.config.job import JobConfig
from shoal.errors import EXIT_JOB_FAILED
from shoal.worker.engines import check_backend, chosen_engine
from shoal.worker.inspect.check import telling_errors


def save(config: JobConfig, given: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Write the SavedModel of a module's model to `folder`.

    given: a pickle of the tables, by name, and of the dense values, by the variable's. Returns the
    names of vectors, as SavedModels.save does. Raises UserError if TensorFlow builds another model
    or none; UserCodeError for what the user's code raises.
    """
    from shoal.worker.code.module import load_module
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.outputs.keras_export import SAVED_MODEL
    from shoal.worker.reports.progress import Progress
    from shoal.worker.servers.local import LocalServers

    module = load_module(config.model_zoo, config.model_def, config.model_params)
    check_backend()
    features = JobData(config, module).pipeline("training").features_spec
    servers: Any = LocalServers()
    model = ServedModel(config, module, servers, features, None, 0, Progress())
    with given.open("rb") as file:
        tables, dense = pickle.load(file)
    model.register(dense)
    exporter: Any = chosen_engine().exporter(model, frozenset({SAVED_MODEL}))
    names: dict[str, dict[str, str]] = exporter.saved_models.save(model, tables, folder)
    return names


def end_with_parent() -> None:
    """End this process when its parent ends, which holds the other end of standard input."""

    def wait() -> None:
        while os.read(0, 1):  # by no reader of Python's, which a thread may not hold at the end
            pass
        os._exit(EXIT_JOB_FAILED)

    threading.Thread(target=wait, daemon=True).start()


@click.command()
@click.option("--config", required=True, help="A job.json.")
@click.option("--given", required=True, help="File with tables and dense values.")
@click.option("--folder", required=True, help="Of the SavedModel.")
def main(config: str, given: str, folder: str) -> None:
    """Print the names of vectors as JSON; exit 2 if there is no SavedModel, and 1 by a disk."""
    end_with_parent()
    with telling_errors("export", config) as job:
        names = save(job, Path(given), Path(folder))
    click.echo(json.dumps(names))


if __name__ == "__main__":
    main()
