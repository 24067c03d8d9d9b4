"""The tables of keras_rs's DistributedEmbedding: which layers they are, and the layer exported.

keras-rs keeps a table as an EmbedReduce, a keras.layers.Embedding, which keras_embeddings.py takes
to the servers. Owns every private name of keras-rs that shoal uses. keras-rs is never imported
here: a model that has its layers did so.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.bags import scattered
from shoal.errors import UserCodeError, UserError
from shoal.layers.embedding import ROW_DTYPES
from shoal.worker.code.keras_internals import all_layers, arguments_of_calls, layers_under_way
from shoal.worker.model.embeddings.row_dtypes import holds_rows


def _is(layer: Any, kind: str) -> bool:
    """True if a layer is of the keras_rs.layers class `kind`, or of one that derives from it."""
    layers = getattr(sys.modules.get("keras_rs"), "layers", None)
    return layers is not None and isinstance(layer, getattr(layers, kind))


def is_distributed(layer: Any) -> bool:
    """True if a layer is a DistributedEmbedding."""
    return _is(layer, "DistributedEmbedding")


def _tables_of(distributed: Any) -> dict[int, tuple[Any, Any]]:
    """The EmbedReduce and the TableConfig of each table of a DistributedEmbedding.

    Keyed by the identity of the EmbedReduce, which features of one table share.
    """
    features = distributed._placement_to_path_to_feature_config.get("default_device", {})
    inner = getattr(distributed, "_default_device_embedding_layers", {})
    return {id(inner[path]): (inner[path], feature.table) for path, feature in features.items()}


@dataclass(frozen=True)
class Table:
    """A table of a DistributedEmbedding. config: its TableConfig. any_id: without a vocabulary."""

    config: Any
    any_id: bool


def table_in_build(layer: Any) -> Table | None:
    """The table that a layer is while a DistributedEmbedding builds it; None for other layers.

    Raises UserError for a vocabulary that the DistributedEmbedding cannot have.
    """
    for owner in layers_under_way():
        if is_distributed(owner) and (found := _tables_of(owner).get(id(layer))) is not None:
            if layer.input_dim is None:  # which newer versions of Keras refuse themselves
                raise UserError(_NO_VOCABULARY.format(repr(layer.name)))
            return Table(found[1], layer.name in tables_of_any_id(owner))
    return None


def tables_of_any_id(distributed: Any) -> Collection[str]:
    """Names of the tables of any id, which shoal's DistributedEmbedding may have."""
    return getattr(distributed, "any_id", ())


_NO_VOCABULARY = (
    "a table of keras_rs.layers.DistributedEmbedding, {}, has vocabulary_size=None: give a number, "
    "or take shoal.layers.DistributedEmbedding, whose tables then take any int64 id"
)


def check_tables(model: Any, file: str) -> None:
    """Raise UserError for a table of a DistributedEmbedding that could not become one of servers.

    model: built. file: name of the user's, for the message.
    """
    for owner in all_layers(model):
        if not is_distributed(owner):
            continue
        for layer, _ in _tables_of(owner).values():
            if hasattr(layer, "served"):
                continue
            why = "was built before the function of --model-def was called: make the layer in it"
            if not holds_rows(layer):
                kinds = ", ".join(ROW_DTYPES)
                why = f"has {layer.variable_dtype} values: take a dtype policy of {kinds} variables"
            raise UserError(
                f"the servers hold the tables of a DistributedEmbedding, each with its own "
                f"optimizer, but table {layer.name!r} of {owner.name!r} in {file} {why}"
            )


def sparse_rows(layer: Any, ids: Any, rows_of: Callable[[Any], Any]) -> Any:
    """The rows of sparse ids for EmbedReduce, of ids.shape + (dim,); else None.

    A place without an id has zeros, where keras-rs takes the row of id 0: it counts for nothing
    either way, and so no row of id 0 is pulled and updated for it.
    """
    if not _is(layer, "EmbedReduce"):
        return None
    return scattered(ids, rows_of, layer.output_dim)


@contextmanager
def explaining_configs(file: str) -> Iterator[None]:
    """Raise UserError where the body fails as keras-rs cannot make a table.

    It does so without SparseCore, and without a vocabulary. file: name of the user's, for the
    message.
    """
    try:
        yield
    except UserCodeError as error:
        cause = error.__cause__
        for frame, _ in traceback.walk_tb(cause.__traceback__ if cause is not None else None):
            kind = frame.f_code.co_name
            if kind not in ("_sparsecore_init", "_default_device_init"):
                continue
            tables = [each.table for each in frame.f_locals["feature_configs"].values()]
            if kind == "_sparsecore_init":
                names = ", ".join(sorted({repr(each.name) for each in tables}))
                raise UserError(
                    f"the model of {file} places {names} of a DistributedEmbedding on SparseCore, "
                    'which only TPUs have: give each TableConfig placement="auto", and the servers '
                    "hold the table"
                ) from error
            for table in tables:
                if table.vocabulary_size is None:
                    raise UserError(f"{file}: {_NO_VOCABULARY.format(repr(table.name))}") from error
        raise


def plain_distributed(distributed: Any, rows: Callable[[str], npt.NDArray[np.float32]]) -> Any:
    """The layer as keras-rs's own again, with its weights; a table without rows is not built.

    rows: the weight of a table by its name, [vocabulary_size, embedding_dim]; of a table of any
        id, of as many rows as it shall have.
    """
    config = distributed.get_config()
    kind = type(distributed)
    matrices = {table["name"]: rows(table["name"]) for table in config["tables"]}
    if hasattr(distributed, "any_id"):
        kind = sys.modules["keras_rs"].layers.DistributedEmbedding
        for table in config["tables"]:
            table["placement"] = "auto"
            if table["name"] in distributed.any_id:
                table["vocabulary_size"] = len(matrices[table["name"]])
    copy = kind.from_config(config)
    for layer, _ in _tables_of(copy).values():
        if len(matrices[layer.name]):
            layer.build()
            layer.embeddings.assign(matrices[layer.name])
    return copy


def is_preprocessed(distributed: Any) -> bool:
    """True if models were made of a layer with inputs that its preprocess() gave.

    keras-rs does not build a layer by those, so that Keras cannot load such a model.
    """
    calls = arguments_of_calls(distributed)
    given = (arguments[0] if arguments else named["inputs"] for arguments, named in calls)
    return any(distributed._is_preprocessed(each) for each in given)


def with_ids(distributed: Any, inputs: Any, ids_of: Callable[[str, Any], Any]) -> Any:
    """The inputs of a call, with ids_of(name of the table, ids) in place of each feature's ids."""
    configs = distributed._feature_configs
    return keras.tree.map_structure_up_to(
        configs, lambda feature, ids: ids_of(feature.table.name, ids), configs, inputs
    )
