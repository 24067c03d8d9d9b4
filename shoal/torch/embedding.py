"""`Embedding` and `EmbeddingBag`, modules of PyTorch whose rows live on the parameter servers.

They look rows up through the lookup in force (lookups.py), hold no weights and know no servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shoal.base.words import near
from shoal.config.table_options import OPTIONS, checked
from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec
from shoal.torch.bags import MODES, pooled
from shoal.torch.laws import law_by
from shoal.torch.lookups import rows

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of rows on the servers."""

FIRST_ROWS = InitializerSpec("uniform")
"""The law of first rows where none is given: evenly between -0.05 and 0.05."""

_INSTEAD = {
    "num_embeddings": "it takes any int64 id",
    "max_norm": "normalize the looked-up rows in forward",
    "norm_type": "it belongs to max_norm",
    "scale_grad_by_freq": "divide the looked-up rows, or the loss, in forward",
    "sparse": "gradients are of the rows that a batch looks up anyway",
    "device": "rows are on the servers",
    "include_last_offset": "give offsets without the last one, offsets[:-1]",
}
"""Arguments of torch.nn.Embedding -> what there is in their place."""

_OWN = ("dim", "table", "init", "optimizer", "padding_idx", "dtype", *OPTIONS)


def _refuse(kind: str, given: dict[str, Any]) -> None:
    """Raises UserError for an argument that the modules do not have."""
    for name in given:
        instead = _INSTEAD.get(name) or f"it takes {', '.join(_OWN)}{near(name, _OWN, most=1)}"
        raise UserError(f"shoal.torch.{kind} takes no {name}: {instead}")


class Embedding(torch.nn.Module):
    """A table of any size, held by the parameter servers.

    Takes any int64 ids, negative ones included: there is no number of embeddings to declare. A row
    exists from its first update on; before, it has the value that `init`, the job's seed and the id
    determine.

    dim: length of a row.
    table: name of the table; by default the module's dotted path in the model. Modules of one name
        share its rows.
    init: a function that fills a weight in place, as those of torch.nn.init do, with arguments by
        functools.partial; of what it does, servers keep the law. By default even between -0.05 and
        0.05.
    optimizer: as the module's optimizer(), a function of parameters that gives a torch.optim
        object, for the rows of this table.
    padding_idx: an id whose vector is zero and is not trained.
    admit_after: an id gets a row when so many pushes have contained it, 1 to 2,047.
    expire_after: a span such as "14d" or "36h": a row whose last push is so long ago, by the
        records' --event-time, is removed.
    max_rows: the most rows of the table in the whole job.
    dtype: of the rows on the servers and of the output: torch.float32, torch.bfloat16 or
        torch.float16. Updates of 16-bit rows are rounded stochastically.

    Raises UserError for an argument of torch.nn.Embedding that it does not take, or a value that is
    none.

    Input: integer ids of any shape. Output: [*ids.shape, dim], of `dtype`.
    """

    vocabulary = 0

    def __init__(
        self,
        dim: int,
        *unexpected: Any,
        table: str | None = None,
        init: Callable[[torch.Tensor], Any] | None = None,
        optimizer: Callable[[Any], Any] | None = None,
        padding_idx: int | None = None,
        admit_after: int = 1,
        expire_after: str | None = None,
        max_rows: int | None = None,
        dtype: torch.dtype | None = None,
        **others: Any,
    ) -> None:
        kind = type(self).__name__
        if unexpected:
            given = ", ".join(map(repr, (dim, *unexpected)))
            raise UserError(
                f"shoal.torch.{kind}({given}): the module takes any id, so there is no number of "
                f"embeddings to give; the first argument is dim: {kind}({unexpected[0]!r})"
            )
        _refuse(kind, others)
        super().__init__()
        self.name = table or ""
        what = f"shoal.torch.{kind}" + (f" {table!r}" if table else "")
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
            raise UserError(f"{what}: dim must be a positive integer, not {dim!r}")
        if table is not None and (not isinstance(table, str) or not table):
            raise UserError(f"{what}: table must be a name, not {table!r}")
        if init is not None and not callable(init):
            raise UserError(
                f"{what}: init must be a function that fills a weight, such as "
                f"functools.partial(torch.nn.init.normal_, std=0.01), not {init!r}"
            )
        if optimizer is not None and not callable(optimizer):
            raise UserError(
                f"{what}: optimizer must be a function of parameters, such as "
                f"functools.partial(torch.optim.Adagrad, lr=0.01), not {type(optimizer).__name__}"
            )
        if padding_idx is not None and (
            isinstance(padding_idx, bool) or not isinstance(padding_idx, int)
        ):
            raise UserError(f"{what}: padding_idx must be an id, not {padding_idx!r}")
        dtype = torch.float32 if dtype is None else dtype
        if dtype not in ROW_DTYPES:
            raise UserError(
                f"{what}: dtype must be one of {', '.join(map(str, ROW_DTYPES))}, not {dtype}"
            )
        self.dim = dim
        self.table = table or ""
        self.shares_table = table is not None
        self.init = FIRST_ROWS if init is None else law_by(init, dim, what)
        self.optimizer = optimizer
        self.padding_idx = padding_idx
        self.admit_after = checked("admit_after", admit_after, what)
        self.expire_after = checked("expire_after", expire_after, what)
        self.max_rows = checked("max_rows", max_rows, what)
        self.dtype = dtype
        # Without values: it stands for the rows where a model's parameters are frozen.
        self.rows_on_servers = torch.nn.Parameter(torch.empty(0))

    @property
    def trainable(self) -> bool:
        """True unless the parameters of this module, or of one around it, are frozen."""
        trained: bool = self.rows_on_servers.requires_grad
        return trained

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of `ids`. Raises RuntimeError outside a shoal job."""
        vectors = rows(self, ids)
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill((ids == self.padding_idx)[..., None], 0)

    def extra_repr(self) -> str:
        """The arguments that matter, for print()."""
        return f"{self.dim}, table={self.table!r}"


class EmbeddingBag(Embedding):
    """One vector for each bag of ids, of a table held by the parameter servers.

    mode: how the vectors of a bag become one: "sum", "mean" (by the sum of weights) or "sqrtn" (by
        the root of the sum of their squares). An empty bag gives zeros.

    The other arguments are those of `Embedding`. An id that is `padding_idx` is not counted.
    """

    def __init__(self, dim: int, *unexpected: Any, mode: str = "mean", **options: Any) -> None:
        if mode not in MODES:
            instead = ": take Embedding, and amax(-2) of its vectors" if mode == "max" else ""
            raise UserError(
                f"shoal.torch.EmbeddingBag: mode must be one of {', '.join(MODES)}, not "
                f"{mode!r}{instead}"
            )
        super().__init__(dim, *unexpected, **options)
        self.mode = mode

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors of bags.

        ids: [..., ids in a bag]; with `offsets`, which say where each bag begins, those of all bags
        one after the other. per_sample_weights: a number an id, of the shape of `ids`. Gives
        [..., dim], or [bags, dim] with offsets. Raises ValueError for shapes that do not fit.
        """
        counted = None if self.padding_idx is None else ids != self.padding_idx
        vectors = rows(self, ids)
        return pooled(vectors, ids, offsets, per_sample_weights, counted, self.mode)

    def extra_repr(self) -> str:
        """The arguments that matter, for print()."""
        return f"{super().extra_repr()}, mode={self.mode!r}"
