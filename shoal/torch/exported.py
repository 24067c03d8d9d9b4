"""An exported model as plain PyTorch: its tables are modules that look ids up by a search.

`plain` puts them into a module in place of those that look rows up on servers, and `load` reads
what an export has of a module.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.nested import mapped
from shoal.errors import UserError
from shoal.torch.bags import pooled
from shoal.torch.embedding import Embedding

STATE_DICT = "state_dict.pt"
PROGRAM = "model.pt2"


class SortedEmbedding(torch.nn.Module):
    """Rows of any int64 ids, by a binary search among those that were trained.

    ids: int64 [n] ascending, at least one. weight: [n + 1, dim], the default row of all other ids
    first. padding_idx: an id whose vector is zero.
    """

    ids: torch.Tensor

    def __init__(
        self, ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        self.register_buffer("ids", ids)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.padding_idx = padding_idx

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows: [*ids.shape, dim]."""
        ids = ids.to(torch.int64)
        place = torch.searchsorted(self.ids, ids).clamp(max=self.ids.shape[0] - 1)
        row = torch.where(self.ids[place] == ids, place + 1, 0)
        vectors = torch.nn.functional.embedding(row, self.weight)
        if self.padding_idx is None:
            return vectors
        return vectors.masked_fill((ids == self.padding_idx)[..., None], 0)


class SortedEmbeddingBag(SortedEmbedding):
    """One vector a bag, of rows as of `SortedEmbedding`. mode: as of EmbeddingBag."""

    def __init__(
        self,
        ids: torch.Tensor,
        weight: torch.Tensor,
        padding_idx: int | None = None,
        mode: str = "mean",
    ) -> None:
        super().__init__(ids, weight, padding_idx)
        self.mode = mode

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors of bags, as EmbeddingBag gives them."""
        counted = None if self.padding_idx is None else ids != self.padding_idx
        return pooled(super().forward(ids), ids, offsets, per_sample_weights, counted, self.mode)


Rows = Callable[[str], tuple[torch.Tensor, torch.Tensor]]
"""Of a table's name, its ids int64 [n] ascending and its weight [n + 1, dim], default first."""


def plain(model: torch.nn.Module, rows: Rows) -> torch.nn.Module:
    """A copy of a module that looks rows up in itself, in evaluation mode."""
    made = copy.deepcopy(model)
    if isinstance(made, Embedding):
        return _sorted(made, rows).eval()
    for path, module in list(made.named_modules(remove_duplicate=False)):
        if isinstance(module, Embedding):
            parent, _, name = path.rpartition(".")
            setattr(made.get_submodule(parent), name, _sorted(module, rows))
    return made.eval()


def _sorted(module: Embedding, rows: Rows) -> SortedEmbedding:
    made = getattr(module, "_sorted", None)
    if made is None:
        ids, weight = rows(module.table)
        mode = getattr(module, "mode", None)
        made = (
            SortedEmbedding(ids, weight, module.padding_idx)
            if mode is None
            else SortedEmbeddingBag(ids, weight, module.padding_idx, mode)
        )
        object.__setattr__(module, "_sorted", made)  # for a module that is there twice
    return made


class Program:
    """The model.pt2 of an export, called with arrays of its features.

    dims: the number of axes of each feature, by its name.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """folder: what --output named. Raises UserError for features without names."""
        program = torch.export.load(Path(folder) / PROGRAM)
        (wanted, *_), _ = program.example_inputs
        if not isinstance(wanted, Mapping) or not all(
            isinstance(each, torch.Tensor) for each in wanted.values()
        ):
            raise UserError(
                "predict() takes columns by the names of features, and feed_batch of this model "
                "gives no dict of arrays: call load() and the model"
            )
        self._types = {name: each.dtype for name, each in wanted.items()}
        self.dims = {name: each.dim() for name, each in wanted.items()}
        self._model = program.module()

    def __call__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
        """The outputs for features, as arrays in their nesting; 16-bit floats as float32."""
        given = {
            name: torch.from_numpy(np.array(arrays[name])).to(dtype)
            for name, dtype in self._types.items()
        }
        with torch.inference_mode():
            outputs = self._model(given)
        return mapped(
            lambda each: (each.float() if each.dtype.itemsize == 2 else each).numpy(), outputs
        )


def load(folder: str | os.PathLike[str], model: torch.nn.Module | None = None) -> torch.nn.Module:
    """The model of an export, as plain PyTorch in evaluation mode.

    folder: what --output named. model: an object of the user's module; each of its shoal.torch
    tables becomes a `SortedEmbedding` of the exported rows. Without it, the module of model.pt2,
    which needs no code of the user's and cannot be trained further.

    Raises UserError if the folder has no such model, or one that does not fit.
    """
    place = Path(folder)
    name = PROGRAM if model is None else STATE_DICT
    if not (place / name).is_file():
        if model is None and (place / STATE_DICT).is_file():
            raise UserError(
                f"{place} has no {PROGRAM}, as torch.export did not take the model: give "
                "shoal.torch.load an object of the model's class, too, for its state_dict"
            )
        raise UserError(f"{place} has no {name}: it is no export of a torch.nn.Module")
    if model is None:
        return torch.export.load(place / PROGRAM).module()
    state = torch.load(place / STATE_DICT, weights_only=True)
    for path, module in model.named_modules():
        if isinstance(module, Embedding) and not module.table:
            module.table = path

    def rows(table: str) -> tuple[torch.Tensor, torch.Tensor]:
        paths = [
            path
            for path, module in model.named_modules()
            if isinstance(module, Embedding) and module.table == table
        ]
        for path in paths:
            prefix = f"{path}." if path else ""
            if f"{prefix}ids" in state:
                return state[f"{prefix}ids"], state[f"{prefix}weight"]
        raise UserError(f"{place}: {STATE_DICT} has no table {table!r}: it is of another model")

    made = plain(model, rows)
    try:
        made.load_state_dict(state)
    except RuntimeError as error:
        lines = " ".join(str(error).split())
        raise UserError(f"{place}: {STATE_DICT} does not fit the model: {lines}") from error
    return made
