"""Parameters and buffers of a module as one flat float32 vector, and back.

Owns the order and the manifest of names, shapes and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Variable:
    """A parameter or buffer of a module. path: its dotted name. owner: the module that has it."""

    path: str
    owner: Any

    @classmethod
    def of(cls, module: torch.nn.Module, path: str) -> Variable:
        """The one of a dotted name within a module."""
        return cls(path, module.get_submodule(path.rpartition(".")[0]))

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor that the module has under that name now: buffers may be replaced."""
        found: torch.Tensor = getattr(self.owner, self.path.rpartition(".")[2])
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the tensor."""
        return tuple(self.tensor.shape)

    def assign(self, value: Any) -> None:
        """Set the values."""
        with torch.no_grad():
            self.tensor.copy_(torch.from_numpy(np.array(value, np.float32)).reshape(self.shape))

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        del copy
        values: Float32 = self.tensor.detach().numpy()
        return values.astype(dtype or np.float32)


def trained(module: torch.nn.Module) -> list[Variable]:
    """The parameters that require gradients, each once."""
    return [Variable.of(module, name) for name, each in _parameters(module) if each.requires_grad]


def kept(module: torch.nn.Module) -> list[Variable]:
    """The values beside trained weights: frozen parameters, and buffers of floating numbers."""
    frozen = [name for name, each in _parameters(module) if not each.requires_grad]
    buffers = [name for name, each in module.named_buffers() if each.is_floating_point()]
    return [Variable.of(module, name) for name in (*frozen, *buffers)]


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The parameters that have values: an Embedding has one without, as its rows are served."""
    return ((name, each) for name, each in module.named_parameters() if each.numel())


class FlatTensors:
    """Variables of a module, seen as one flat float32 vector."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        """Raises UserError if a variable is not float32, or on another device."""
        self.variables = list(variables)
        self.manifest: list[pb.VariableSpec] = []
        self.size = 0
        for each in self.variables:
            tensor = each.tensor
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
                what = tensor.dtype if tensor.dtype != torch.float32 else f"on {tensor.device}"
                raise UserError(
                    f"{each.path} of the model is {what}: parameters and buffers must be float32 "
                    "on the CPU. To compute in bfloat16, have forward use torch.autocast"
                )
            self.manifest.append(
                pb.VariableSpec(name=each.path, shape=each.shape, offset=self.size)
            )
            self.size += tensor.numel()

    def read(self) -> Float32:
        """The values, float32 [size], in memory of their own."""
        if not self.variables:
            return np.zeros(0, np.float32)
        with torch.no_grad():
            parts = [each.tensor.detach().reshape(-1) for each in self.variables]
            values: Float32 = torch.cat(parts).numpy()
        return values

    def assign(self, flat: Float32) -> None:
        """Let the variables be views of `flat`, float32 [size], which must not change then."""
        values = torch.from_numpy(flat)
        start = 0
        for each in self.variables:
            tensor = each.tensor
            tensor.data = values[start : start + tensor.numel()].view(tensor.shape)
            start += tensor.numel()


def is_state(tensor: torch.Tensor) -> bool:
    """True for a parameter or buffer that training changes: integers stay as they are."""
    return bool(tensor.is_floating_point())
