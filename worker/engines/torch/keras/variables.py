"""Keras's variables as one flat float32 vector: of each, its parameter of PyTorch is a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shoal.worker.engines.torch.dense import FlatTensors, Variable
from shoal.worker.model.specification import manifest_of


class KerasVariable(Variable):
    """A variable of Keras. path: its own. owner: the variable."""

    @property
    def tensor(self) -> torch.Tensor:
        """Its parameter."""
        found: torch.Tensor = self.owner.value
        return found


class FlatVariables(FlatTensors):
    """Variables of Keras, seen as one flat float32 vector."""

    def __init__(self, variables: Sequence[Any]) -> None:
        """Raises UserError if a variable is not float32, or on another device than the CPU."""
        manifest_of(variables)
        super().__init__([KerasVariable(each.path, each) for each in variables])
