"""The specification of a model that workers register with the servers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shoal.config.table_options import fields_of
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.model.built import Optimizers, ServedTable


def manifest_of(variables: Iterable[Any]) -> tuple[list[pb.VariableSpec], int]:
    """The manifest of Keras variables as one flat vector, and its size.

    Raises UserError if a variable is not float32.
    """
    manifest: list[pb.VariableSpec] = []
    size = 0
    for variable in variables:
        if variable.dtype != "float32":
            raise UserError(
                f"model variable {variable.path} is {variable.dtype}: dense variables "
                "must be float32 (a mixed precision policy keeps them so)"
            )
        manifest.append(pb.VariableSpec(name=variable.path, shape=variable.shape, offset=size))
        size += math.prod(variable.shape)
    return manifest, size


def model_spec(
    tables: Mapping[str, ServedTable],
    *,
    options: Mapping[str, Mapping[str, Any]],
    optimizers: Optimizers,
    trainable: Iterable[pb.VariableSpec],
    non_trainable: Iterable[pb.VariableSpec],
    given: bool,
) -> pb.ModelSpec:
    """The tables and dense variables that servers hold, and the optimizers that they run.

    tables: by name, in the servers' order. options: of each table, as `chosen_options` returns
    them. trainable, non_trainable: manifests of the dense vectors. given: the servers begin with
    the rows that the user's code gives, and with no other job's.
    """
    return pb.ModelSpec(
        tables=[
            pb.TableSpec(
                name=name,
                dim=table.dim,
                initializer=replace(
                    table.initializer, given=given and table.initializer.given
                ).to_json(),
                optimizer=optimizers.of(position).spec.to_json(),
                seed=table.seed,
                frozen=table.frozen,
                vocabulary=table.vocabulary,
                value_dtype=table.value_dtype,
                **fields_of(options[name]),
            )
            for position, (name, table) in enumerate(tables.items())
        ],
        trainable=trainable,
        non_trainable=non_trainable,
        dense_optimizer=optimizers.default.spec.to_json(),
    )
