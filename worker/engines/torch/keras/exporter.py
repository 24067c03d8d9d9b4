"""The forms of an export that a model of Keras on PyTorch has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from shoal.worker.engines.keras_ops.exporter import OpsExporter


class KerasTorchExporter(OpsExporter):
    """See the Protocol."""

    framework = "PyTorch"

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol."""
        with torch.no_grad():
            found = list(super().predictions(folder, written, features))
        yield from found
