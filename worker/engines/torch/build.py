"""A user's torch.nn.Module as the servers hold it: built, checked, and its lookups found.

Owns the order in which the user's functions are called and the model is looked at.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.config.table_options import OPTIONS
from shoal.errors import UserError
from shoal.native.finite import first_not_finite
from shoal.native.initializers import InitializerSpec
from shoal.worker.code.module import UserModule
from shoal.worker.engines.torch.dense import FlatTensors, kept, trained
from shoal.worker.engines.torch.ids import TracedIds
from shoal.worker.engines.torch.learning.losses import Losses, LossOfStep
from shoal.worker.engines.torch.learning.optimizers import optimizers_of
from shoal.worker.engines.torch.plain_embeddings import PlainTable, settle, tables_above
from shoal.worker.engines.torch.supported import check_module, named_tables
from shoal.worker.model.built import BuiltModel, ServedTable, ToBuild, calling
from shoal.worker.model.learning.class_weights import training_loss_of

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

ROWS_PER_PIECE = 65_536


def build_module(given: ToBuild) -> BuiltModel:
    """Build the model of a module and trace which ids it looks up; see Engine.build."""
    module, config, refusals = given.module, given.config, given.refusals
    features_spec = given.features_spec
    file = module.path.name
    seed_all(config.seed)
    with tables_above(config.embedding_threshold):
        model = module.make_model()
    if not isinstance(model, torch.nn.Module):
        raise UserError(
            f"{module.model_name} returned {type(model).__name__}, not a torch.nn.Module"
        )
    module = _with_loss(module)
    if features_spec is None:
        raise UserError(
            f"the model of {file} does not say what its inputs are: give --training-data"
        )
    check_module(model, file)
    embeddings = named_tables(model, settle(model, file))
    trainable, state = FlatTensors(trained(model)), FlatTensors(kept(model))
    optimizers = optimizers_of(
        module, [each.tensor for each in trainable.variables], config.accumulate
    )
    loss: Any
    if module.training_step is not None:
        loss = LossOfStep(module.training_step, module.describe("training_step"))
    else:
        loss = Losses(module.loss, module.loss_weights, file, refusals.refuse)
    training_loss = training_loss_of(loss, module, given.weights_spec)
    ids = TracedIds(model, embeddings, features_spec, refusals, file)
    with calling(f"calling the model of {file}", refusals, model, module):
        ids.trace()
    optimizers.choose(ids.tables, dense=bool(trainable.variables), frozen=ids.frozen)
    if given.worker or given.incarnation:
        # Numbers of its own for each start of each worker, now that weights are made.
        start = np.random.SeedSequence([config.seed, given.worker, given.incarnation])
        seed_all(int(start.generate_state(1)[0]))
    return BuiltModel(
        model=model,
        module=module,
        features_spec=features_spec,
        optimizers=optimizers,
        loss=loss,
        training_loss=training_loss,
        ids=ids,
        tables={name: _served(each, ids, config.seed, file) for name, each in ids.tables.items()},
        trainable=trainable,
        state=state,
    )


def seed_all(number: int) -> None:
    """Seed the numbers that Python, NumPy and PyTorch draw."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _with_loss(module: UserModule) -> UserModule:
    """The module. Raises UserError if it lacks a loss or an optimizer, or has two losses."""
    if module.training_step is None:
        return module.as_compiled({})
    for name in ("loss", "loss_weights", "class_weight"):
        if getattr(module, name) is not None:
            raise UserError(
                f"{module.path}: there are training_step and {name}, and training_step computes "
                "the loss: remove one of them"
            )
    return replace(module.as_compiled({"loss": module.training_step}), loss=None)


def _served(table: Any, ids: TracedIds, seed: int, file: str) -> ServedTable:
    given = isinstance(table, PlainTable) and table.given is not None
    dtype = str(table.dtype).rpartition(".")[2]
    return ServedTable(
        name=table.table,
        dim=table.dim,
        layer=table,
        initializer=InitializerSpec("zeros", given=True) if given else table.init,
        # A table's values depend on its name, not on its position.
        seed=(seed << 32) | zlib.crc32(table.table.encode()),
        vocabulary=table.vocabulary,
        value_dtype="" if dtype == "float32" else dtype,
        frozen=table.table in ids.frozen,
        options={option: getattr(table, option) for option in OPTIONS},
        first_rows=partial(_given_rows, table, file) if given else None,
        whole=given,
        let_go=partial(_let_go, table),
    )


def _given_rows(table: PlainTable, file: str) -> Iterator[tuple[Int64, Float32]]:
    """Yield the rows that the model's code gives, in pieces. Raises UserError for NaN."""
    matrix = table.given
    assert matrix is not None
    for start in range(0, len(matrix), ROWS_PER_PIECE):
        rows = matrix[start : start + ROWS_PER_PIECE].to(torch.float32).contiguous().numpy()
        if (at := first_not_finite(rows)) >= 0:
            raise UserError(
                f"{file}: the weights that embedding {table.name!r} begins with are not finite in "
                f"row {start + at // table.dim}: give it weights without NaN and infinity"
            )
        yield np.arange(start, start + len(rows)), rows


def _let_go(table: Any) -> None:
    if isinstance(table, PlainTable):
        table.weight.given = None
