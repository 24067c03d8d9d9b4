"""The export: the trained model as files that need no shoal.

    model.keras        an ordinary Keras model (functional and sequential models)
    saved_model/       a SavedModel, for TensorFlow Serving and any tf.saved_model.load
    tables/NAME.parquet  id and vector of every row
    dense.parquet      name, shape and values of every dense variable
    manifest.json      what is here, written last

In both models a table is a lookup from the real ids to rows, with a default row for
ids that were never trained; evaluation uses the same default, so that both give the
job's own predictions. The Parquet files are what `--restore-from` reads.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from shoal.errors import UserCodeError, UserError
from shoal.layers import Embedding, lookup_with
from shoal.worker import specs
from shoal.worker.keras_embeddings import read_matrix, tables_above, vocabulary
from shoal.worker.lookups import Refusals
from shoal.worker.model import ServedModel
from shoal.worker.module import user_code
from shoal.worker.plain import plain_model, rebuildable
from shoal.worker.servers import ServerGroup

logger = logging.getLogger(__name__)

FORMAT = "shoal-export-1"
ROWS_PER_PIECE = 65_536


@dataclass(frozen=True)
class ExportedTable:
    """A whole table: ids int64 [n] ascending, rows float32 [n, dim], default [dim]."""

    ids: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]
    default: npt.NDArray[np.float32]

    def indexed(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids, and rows with the default first: the row of ids[i] is rows[i + 1].

        An empty table gets one id, with the default row, which changes no lookup:
        TensorFlow's lookup tables cannot be empty.
        """
        if self.ids.size:
            return self.ids, np.concatenate([self.default[None, :], self.rows])
        return np.zeros(1, np.int64), np.stack([self.default, self.default])


def export(model: ServedModel, servers: ServerGroup, output: str, job_name: str) -> None:
    """Write the export to `output`, whole or not at all.

    Raises UserError if the folder cannot be written, UserCodeError if Keras cannot save
    the model.
    """
    target = Path(output)
    what = f"exporting the model of {model.file}"
    partial = target.with_name(f".{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        model.pull_dense()
        tables = {
            name: _read(servers, position, list(model.tables.values()))
            for position, (name, layer) in enumerate(model.tables.items())
        }
        _write_tables(partial / "tables", tables)
        _write_dense(partial / "dense.parquet", model)
        with _user_layers(what):
            keras_file = _save_keras(model, tables, partial)
            _save_saved_model(model, tables, partial / "saved_model")
        manifest = {
            "format": FORMAT,
            "job_name": job_name,
            "version": servers.version,
            "keras": keras_file,
            "saved_model": "saved_model",
            "dense": "dense.parquet",
            "optimizer": model.optimizer.spec.to_json(),
            "tables": [
                {
                    "name": name,
                    "file": f"tables/{_file_name(name)}",
                    "dim": layer.output_dim,
                    "rows": int(tables[name].ids.size),
                    "default": tables[name].default.tolist(),
                }
                for name, layer in model.tables.items()
            ],
        }
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        _replace(partial, target)
    except OSError as error:
        raise UserError(f"--output: cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check(model: ServedModel) -> None:
    """Find out whether the model can be exported, before it is trained.

    Raises UserCodeError if Keras cannot make it anew from its layers' configurations.
    """
    if not rebuildable(model.model):
        return
    tables = {
        name: ExportedTable(
            np.zeros(0, np.int64),
            np.zeros((0, layer.output_dim), np.float32),
            np.zeros(layer.output_dim, np.float32),
        )
        for name, layer in model.tables.items()
    }
    # What became a table does so in the copy too, which then needs no memory.
    with (
        tables_above(model.embedding_threshold),
        _user_layers(f"exporting the model of {model.file}, tried before training,"),
    ):
        plain_model(model.model, tables).to_json()


@contextmanager
def _user_layers(what: str) -> Iterator[None]:
    """As `user_code`, since the layers are the user's; a disk's error is left as it is."""
    try:
        with user_code(what):
            yield
    except UserCodeError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise


def _replace(partial: Path, target: Path) -> None:
    """Put `partial` at `target`; what was there goes only when that has succeeded."""
    old = target.with_name(f".{target.name}.old")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(target, old)
    os.replace(partial, target)
    shutil.rmtree(old, ignore_errors=True)


def _file_name(table: str) -> str:
    return table.replace("/", "_") + ".parquet"


def _read(servers: ServerGroup, position: int, layers: Sequence[Any]) -> ExportedTable:
    layer = layers[position]
    if vocabulary(layer):
        matrix = read_matrix(servers, position, layers)
        default = np.zeros(layer.output_dim, np.float32)
        return ExportedTable(np.arange(len(matrix)), matrix, default)
    pieces = list(servers.read_table(position))
    ids = np.concatenate([np.zeros(0, np.int64), *(piece[0] for piece in pieces)])
    empty = np.zeros((0, layer.output_dim), np.float32)
    rows = np.concatenate([empty, *(piece[1] for piece in pieces)])
    order = np.argsort(ids)
    default = np.full(layer.output_dim, specs.initializer_spec(layer).default_value, np.float32)
    return ExportedTable(ids[order], rows[order], default)


def _write_tables(folder: Path, tables: Mapping[str, ExportedTable]) -> None:
    folder.mkdir()
    for name, table in tables.items():
        dim = table.default.size
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(table.rows.ravel()), dim)
        pq.write_table(
            pa.table({"id": table.ids, "vector": vectors}),
            folder / _file_name(name),
            row_group_size=ROWS_PER_PIECE,
        )


def _write_dense(path: Path, model: ServedModel) -> None:
    variables = [*model.trainable.variables, *model.state.variables]
    pq.write_table(
        pa.table(
            {
                "name": pa.array([variable.path for variable in variables], pa.string()),
                "shape": pa.array([list(v.shape) for v in variables], pa.list_(pa.int64())),
                "values": pa.array(
                    [np.asarray(variable, np.float32).ravel() for variable in variables],
                    pa.list_(pa.float32()),
                ),
            }
        ),
        path,
    )


# ---------------------------------------------------------------- plain Keras


def _save_keras(
    model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
) -> str | None:
    """Write model.keras with stock layers in place of ours; its name, or None.

    A subclassed model or layer cannot be rebuilt from its configuration if embedding
    layers sit in its code. Such a model has the SavedModel.
    """
    if not rebuildable(model.model):
        logger.info("a model with tables in a class of its own is exported as a SavedModel only")
        return None
    plain_model(model.model, tables).save(folder / "model.keras")
    return "model.keras"


# ---------------------------------------------------------------- SavedModel


class _StaticLookup:
    """Embedding lookups in tables of the graph; position 0 is the default row."""

    def __init__(self, tables: Mapping[str, ExportedTable], matrices: Container[str]) -> None:
        """matrices: names of the tables that have a row for each of their ids."""
        self.indices = {}
        self.rows = {}
        for name, table in tables.items():
            if name in matrices:
                self.rows[name] = tf.Variable(table.rows, trainable=False)
                continue
            ids, rows = table.indexed()
            initializer = tf.lookup.KeyValueTensorInitializer(
                tf.constant(ids), tf.range(1, ids.size + 1, dtype=tf.int64)
            )
            self.indices[name] = tf.lookup.StaticHashTable(initializer, 0)
            self.rows[name] = tf.Variable(rows, trainable=False)

    def __call__(self, layer: Embedding, ids: Any) -> tf.Tensor:
        positions = Refusals().integer_ids(layer, ids)
        if layer.table in self.indices:
            positions = self.indices[layer.table].lookup(positions)
        return tf.cast(tf.gather(self.rows[layer.table], positions), layer.compute_dtype)


def _save_saved_model(
    model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
) -> None:
    matrices = [name for name, layer in model.tables.items() if vocabulary(layer)]
    lookup = _StaticLookup(tables, matrices)
    module = tf.Module()
    # What the graph uses must hang on the module to be saved with it: the variables, not
    # the Keras model, which would trace each layer by itself, outside `lookup`.
    module.dense = [variable.value for variable in model.model.variables]
    module.indices, module.rows = lookup.indices, lookup.rows
    resource = tf.saved_model.experimental.TrackableResource
    of_layers = [each for layer in model.model._flatten_layers() for each in vars(layer).values()]
    module.vocabularies = [each for each in of_layers if isinstance(each, resource)]

    def serve(features: Any) -> Any:
        with lookup_with(lookup):
            return model.model(features, training=False)

    module.serve = tf.function(serve, input_signature=[model.features_spec])
    spec = model.features_spec
    names = list(spec) if isinstance(spec, dict) else _positional(spec)
    flat = tf.nest.flatten(spec)
    if isinstance(spec, dict) and len(flat) != len(names):
        raise UserError("features nested deeper than one dict cannot be exported")

    def signature(**inputs: Any) -> dict[str, Any]:
        packed = tf.nest.pack_sequence_as(spec, [inputs[name] for name in sorted_names])
        outputs = serve(packed)
        if isinstance(outputs, dict):
            return outputs
        flat_outputs = tf.nest.flatten(outputs)
        if len(flat_outputs) == 1:
            return {"output": flat_outputs[0]}
        return {f"output_{i}": each for i, each in enumerate(flat_outputs)}

    # tf.nest takes dicts in the order of their sorted keys.
    sorted_names = sorted(names) if isinstance(spec, dict) else names
    by_name = dict(zip(sorted_names, flat, strict=True))
    default = tf.function(signature).get_concrete_function(
        **{name: _named(each, name) for name, each in by_name.items()}
    )
    tf.saved_model.save(module, str(folder), signatures={"serving_default": default})


def _positional(spec: Any) -> list[str]:
    count = len(tf.nest.flatten(spec))
    return ["inputs"] if count == 1 else [f"input_{i}" for i in range(count)]


def _named(spec: Any, name: str) -> Any:
    return tf.TensorSpec(spec.shape, spec.dtype, name) if isinstance(spec, tf.TensorSpec) else spec
