"""From embedding modules to ids, and from pulled vectors back to embedding modules.

The model is traced under `Recording`, in which each call only notes its ids. In the step, under
`GivenVectors`, each call gets the vectors that were pulled for those ids. Calls are matched by
their order, which a model repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.config.table_options import OPTIONS
from shoal.worker.model.refusals import Refusals

_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def integer_ids(refusals: Refusals, table: Any, ids: Any) -> torch.Tensor:
    """The ids as an int64 tensor. Raises UserError if they are no integers."""
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _SIGNED:
        given = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        refusals.refuse(
            f"embedding {table.name!r} was called with {given} ids: they must be tensors of "
            "integers; convert them in feed_batch"
        )
    return ids.to(torch.int64)


def sharing_refused(first: Any, second: Any) -> str | None:
    """The reason why two modules of one table cannot share it; None if they can."""
    if first is second:
        return None
    name = first.table
    if not (first.shares_table and second.shares_table):
        return (
            f"two embeddings have the table {name!r}: use one module twice, or let them share it "
            f"with table={name!r} in both"
        )
    for what in ("dim", "init", "optimizer", "dtype", *OPTIONS):
        if getattr(first, what) != getattr(second, what):
            return f"two embeddings share table {name!r}, but differ in {what}"
    return None


@dataclass
class Recording:
    """Notes which module was called with which ids.

    witnesses: of each table a number of the trace's inputs, of which its rows are made: so what is
    computed from rows is found in the trace. failed: what ended the trace before the model's end.
    """

    refusals: Refusals
    witnesses: Mapping[str, torch.Tensor]
    tables: list[Any] = field(default_factory=list)
    ids: list[torch.Tensor] = field(default_factory=list)
    failed: Exception | None = None

    def __call__(self, table: Any, ids: Any) -> torch.Tensor:
        """Note a call."""
        ids = integer_ids(self.refusals, table, ids)
        self.tables.append(table)
        self.ids.append(ids.reshape(-1))
        return self.witnesses[table.table].to(table.dtype).expand(*ids.shape, table.dim)


@dataclass
class GivenVectors:
    """Gives each call its vectors.

    tables: the name of the table of each call. vectors: of each call, float32 [ids, dim]. expected:
    of each call, the ids that they are of, int64 [ids].
    """

    refusals: Refusals
    tables: Sequence[str]
    vectors: Sequence[torch.Tensor]
    expected: Sequence[npt.NDArray[np.int64]]
    calls: int = 0

    def __call__(self, table: Any, ids: Any) -> torch.Tensor:
        """The vectors of the next call in order. Raises UserError if it is another one."""
        call = self.calls
        self.calls += 1
        if call >= len(self.tables):
            self.refusals.refuse(
                f"embedding {table.name!r} was called once more in the step than when the ids were "
                "traced: forward must call its embeddings alike whether training or not, and "
                "training_step call the model once"
            )
        if self.tables[call] != table.table:
            self.refusals.refuse(
                f"embedding {table.name!r} was called in another order in the step than when the "
                "ids were traced: forward must call its embeddings alike whether training or not, "
                "and for all batches"
            )
        ids = integer_ids(self.refusals, table, ids)
        vectors, expected = self.vectors[call], self.expected[call]
        if not np.array_equal(ids.detach().reshape(-1).numpy(), expected):
            self.refusals.refuse(
                f"embedding {table.name!r} was called with other ids in the step than were looked "
                "up before it: ids must follow from the features alone, by tensor operations, and "
                "be the same whether training or not; compute them in feed_batch"
            )
        vectors = vectors.view(*ids.shape, table.dim)
        return (vectors if table.trainable else vectors.detach()).to(table.dtype)

    def check_all_called(self) -> None:
        """Raises UserError if vectors were pulled for a call that was not made."""
        if self.calls < len(self.tables):
            self.refusals.refuse(
                f"table {self.tables[self.calls]!r} was looked up for the step, and forward did "
                "not call its embedding: it must call its embeddings alike whether training or "
                "not, and for all batches"
            )


def without_compiler() -> None:
    """Let the graphs of model.compile() end at each lookup. Imports PyTorch's compiler."""
    GivenVectors.__call__ = torch.compiler.disable(  # type: ignore[method-assign]
        GivenVectors.__call__
    )
