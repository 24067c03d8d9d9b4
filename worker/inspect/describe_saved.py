"""Describe models for `shoal checkpoint migrate`, in processes that have TensorFlow.

    python -m shoal.worker.inspect.describe_saved --config job.json --output FOLDER
    python -m shoal.worker.inspect.describe_saved ... --root FOLDER --number N --records N

The first describes a model: its tables and variables, the layouts of its kernels and its
initial values. The second writes the predictions of a checkpoint for the first records of the
training data. Owns the process and the form of its files, which shoal/cli/describing.py reads.
A process describes one model, as Keras numbers the names of layers in each process.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines import check_backend
from shoal.worker.inspect.check import telling_errors
from shoal.worker.servers.local import CheckpointServers, LocalServers


def describe(config: JobConfig, folder: Path) -> None:
    """Write `model.json` and `initial.npz` of the model of `config` into a folder.

    Raises UserError for a model that shoal cannot serve, UserCodeError if it raises.
    """
    from shoal.worker.engines import chosen_engine

    model, _ = _build(config, LocalServers(), "training")
    found = chosen_engine().kernel_layouts(model.model, model.features_spec)
    content = {
        "spec": base64.b64encode(model.spec.SerializeToString(deterministic=True)).decode(),
        "layouts": found.layouts,
        "elsewhere": sorted(found.elsewhere),
    }
    (folder / "model.json").write_text(json.dumps(content))
    variables = (*model.trainable.variables, *model.state.variables)
    # By position: names of variables have slashes.
    np.savez(folder / "initial.npz", *(each.numpy() for each in variables))


class _Chosen(CheckpointServers):
    """A checkpoint whose rows are read once, for the ids that were asked for before that."""

    def __init__(self, checkpoint: Any) -> None:
        super().__init__(checkpoint)
        self._wanted: list[list[npt.NDArray[np.int64]]] = []

    def pull(self, calls: Sequence[Sequence[npt.NDArray[np.int64]]], *, training: bool) -> Any:
        """Pull as LocalServers does, and note the ids."""
        pulled = super().pull(calls, training=training)
        self._wanted.append([each.unique for each in pulled.ids])
        return pulled

    def read(self) -> None:
        """Hold the rows of all ids that were pulled."""
        for position, parts in enumerate(zip(*self._wanted, strict=True)):
            wanted = np.unique(np.concatenate(parts))
            spec = self._specs[self._names[position]]
            for ids, rows in self.saved.rows(spec.name, spec.dim):
                ours = np.isin(ids, wanted)
                if ours.any():
                    self.assign_rows(
                        position, np.ascontiguousarray(ids[ours]), np.ascontiguousarray(rows[ours])
                    )


def predict(config: JobConfig, folder: Path, root: str, number: int, records: int) -> None:
    """Write `predictions.npy` into a folder: float64 [records, outputs], in the data's order.

    records: how many, of the first of --training-data; fewer if there are not so many. They are
    fed as for an evaluation, in which nothing is shuffled. Raises UserError, UserCodeError.
    """
    from shoal.checkpoints.folders import Checkpoint
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.files.storage import open_storage
    from shoal.worker.model.learning.outputs import leaves

    config = replace(config, validation_data=config.training_data)
    try:
        servers = _Chosen(Checkpoint(open_storage(root), number))
    except CheckpointError as error:
        raise UserError(str(error)) from error
    model, data = _build(config, servers, "evaluation")
    model.register(servers.saved.dense())
    features = []
    for batch in _batches(data, records):
        model.pull(batch.features, training=False)
        features.append(batch.features)
    servers.read()
    rows = []
    for each in features:
        parts = leaves(model.predict_batch(each))
        flat = [np.asarray(part, np.float64) for part in parts]
        rows.append(np.concatenate([part.reshape(len(part), -1) for part in flat], axis=1))
    np.save(folder / "predictions.npy", np.concatenate(rows)[:records])


def _batches(data: Any, records: int) -> Iterator[Any]:
    left = records
    for source in data.description().validation:
        if left <= 0 or not source.records:
            continue
        end = min(source.records, left)
        left -= end
        wanted = pb.Range(source=source.name, start=0, end=end)
        yield from data.pipeline("evaluation").batches(wanted)


def _build(config: JobConfig, servers: Any, mode: str) -> tuple[Any, Any]:
    from shoal.worker.code.module import load_module
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.reports.progress import Progress

    module = load_module(config.model_zoo, config.model_def, config.model_params)
    check_backend()
    data = JobData(config, module)
    features = data.pipeline(mode).features_spec if config.training_data else None
    return ServedModel(config, module, servers, features, None, 0, Progress()), data


@click.command()
@click.option("--config", required=True, help="A job.json.")
@click.option("--output", required=True, help="A folder.")
@click.option("--root", default="", help="Folder of checkpoints.")
@click.option("--number", type=int, default=0, help="Which of them.")
@click.option("--records", type=int, default=0, help="How many are predicted.")
def main(config: str, output: str, root: str, number: int, records: int) -> None:
    """Describe a model, or predict with a checkpoint of it; exit 2 if it cannot be."""
    with telling_errors("checkpoint migrate", config) as job:
        if root:
            predict(job, Path(output), root, number, records)
        else:
            describe(job, Path(output))


if __name__ == "__main__":
    main()
