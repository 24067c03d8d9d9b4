"""Weights that the user's code gives an embedding layer whose table the servers hold.

`load_model`, `load_weights`, `set_weights` and `assign` find a stand-in where Keras has the
variable. Owns the stand-in, and the values until they are written for the servers: in a file,
so that a worker holds no matrix that the user's code has let go.
"""

from __future__ import annotations

import contextvars
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import numpy as np
import numpy.typing as npt

from shoal.errors import UserCodeError, UserError
from shoal.worker.code.keras_internals import weights_from_disk
from shoal.worker.engines import backend_of_keras

Float32 = npt.NDArray[np.float32]

ROWS_PER_PIECE = 65_536

_refusals: contextvars.ContextVar[list[UserError] | None] = contextvars.ContextVar(
    "refusals", default=None
)


@contextmanager
def taking_weights(file: str) -> Iterator[None]:
    """Let layers whose tables the servers hold take weights in the body, as Keras's own do.

    Raises UserError for weights of another shape, and for a use of their values: Keras words what
    is raised in it anew. file: name of the user's, for the message.
    """
    refusals: list[UserError] = []
    token = _refusals.set(refusals)
    try:
        with weights_from_disk():
            yield
    except (UserError, UserCodeError):
        if refusals:
            raise UserError(f"{file}: {refusals[0]}") from None
        raise
    finally:
        _refusals.reset(token)


def takes_weights() -> bool:
    """True if `taking_weights` is in force."""
    return _refusals.get() is not None


class GivenRows:
    """Rows of a matrix, in a file without a name.

    shape: of the matrix, [rows, dim]. close: is called when nobody wants the rows any more.
    """

    def __init__(self, matrix: Any) -> None:
        """matrix: an array, tensor, variable or dataset of HDF5, which is read in pieces."""
        self.shape = tuple(matrix.shape)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self.close = weakref.finalize(self, self._file.close)
        for start in range(0, self.shape[0], ROWS_PER_PIECE):
            with backend_of_keras().eagerly():
                piece = keras.ops.convert_to_numpy(matrix[start : start + ROWS_PER_PIECE])
            self._file.write(np.ascontiguousarray(piece, np.float32).data)

    def pieces(self) -> Iterator[Float32]:
        """The rows in order, float32 [n, dim]."""
        self._file.seek(0)
        while data := self._file.read(ROWS_PER_PIECE * self.shape[1] * 4):
            yield np.frombuffer(data, np.float32).reshape(-1, self.shape[1])


class StandIn:
    """The variable that Keras finds in a layer whose table the servers hold."""

    name = "embeddings"

    def __init__(self, layer: Any, used: UserError) -> None:
        """used: what is raised where the value itself is used."""
        self._layer = layer
        self._used = used
        self.path = f"{layer.path}/{self.name}"
        self.shape = (layer.input_dim, layer.output_dim)
        self.dtype = layer.variable_dtype

    @property
    def trainable(self) -> bool:
        """True if the layer is trainable."""
        return bool(self._layer.trainable)

    def assign(self, value: Any) -> None:
        """Take the rows of a matrix. Raises UserError for one of another shape."""
        value = value if hasattr(value, "shape") else np.asarray(value)
        if tuple(value.shape) != self.shape:
            refused = UserError(
                f"embedding {self._layer.name!r} has a weight of shape {self.shape}, and its code "
                f"gives one of shape {tuple(value.shape)}: give the layer the input_dim and "
                "output_dim of the weights"
            )
            refusals = _refusals.get()
            assert refusals is not None
            refusals.append(refused)
            raise refused
        self._layer.served["rows"] = GivenRows(value)

    def numpy(self) -> Float32:
        """The matrix that was given. Raises UserError if none was."""
        given = self._layer.served["rows"]
        if given is None:
            self._refuse()
        return np.concatenate([*given.pieces()])

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        """The values of `numpy` as an array of a dtype, by default float32."""
        del copy
        return self.numpy().astype(dtype or np.float32, copy=False)

    def __jax_array__(self) -> NoReturn:
        """Raises UserError, as the next."""
        self._refuse()

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> NoReturn:
        """Raises UserError: a model that computes with the matrix needs all of it."""
        del dtype, name
        self._refuse()

    def _refuse(self) -> NoReturn:
        if (refusals := _refusals.get()) is not None:
            refusals.append(self._used)
        raise self._used
