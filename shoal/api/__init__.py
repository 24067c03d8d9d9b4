"""The Python API: a function per command, with the flags as keyword arguments.

    result = shoal.train(model_def="deepfm.custom_model", training_data="train.parquet")

The same jobs as the command line's: separate processes, the same display, the same
job folder. The arguments, their help and messages are signatures.py's; `__init__.pyi` has them for
editors and type checkers, written by tests/docs/signatures.py. What the functions do is calls.py's,
`shoal.check` is in checks.py.
"""

from __future__ import annotations

from typing import Any

from shoal.api.calls import begun
from shoal.api.jobs import Job
from shoal.config.signatures import documented
from shoal.result import JobResult


@documented("train")
def train(**arguments: Any) -> JobResult | Job:
    """Train a model and return the result of the job.

    training_data is required, and model or model_def. Data may be a path or a URL, a DataFrame of
    pandas or Polars, a pyarrow Table or Dataset, a tf.data.Dataset or a dict of arrays; also a
    tuple (x, y) or (x, y, sample_weight), as in Keras.

    The model by value, instead of model_def:

      model: a Keras model or a torch.nn.Module, or a function or class without arguments that
          gives one. Of a compiled model, loss, optimizer and metrics are those it was compiled
          with.
      loss, loss_weights: as in a module; also an object of Keras or its name.
      optimizer: an optimizer of Keras, its name, or a dict of these by table name; or a function
          that gives one of these. For a torch.nn.Module, one of torch.optim, or a function of the
          parameters that gives one.
      training_step, scheduler: as in the module of a torch.nn.Module; training_step is in the
          place of loss.
      feed, feed_batch: functions as in a module. Without one the model's inputs are the columns of
          their names.
      metrics: a list of metrics, a dict of them by name, or a function that gives such a dict.
      callbacks: a list, or a function that gives one.
      class_weight: a dict from class to the weight of its records in the loss, for training.
      label: the column of the labels, without feed; by default the only one that is no input of
          the model, or the one that is called label.
      sample_weight: the column of the records' weights in the loss, without feed.

    validation_split: the fraction of the records of training_data, which is no path, that are
    validation data: the last ones.
    verbose: how progress is shown. 0: not at all; 1: in a display that is drawn anew; 2: in lines;
    "auto": 1 in a terminal or a notebook, else 2. display: another place in its stead.
    wait: False returns a `Job` when the job has begun, and the job goes on; errors of its start and
    end are those of Job.result(). A program that ends waits for its jobs.

    Raises UserError if the job cannot be started, JobFailedError if it fails or is
    stopped.
    """
    return begun("train", arguments)


@documented("evaluate")
def evaluate(**arguments: Any) -> JobResult | Job:
    """Evaluate a trained model, as `train`; validation_data and restore_from are required.

    restore_from may be the result of a training job, which also has the model.
    """
    return begun("evaluate", arguments)


@documented("predict")
def predict(**arguments: Any) -> JobResult | Job:
    """Predict, as `train`; prediction_data, restore_from and output are required.

    restore_from may be the result of a training job, which also has the model.
    """
    return begun("predict", arguments)
