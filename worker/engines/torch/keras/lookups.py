"""From embedding layers to ids, and from pulled vectors back to embedding layers.

Under `KerasRecording` each call notes its ids; in a step, under `LayerVectors`, it gets the vectors
that were pulled for them. Calls are matched by their order, which a model repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import torch

from shoal.worker.engines.torch.lookups import Recording
from shoal.worker.model.embeddings.integers import no_integers
from shoal.worker.model.refusals import Refusals


def integer_ids(refusals: Refusals, layer: Any, ids: Any) -> torch.Tensor:
    """The ids as an int64 tensor. Raises UserError if they are no integers."""
    ids = keras.ops.convert_to_tensor(ids)
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        dtype = keras.backend.standardize_dtype(ids.dtype)
        refusals.refuse(no_integers(layer, dtype, "feed_batch"))
    return ids.to(torch.int64)


class KerasRecording(Recording):
    """Notes which layer was called with which ids. tables: the layers."""

    def __call__(self, table: Any, ids: Any) -> torch.Tensor:
        """Note a call. Keras learns the shapes of layers with tensors that have no values."""
        ids = integer_ids(self.refusals, table, ids)
        self.tables.append(table)
        self.ids.append(ids.reshape(-1))
        witness = self.witnesses.get(table.table)
        if witness is None or ids.is_meta:
            witness = torch.zeros((), device=ids.device)
        vectors = keras.ops.cast(witness, table.compute_dtype)
        return vectors.expand(*ids.shape, table.output_dim)


@dataclass
class LayerVectors:
    """Gives each call its vectors.

    tables: the name of the table of each call. vectors: of each call, float32 [ids, dim]. expected:
    of each call, the ids that they are of, int64 [ids].
    """

    refusals: Refusals
    tables: Sequence[str]
    vectors: Sequence[torch.Tensor]
    expected: Sequence[npt.NDArray[np.int64]]
    calls: int = 0

    def __call__(self, layer: Any, ids: Any) -> torch.Tensor:
        """The vectors of the next call in order. Raises UserError if it is another one."""
        call = self.calls
        self.calls += 1
        ids = integer_ids(self.refusals, layer, ids)
        if call >= len(self.tables) or self.tables[call] != layer.table:
            self.refusals.refuse(
                f"embedding {layer.name!r} was called in another order in the training step "
                "than when the ids were traced: a model must call its embedding layers alike "
                "whether training or not, and for all batches"
            )
        if not np.array_equal(ids.detach().reshape(-1).numpy(), self.expected[call]):
            self.refusals.refuse(
                f"the model calls embedding {layer.name!r} with other ids in the step than were "
                "looked up before it: ids must follow from the features alone, by operations of "
                "keras.ops or PyTorch, and be alike whether training or not; compute them in "
                "feed_batch, whose mode tells"
            )
        vectors = self.vectors[call].view(*ids.shape, layer.output_dim)
        return keras.ops.cast(vectors if layer.trainable else vectors.detach(), layer.compute_dtype)

    def check_all_called(self) -> None:
        """Raises UserError if vectors were pulled for a call that was not made."""
        if self.calls < len(self.tables):
            self.refusals.refuse(
                f"table {self.tables[self.calls]!r} was looked up for the step, and the model did "
                "not call its embedding layer: a model must call its embedding layers alike "
                "whether training or not, and for all batches"
            )
