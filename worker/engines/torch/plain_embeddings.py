"""Plain torch.nn.Embedding and EmbeddingBag as tables of the servers, with no edit of the model.

Their weight above --embedding-threshold is never allocated: a `ServedWeight` notes how it is
filled, by torch.nn.init or from_pretrained, and gives rows where a module looks them up, by
torch.nn.functional.embedding or embedding_bag. Any other use of it is refused by name.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as PyTorch's users have it

from shoal.errors import UserError
from shoal.native.initializers import InitializerSpec
from shoal.torch.bags import MODES, pooled
from shoal.torch.embedding import ROW_DTYPES
from shoal.torch.laws import LAWS, Recorded, noting_truncated
from shoal.torch.lookups import rows

BYTES_PER_VALUE = 4

_KINDS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class PlainTable:
    """The table of a plain embedding, as lookups.Table wants one.

    name: of its module; "" until the model is built. module: the first that has the weight.
    zeroed: rows that were set to zero alone.
    """

    optimizer = None
    shares_table = False
    admit_after = 1
    expire_after = max_rows = None

    def __init__(self, weight: ServedWeight, module: torch.nn.Module) -> None:
        self.weight, self.module = weight, module
        self.name = ""
        self.zeroed: set[int] = set()
        self.vocabulary, self.dim = map(int, weight.shape)
        self.dtype = weight.dtype

    @property
    def table(self) -> str:
        """The table's name."""
        return self.name

    @property
    def trainable(self) -> bool:
        """True if its rows are trained."""
        return bool(self.weight.requires_grad)

    @property
    def init(self) -> InitializerSpec | None:
        """The law of first rows; None where they are given."""
        return self.weight.law

    @property
    def given(self) -> torch.Tensor | None:
        """First rows that the model's code gives, [vocabulary, dim]."""
        return self.weight.given

    @property
    def padding_idx(self) -> int | None:
        """The id whose row is not trained."""
        return getattr(self.module, "padding_idx", None)

    def kept_by(self) -> str:
        """The flag that keeps the table in the workers."""
        return f"--embedding-threshold {self.vocabulary * self.dim * BYTES_PER_VALUE}"

    def refused(self, operation: str) -> UserError:
        """The error of a computation with the weight itself. operation: its name."""
        which = f"embedding {self.name!r}" if self.name else "an embedding"
        return UserError(
            f"{which} ({self.vocabulary} x {self.dim}) is above --embedding-threshold, so the "
            f"servers hold it, but the model's code computes with its weight itself ({operation}). "
            f"Look rows up by calling the module; fill the weight whole, by {LAWS}, or by copy_; "
            f"or give {self.kept_by()} to keep it in the workers"
        )


class ServedWeight(Recorded):
    """The weight of a plain embedding whose rows are on the servers. served: its table."""

    served: PlainTable

    @staticmethod
    def __new__(cls, shape: tuple[int, int], dtype: torch.dtype) -> ServedWeight:
        """A weight of [num_embeddings, embedding_dim]."""
        made: Any = Recorded.__new__(cls, shape, dtype, lambda name: made.served.refused(name))
        return made  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: Any) -> ServedWeight:
        made = ServedWeight(tuple(self.shape), self.dtype)
        memo[id(self)] = made
        made.law, made.given = self.law, self.given
        made.served = PlainTable(made, copy.deepcopy(self.served.module, memo))
        made.served.name, made.served.zeroed = self.served.name, set(self.served.zeroed)
        made.requires_grad_(self.requires_grad)
        made._is_param = True
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Lookups give rows of the servers; all else is as of a `Recorded` weight."""
        if func is F.embedding:
            return _embedding(*args, **(kwargs or {}))
        if func is F.embedding_bag:
            return _embedding_bag(*args, **(kwargs or {}))
        if func is torch.Tensor.__getitem__ and isinstance(args[0], cls):
            return _Row(args[0].served, args[1])
        return super().__torch_function__(func, types, args, kwargs)


class _Row(Recorded):
    """A row of a weight, which code may set to zero: that of padding."""

    @staticmethod
    def __new__(cls, table: PlainTable, place: Any) -> _Row:
        """Raises UserError for more than a row."""
        if isinstance(place, bool) or not isinstance(place, int):
            raise table.refused("__getitem__")
        made: Any = Recorded.__new__(cls, (table.dim,), table.dtype, table.refused)
        made.served, made.place = table, place % table.vocabulary
        return made  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "law" and value is not None:
            if value.kind not in ("zeros", "constant") or value.default_value:
                raise self.served.refused("one row of it")
            self.served.zeroed.add(self.place)


def _embedding(
    ids: torch.Tensor, weight: ServedWeight, padding_idx: int | None = None, *_: Any, **__: Any
) -> torch.Tensor:
    """torch.nn.functional.embedding."""
    table = weight.served
    vectors = rows(table, ids)
    if padding_idx is None:
        return vectors
    padding = padding_idx % table.vocabulary
    mask = (ids == padding)[..., None]
    if padding in table.zeroed:
        return vectors.masked_fill(mask, 0)
    return torch.where(mask, vectors.detach(), vectors)


def _embedding_bag(
    ids: torch.Tensor,
    weight: ServedWeight,
    offsets: torch.Tensor | None = None,
    max_norm: Any = None,
    norm_type: Any = 2.0,
    scale_grad_by_freq: Any = False,
    mode: str = "mean",
    sparse: Any = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """torch.nn.functional.embedding_bag."""
    del max_norm, norm_type, scale_grad_by_freq, sparse
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"per_sample_weights need mode='sum', not {mode!r}")
    if offsets is not None and include_last_offset:
        offsets = offsets[:-1]
    table = weight.served
    counted = None if padding_idx is None else ids != padding_idx % table.vocabulary
    return pooled(rows(table, ids), ids, offsets, per_sample_weights, counted, mode)


@contextmanager
def tables_above(threshold: float) -> Iterator[None]:
    """Let nn.Embedding and EmbeddingBag modules that are made in the body become tables.

    threshold: bytes of float32 values above which a module does.
    """
    with ExitStack() as stack:
        stack.enter_context(noting_truncated())
        for kind in _KINDS:
            stack.enter_context(_patched(kind, threshold))
        yield


@contextmanager
def _patched(kind: Any, threshold: float) -> Iterator[None]:
    original = kind.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        of = given.arguments
        count, dim = of["num_embeddings"], of["embedding_dim"]
        weight, dtype = of["_weight"], of["dtype"] or torch.get_default_dtype()
        dtype = dtype if weight is None else weight.dtype
        on_cpu = of["device"] is None or torch.device(of["device"]).type == "cpu"
        if count * dim * BYTES_PER_VALUE <= threshold or dtype not in ROW_DTYPES or not on_cpu:
            original(self, *args, **kwargs)
            return
        served = ServedWeight((count, dim), dtype)
        served.served = PlainTable(served, self)
        of["_weight"] = served
        original(*given.args, **given.kwargs)
        if weight is not None:
            served.given = weight.detach()
            return
        served.law = InitializerSpec("normal", {"mean": 0.0, "stddev": 1.0})
        if self.padding_idx is not None:
            served.served.zeroed.add(self.padding_idx)

    kind.__init__ = made
    try:
        yield
    finally:
        kind.__init__ = original


def settle(model: torch.nn.Module, file: str) -> dict[str, PlainTable]:
    """Take the weights that are tables from among a built model's parameters.

    Each stays an attribute of its module, and its table gets that module's dotted path as its name.
    Gives the tables by name. Raises UserError for what servers do not do.
    """
    found: dict[str, PlainTable] = {}
    for path, module in model.named_modules():
        for name, weight in list(module._parameters.items()):
            if not isinstance(weight, ServedWeight):
                continue
            del module._parameters[name]
            object.__setattr__(module, name, weight)
            table = weight.served
            if not table.name:
                table.name = path or type(module).__name__.lower()
                found[table.name] = table
            _check(module, table, file)
    return found


def _check(module: Any, table: PlainTable, file: str) -> None:
    """Raises UserError for options of a module that servers do not have."""
    what = (
        f"{file}: embedding {table.name!r} ({table.vocabulary} x {table.dim}) is above "
        "--embedding-threshold, so the servers hold it, but "
    )
    keep = f", or give {table.kept_by()} to keep it in the workers"
    if getattr(module, "max_norm", None) is not None:
        raise UserError(
            f"{what}it has max_norm, which changes rows as they are looked up: normalize the "
            f"looked-up rows in forward{keep}"
        )
    if table.weight._backward_hooks or getattr(table.weight, "_post_accumulate_grad_hooks", None):
        raise UserError(
            f"{what}its weight has a hook of gradients, which are of looked-up rows there: "
            f"register the hook on these in forward{keep}"
        )
    if getattr(module, "scale_grad_by_freq", False):
        raise UserError(
            f"{what}it has scale_grad_by_freq, by which servers scale no gradients: leave it "
            f"out{keep}"
        )
    if getattr(module, "mode", "sum") not in MODES:
        raise UserError(
            f"{what}it has mode={module.mode!r}: take nn.Embedding, and amax(-2) of its "
            f"vectors{keep}"
        )
    if table.zeroed - {table.padding_idx}:
        raise table.refused("one row of it")
    if table.init is None and table.given is None:
        raise UserError(
            f"{what}its weight is filled by no law that servers have: use one of {LAWS}{keep}"
        )
