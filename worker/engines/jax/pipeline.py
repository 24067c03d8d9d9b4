"""Batches of NumPy's arrays, of the types that a step of JAX is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from shoal.base.nested import mapped, named_leaves
from shoal.data.reader import DataReader
from shoal.errors import UserError
from shoal.worker.code.module import UserModule
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.jax.arrays import on_host, spec_on_host


class Pipeline(HostPipeline):
    """Batches of one kind of data; features of text are the ids of its strings."""

    def __init__(
        self, reader: DataReader, module: UserModule, mode: str, flag: str, *more: Any, **named: Any
    ) -> None:
        """See the Protocol. Raises UserError as HostPipeline does, and for labels of text."""
        super().__init__(reader, module, mode, flag, *more, arrays=_on_host, **named)
        for name, spec in named_leaves(self.labels_spec):
            if spec is not None and spec.dtype == np.dtype(object):
                what = f"labels {name!r}" if name else "labels"
                raise UserError(
                    f"{module.describe(module.feed_name)} gives text as {what}, and the loss takes "
                    f"numbers: make numbers of them in {module.feed_name}, such as "
                    '(labels == b"yes").astype("float32")'
                )
        of_batch = partial(mapped, spec_on_host)
        self.features_spec = of_batch(self.features_spec)
        self.labels_spec = of_batch(self.labels_spec)
        self.weights_spec = of_batch(self.weights_spec)


def _on_host(nested: Any) -> Any:
    return mapped(lambda array: None if array is None else on_host(array), nested)
