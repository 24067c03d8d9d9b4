"""With which rows a table begins: drawn by the servers, or read from what a worker has written.

Owns the initializers that servers draw by, the seed of a table, and the rows of a plain
keras.layers.Embedding that the user's code gives whole. Those of a file are vector_file.py's,
writing them for the servers is outputs/first_rows.py's.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.native.finite import first_not_finite
from shoal.native.initializers import InitializerSpec, variance_scaling
from shoal.worker.code.module import user_code
from shoal.worker.code.of_keras import is_keras_own
from shoal.worker.model.embeddings.given_weights import ROWS_PER_PIECE
from shoal.worker.model.embeddings.keras_embeddings import is_served, vocabulary
from shoal.worker.model.embeddings.vector_file import VectorFile

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)

DRAWN = {
    "RandomUniform": ("uniform", ("minval", "maxval")),
    "RandomNormal": ("normal", ("mean", "stddev")),
    "TruncatedNormal": ("truncated_normal", ("mean", "stddev")),
}
"""Keras's name of an initializer, ours, and the arguments that both take."""


def initializer_spec(layer: Any, *, given: bool = True) -> InitializerSpec:
    """The specification of an embedding layer's initializer.

    Variance scaling takes fan-in 1, as a lookup multiplies one row by 1, and fan-out
    output_dim; for a plain keras.layers.Embedding the fans that Keras takes, input_dim and
    output_dim. given: servers begin with the rows that the user's code gives. Raises UserError for
    an initializer that servers do not have.
    """
    if gives_all_rows(layer):
        return InitializerSpec("zeros", given=given)
    if (spec := _drawn(layer)) is not None:
        return replace(spec, given=given and gives_rows(layer))
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
    """True if the user's code gives first rows of a table, all or some of them."""
    return gives_all_rows(layer) or getattr(layer, "initial", None) is not None


def gives_all_rows(layer: Any) -> bool:
    """True if the user's code gives the rows of a plain Embedding, instead of a law."""
    if not is_served(layer) or not vocabulary(layer):
        return False
    return layer.served["rows"] is not None or _drawn(layer) is None


def given_rows(layer: Any, file: str) -> Iterator[tuple[Int64, Float32]]:
    """Yield the rows given for a layer, in pieces: ids int64 [n], rows float32 [n, dim].

    file: name of the user's, for messages. Raises UserError for rows that no table can begin with,
    UserCodeError if the initializer raises.
    """
    if getattr(layer, "initial", None) is not None:
        vectors = VectorFile(layer.initial, layer.output_dim, layer.name)
        yield from vectors.pieces()
        return
    start = 0
    for rows in _pieces(layer, file):
        ids = np.arange(start, start + len(rows))
        start += len(rows)
        if (at := first_not_finite(rows)) >= 0:
            wrong = ids[at // layer.output_dim]
            raise UserError(
                f"{file}: the weights that embedding {layer.name!r} begins with are not finite in "
                f"row {wrong}: give it weights without NaN and infinity"
            )
        yield ids, rows


def _pieces(layer: Any, file: str) -> Iterator[Float32]:
    given = layer.served["rows"]
    if given is not None:
        yield from given.pieces()
        return
    initializer = layer.embeddings_initializer
    shape = (layer.input_dim, layer.output_dim)
    if isinstance(initializer, keras.initializers.Constant):
        made = keras.ops.convert_to_numpy(initializer.value)
        with user_code(f"initializer Constant of embedding {layer.name!r} of {file}"):
            made = np.broadcast_to(made, shape)
    else:
        made = _made(layer, file, shape)
    for start in range(0, len(made), ROWS_PER_PIECE):
        yield np.ascontiguousarray(made[start : start + ROWS_PER_PIECE], np.float32)


def _made(layer: Any, file: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """The matrix of an initializer without a law for single rows, such as Orthogonal."""
    initializer = layer.embeddings_initializer
    kind = getattr(initializer, "__name__", type(initializer).__name__)
    logger.info(
        "embedding %r: %s makes all rows at once, %d bytes, in this worker",
        layer.name,
        kind,
        4 * layer.input_dim * layer.output_dim,
    )
    with user_code(f"initializer {kind} of embedding {layer.name!r} of {file}"):
        made: npt.NDArray[Any] = keras.ops.convert_to_numpy(initializer(shape, dtype="float32"))
    if made.shape != shape:
        raise UserError(
            f"{file}: embedding {layer.name!r}: initializer {kind} gave shape {made.shape}, not "
            f"{shape}"
        )
    return made
