"""The forms of an export that a model of Keras on PyTorch has."""

from __future__ import annotations

from shoal.worker.engines.keras_ops.exporter import OpsExporter


class KerasTorchExporter(OpsExporter):
    """See the Protocol."""

    framework = "PyTorch"
