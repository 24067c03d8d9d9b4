"""The engine of TensorFlow, as engines/engine.py wants one: names what does each part."""

from __future__ import annotations

from functools import partial

import keras

from shoal.worker.engines.engine import Engine
from shoal.worker.engines.tensorflow.input.numpy_feed import pipeline
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.engines.tensorflow.model.kernel_layout import kernel_layouts
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
    steps = CompiledSteps
    evaluator = Evaluator
    explained = staticmethod(explained)
    kernel_layouts = staticmethod(kernel_layouts)
    joined = staticmethod(joined)
    exporter = staticmethod(partial(KerasExporter, saved_models=saved_model))

    def share_cores(self, processes: int) -> None:
        """Not done: its threads take parts of operations as they are free, so many cost little."""


ENGINE: Engine = TensorFlow()
