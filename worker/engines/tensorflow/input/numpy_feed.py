"""Pipelines of a feed_batch that works on NumPy's arrays, and cannot be traced with tensors.

Owns telling such a function: by what it raises when it is traced.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import tensorflow as tf

from shoal.base.nested import mapped
from shoal.config.groups.event_time import EventTime
from shoal.data.columns import ListColumn
from shoal.data.reader import DataReader
from shoal.errors import UserCodeError, UserError
from shoal.files.patience import Patience
from shoal.worker.code.module import UserModule
from shoal.worker.engines.engine import InputPipeline
from shoal.worker.engines.host.pipeline import HostPipeline
from shoal.worker.engines.tensorflow.input.feed import InputPipeline as Traced
from shoal.worker.engines.tensorflow.tensors import tensor_of
from shoal.worker.input.spec import ArraySpec
from shoal.worker.reports.progress import Progress

logger = logging.getLogger(__name__)

_SYMBOLIC = re.compile(
    r"symbolic|SymbolicTensor|RaggedTensor|tf\.Tensor|Tensor is unhashable|as shape arguments"
)
"""In what a tensor without a value raises where there has to be one."""

_NUMPY = re.compile(
    r"to a numpy array|np\.ndarray|Unsupported return value from function passed to"
)
"""In what it raises where an array has to be."""

_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")

_told: set[str] = set()


def pipeline(
    reader: DataReader,
    module: UserModule,
    mode: str,
    flag: str,
    batch_size: int,
    progress: Progress | None = None,
    patience: Patience | None = None,
    event_time: EventTime | None = None,
) -> InputPipeline:
    """The pipeline of the user's function, see the Protocol of engines.

    A feed_batch that cannot be traced as it works on arrays is called with arrays.
    """
    given = reader, module, mode, flag, batch_size, progress, patience, event_time
    try:
        return Traced(*given)
    except (UserCodeError, UserError) as error:
        certain, possible = signs_of_arrays(error)
        if module.feed_batch is None or not (certain or possible):
            raise
        try:
            made = _NumpyPipeline(*given)
        except (UserCodeError, UserError):
            if certain:
                raise
            raise error from None
        name = module.describe(module.feed_name)
        if name not in _told:
            _told.add(name)
            logger.info(
                "%s works on NumPy's arrays: it is called with arrays of whole minibatches, and "
                "not made a part of TensorFlow's graph",
                name,
            )
        return made


class _NumpyPipeline(HostPipeline):
    """Batches of tensors, made of the arrays that feed_batch gives."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given, arrays=_tensors)
        self.features_spec = mapped(_spec_of, self.features_spec)
        self.labels_spec = mapped(_spec_of, self.labels_spec)
        self.weights_spec = mapped(_spec_of, self.weights_spec)


def _tensors(nested: Any) -> Any:
    return mapped(lambda array: None if array is None else tensor_of(array), nested)


def _spec_of(spec: ArraySpec | None) -> Any:
    # TensorFlow, too, takes objects as texts.
    return None if spec is None else tf.TensorSpec(spec.shape, spec.dtype)


def signs_of_arrays(error: BaseException | None) -> tuple[bool, bool]:
    """Signs in what a trace raised that the function takes arrays: certain ones, and possible."""
    certain = possible = False
    while error is not None:
        text = str(error)
        found = _ATTRIBUTE.search(text)
        certain |= bool(_NUMPY.search(text)) or (
            found is not None
            and any(hasattr(kind, found[1]) for kind in (np.ndarray, np.dtype, ListColumn))
        )
        possible |= bool(_SYMBOLIC.search(text))
        error = error.__cause__
    return certain, possible
