"""Models of Keras as the servers hold them: built, checked, and their lookups found.

Owns the order in which the user's functions are called and the model is looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import keras

from shoal.config.table_options import OPTIONS
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import compiled_with
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines import backend_of_keras
from shoal.worker.model.built import BuiltModel, ServedTable, ToBuild, calling
from shoal.worker.model.embeddings.given_weights import taking_weights
from shoal.worker.model.embeddings.initial_rows import (
    given_rows,
    gives_all_rows,
    gives_rows,
    initializer_spec,
    table_seed,
)
from shoal.worker.model.embeddings.keras_embeddings import tables_above, vocabulary
from shoal.worker.model.embeddings.keras_rs_tables import check_tables, explaining_configs
from shoal.worker.model.embeddings.random_numbers import reseed
from shoal.worker.model.embeddings.row_dtypes import value_dtype
from shoal.worker.model.learning.class_weights import training_loss_of
from shoal.worker.model.learning.optimizer import ServedOptimizer
from shoal.worker.model.learning.optimizers import ServedOptimizers
from shoal.worker.model.supported import (
    check_features,
    check_model,
    check_variables,
    spec_of_inputs,
    with_named_input,
)


def build_keras_model(given: ToBuild) -> BuiltModel:
    """Build the model of a module and trace which ids it looks up; see Engine.build."""
    module, config, refusals = given.module, given.config, given.refusals
    features_spec = given.features_spec
    backend = backend_of_keras()
    file = module.path.name
    keras.utils.set_random_seed(config.seed)
    # A functional model runs layers of the user's own to learn the shape of their outputs.
    with (
        tables_above(config.embedding_threshold),
        lookup_with(backend.recording(refusals)),
        explaining_configs(file),
        taking_weights(file),
    ):
        model = module.build_model()
    module = module.as_compiled(compiled_with(model))
    check_model(model, file)
    if features_spec is None:
        features_spec = spec_of_inputs(model, file)
    model = with_named_input(model, features_spec)
    check_features(model, features_spec, module.describe(module.feed_name))
    optimizers = optimizers_of(module)
    loss = backend.losses(module.loss, module.loss_weights, file, refusals.refuse)
    training_loss = training_loss_of(loss, module, given.weights_spec)
    ids = backend.ids(model, features_spec, refusals, file)
    with (
        tables_above(config.embedding_threshold),
        explaining_configs(file),
        taking_weights(file),
        calling(f"calling the model of {file}", refusals, model, module),
    ):
        ids.trace()
    check_tables(model, file)
    check_variables(model, file)
    ids.check()
    optimizers.choose(ids.tables, dense=bool(model.trainable_variables), frozen=ids.frozen)
    reseed(model, config.seed, given.worker, given.incarnation)
    return BuiltModel(
        model=model,
        module=module,
        features_spec=features_spec,
        optimizers=optimizers,
        loss=loss,
        training_loss=training_loss,
        ids=ids,
        tables=served_tables(ids.tables, ids.frozen, config.seed, file),
        trainable=backend.dense(model.trainable_variables),
        state=backend.dense(
            [
                variable
                for variable in model.non_trainable_variables
                if keras.backend.is_float_dtype(variable.dtype)
            ]
        ),
    )


def optimizers_of(module: UserModule) -> ServedOptimizers:
    """The optimizers of a module. Raises UserError or UserCodeError."""
    with user_code(module.describe("optimizer")):
        given = module.optimizer()
    return ServedOptimizers(given, module.describe("optimizer"), ServedOptimizer)


def served_tables(
    layers: Mapping[str, Any], frozen: Collection[str], seed: int, file: str
) -> dict[str, ServedTable]:
    """The tables of embedding layers. Raises UserError for an initializer that is not served."""
    return {
        name: ServedTable(
            name=name,
            dim=layer.output_dim,
            layer=layer,
            initializer=initializer_spec(layer),
            seed=table_seed(layer, seed),
            vocabulary=vocabulary(layer),
            value_dtype=value_dtype(layer),
            frozen=name in frozen,
            options={
                option: getattr(layer, option) for option in OPTIONS if hasattr(layer, option)
            },
            first_rows=partial(given_rows, layer, file) if gives_rows(layer) else None,
            whole=gives_all_rows(layer),
            let_go=partial(_let_go, layer),
        )
        for name, layer in layers.items()
    }


def _let_go(layer: Any) -> None:
    if gives_all_rows(layer) and layer.served["rows"] is not None:
        layer.served["rows"].close()
