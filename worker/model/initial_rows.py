"""With which rows a table begins: drawn by the servers, or set by a worker before training.

Owns the initializers that servers draw by, the seed of a table, and the rows of a plain
keras.layers.Embedding that the user's code gives whole.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec, variance_scaling
from shoal.worker.keras_internals import is_keras_own
from shoal.worker.model.keras_embeddings import ROWS_PER_CALL, is_served, vocabulary
from shoal.worker.module import user_code

if TYPE_CHECKING:
    from shoal.worker.servers.group import ServerGroup

logger = logging.getLogger(__name__)

DRAWN = {
    "RandomUniform": ("uniform", ("minval", "maxval")),
    "RandomNormal": ("normal", ("mean", "stddev")),
    "TruncatedNormal": ("truncated_normal", ("mean", "stddev")),
}
"""Keras's name of an initializer, ours, and the arguments that both take."""


def initializer_spec(layer: Any) -> InitializerSpec:
    """The specification of an embedding layer's initializer.

    Variance scaling takes fan-in 1, as a lookup multiplies one row by 1, and fan-out
    output_dim; for a plain keras.layers.Embedding the fans that Keras takes, input_dim and
    output_dim. Raises UserError for an initializer that servers do not have.
    """
    if gives_rows(layer):
        return InitializerSpec("zeros")  # every row is assigned before training
    if (spec := _drawn(layer)) is not None:
        return spec
    kind = type(layer.embeddings_initializer).__name__
    raise UserError(
        f"embedding {layer.name!r}: initializer {kind} is not supported; use zeros, ones, a "
        "constant number, random_uniform, random_normal, truncated_normal or variance scaling"
    )


def _drawn(layer: Any) -> InitializerSpec | None:
    """The law by which servers draw a row by itself; None if they have none for the layer."""
    initializer = layer.embeddings_initializer
    kind = type(initializer).__name__
    # A class of the user's may draw otherwise than the one of Keras's that it derives from.
    if not is_keras_own(initializer):
        return None
    if kind == "Zeros":
        return InitializerSpec("zeros")
    if kind == "Ones":
        return InitializerSpec("constant", {"value": 1.0})
    config = initializer.get_config()
    if kind == "Constant" and isinstance(config["value"], int | float):
        return InitializerSpec("constant", {"value": config["value"]})
    if kind in DRAWN:
        name, parameters = DRAWN[kind]
        return InitializerSpec(name, {key: config[key] for key in parameters})
    if isinstance(initializer, keras.initializers.VarianceScaling):
        return variance_scaling(
            vocabulary(layer) or 1,
            layer.output_dim,
            scale=initializer.scale,
            mode=initializer.mode,
            distribution=initializer.distribution,
        )
    return None


def table_seed(layer: Any, job_seed: int) -> int:
    """The seed of a table: of the job's seed and the table's name, an int64.

    An initializer with a seed of its own has that instead, so that two layers with the same
    one begin with the same rows, as in Keras.
    """
    initializer = layer.embeddings_initializer  # a function has no configuration
    config = initializer.get_config() if hasattr(initializer, "get_config") else {}
    seed = config.get("seed")
    if isinstance(seed, int):
        return (seed % 2**31 << 32) | zlib.crc32(b"the initializer's own seed")
    # A table's values depend on its name, not on its position.
    return (job_seed << 32) | zlib.crc32(layer.table.encode())


def gives_rows(layer: Any) -> bool:
    """Whether the user's code gives the rows of a plain Embedding, instead of a law."""
    if not is_served(layer) or not vocabulary(layer):
        return False
    return layer.served["rows"] is not None or _drawn(layer) is None


def given_rows(layer: Any) -> npt.NDArray[np.float32]:
    """Those rows, [input_dim, output_dim], of a layer that `gives_rows`.

    An initializer without a law for single rows, such as Orthogonal or one of the user's own,
    makes the whole matrix here, as it would in Keras. Raises UserError, or UserCodeError if
    the initializer does.
    """
    rows = layer.served["rows"]
    if rows is not None:
        return np.asarray(rows, np.float32)
    initializer = layer.embeddings_initializer
    shape = (layer.input_dim, layer.output_dim)
    if isinstance(initializer, keras.initializers.Constant):
        value = np.asarray(keras.ops.convert_to_numpy(initializer.value), np.float32)
        return np.broadcast_to(value, shape)
    kind = getattr(initializer, "__name__", type(initializer).__name__)
    logger.info(
        "embedding %r: %s makes all rows at once, %d bytes, in this worker",
        layer.name,
        kind,
        4 * layer.input_dim * layer.output_dim,
    )
    with user_code(f"initializer {kind} of embedding {layer.name!r}"):
        made = keras.ops.convert_to_numpy(initializer(shape, dtype="float32"))
    if made.shape != shape:
        raise UserError(
            f"embedding {layer.name!r}: initializer {kind} gave shape {made.shape}, not {shape}"
        )
    return np.asarray(made, np.float32)


def assign_given_rows(layers: Iterable[Any], servers: ServerGroup) -> bool:
    """Set the rows of those tables that the user's code gives. layers: one a table.

    Returns whether there are any.
    """
    given = False
    for position, layer in enumerate(layers):
        if not gives_rows(layer):
            continue
        given = True
        matrix = given_rows(layer)
        for start in range(0, len(matrix), ROWS_PER_CALL):
            part = np.ascontiguousarray(matrix[start : start + ROWS_PER_CALL])
            ids = np.arange(start, start + len(part), dtype=np.int64)
            servers.assign_rows(position, ids, part)
    return given
