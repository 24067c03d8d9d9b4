"""The engine of TensorFlow, as engines/engine.py wants one: names what does each part."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from shoal.worker.engines.engine import Engine
from shoal.worker.engines.tensorflow.input.numpy_feed import pipeline
from shoal.worker.engines.tensorflow.model.clipping import clipped
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.flat import FlatVariables
from shoal.worker.engines.tensorflow.model.id_trace import IdTrace, activation
from shoal.worker.engines.tensorflow.model.kernel_layout import kernel_layouts
from shoal.worker.engines.tensorflow.model.lookups import RecordLookup, scattered
from shoal.worker.engines.tensorflow.model.losses import Losses
from shoal.worker.engines.tensorflow.model.sample_weights import weights_of_classes
from shoal.worker.engines.tensorflow.model.step_errors import explained
from shoal.worker.engines.tensorflow.model.steps import CompiledSteps
from shoal.worker.engines.tensorflow.outputs import saved_model
from shoal.worker.engines.tensorflow.outputs.predicted import joined
from shoal.worker.model.keras_models import build_keras_model, optimizers_of
from shoal.worker.model.supported import check_features
from shoal.worker.outputs.keras_export import KerasExporter


class TensorFlow:
    """See the Protocol."""

    build = staticmethod(build_keras_model)
    check_optimizer = staticmethod(optimizers_of)
    any_optimizer = keras.optimizers.SGD
    check_features = staticmethod(check_features)
    pipeline = staticmethod(pipeline)
    ids = IdTrace
    recording = RecordLookup
    dense = FlatVariables
    losses = Losses
    steps = CompiledSteps
    evaluator = Evaluator
    clipped = staticmethod(clipped)
    weights_of_classes = staticmethod(weights_of_classes)
    explained = staticmethod(explained)
    activation = staticmethod(activation)
    scattered = staticmethod(scattered)
    kernel_layouts = staticmethod(kernel_layouts)
    joined = staticmethod(joined)
    exporter = staticmethod(partial(KerasExporter, saved_models=saved_model))
    eagerly = staticmethod(tf.init_scope)

    def share_cores(self, processes: int) -> None:
        """Not done: its threads take parts of operations as they are free, so many cost little."""

    def seed(self, number: int) -> None:
        """See the Protocol."""
        tf.random.set_seed(number)

    def spec_of_input(self, tensor: Any) -> Any:
        """See the Protocol."""
        if getattr(tensor, "ragged", False):
            return tf.RaggedTensorSpec(tensor.shape, tensor.dtype)
        if getattr(tensor, "sparse", False):
            return tf.SparseTensorSpec(tensor.shape, tensor.dtype)
        return tf.TensorSpec(tensor.shape, tensor.dtype)


ENGINE: Engine = TensorFlow()
