"""The specification of a model that workers register with the servers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import keras

from shoal.config.table_options import fields_of
from shoal.proto import shoal_pb2 as pb
from shoal.worker.model.embeddings.initial_rows import initializer_spec, table_seed
from shoal.worker.model.embeddings.keras_embeddings import vocabulary
from shoal.worker.model.embeddings.row_dtypes import value_dtype
from shoal.worker.model.learning.optimizers import ServedOptimizers


def model_spec(
    tables: Mapping[str, keras.layers.Layer],
    *,
    options: Mapping[str, Mapping[str, Any]],
    frozen: Collection[str],
    optimizers: ServedOptimizers,
    trainable: Iterable[pb.VariableSpec],
    non_trainable: Iterable[pb.VariableSpec],
    seed: int,
    given: bool,
) -> pb.ModelSpec:
    """The tables and dense variables that servers hold, and the optimizers that they run.

    tables: the first embedding layer of each table by the table's name, in the servers' order.
    options: of each table, as `chosen_options` returns them. frozen: names of
    tables that are not trained. trainable, non_trainable: manifests of the dense vectors. seed:
    of the job; the seeds of the tables follow from it. given: the servers begin with the rows
    that the user's code gives, and with no other job's.
    """
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name=name,
                dim=layer.output_dim,
                initializer=initializer_spec(layer, given=given).to_json(),
                optimizer=optimizers.of(position).spec.to_json(),
                seed=table_seed(layer, seed),
                frozen=name in frozen,
                vocabulary=vocabulary(layer),
                value_dtype=value_dtype(layer),
                **fields_of(options[name]),
            )
            for position, (name, layer) in enumerate(tables.items())
        ],
        trainable=trainable,
        non_trainable=non_trainable,
        dense_optimizer=optimizers.default.spec.to_json(),
    )
