"""The Python API: a function per command, with the flags as keyword arguments.

    result = shoal.train(model_def="deepfm.custom_model", training_data="train.parquet")

The same jobs as the command line's: separate processes, the same display, the same
job folder. The arguments are written out here for editors and type checkers, and
tests/docs/test_flags.py holds them against the fields of JobConfig. Their help and messages are
signatures.py's, what the functions do is calls.py's; `shoal.check` is in checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from shoal.api.calls import AnyPath, Data, run, start
from shoal.api.jobs import Job
from shoal.client.display import Display
from shoal.config.signatures import documented
from shoal.result import JobResult


@overload
def train(*, wait: Literal[False], **arguments: Any) -> Job: ...


@overload
def train(
    *,
    model: Any = None,
    loss: Any = None,
    loss_weights: Any = None,
    optimizer: Any = None,
    feed: Callable[..., Any] | None = None,
    feed_batch: Callable[..., Any] | None = None,
    metrics: Any = None,
    callbacks: Any = None,
    class_weight: Mapping[int, float] | None = None,
    label: str | None = None,
    validation_split: float = 0.0,
    model_def: str = "",
    model_zoo: AnyPath = ".",
    model_params: str | Mapping[str, Any] = "",
    job_name: str = "",
    job_dir: AnyPath = "",
    overwrite: bool = False,
    tls: str = "auto",
    insecure: bool = False,
    log_level: str = "info",
    log_format: str = "text",
    training_data: Data = "",
    validation_data: Data = "",
    event_time: str = "",
    index_dir: AnyPath = "",
    data_format: str = "",
    csv_separator: str = "",
    csv_columns: str | Sequence[str] = "",
    csv_quotes: str = "double",
    csv_comment: str = "",
    columns: str | Sequence[str] = "",
    fill_missing: str | Sequence[str] | Mapping[str, Any] = "",
    missing_mask: str | Sequence[str] = "",
    epochs: int = 1,
    batch_size: int = 256,
    num_minibatches_per_task: int = 16,
    accumulate: int = 1,
    seed: int = 0,
    shuffle: str = "tasks",
    order: str = "any",
    max_bad_records: int = 0,
    nonfinite_gradients: str = "fail",
    step_losses: bool = False,
    pipeline_depth: int = -1,
    row_cache_mb: int = 0,
    row_cache_staleness: int = 8,
    staleness_bound: int = -1,
    lr_staleness_modulation: bool = False,
    strategy: str = "parameter-server",
    sync: bool = False,
    grads_to_wait: int = 0,
    sync_late: str = "drop",
    servers: int | str = 1,
    embedding_threshold: int = 2_000_000,
    table: str | Sequence[str] | Mapping[str, Any] = "",
    wire_dtype: str = "float32",
    durability: str = "auto",
    on_loss: str = "retrain",
    log_place: str = "auto",
    log_mb: int = 1024,
    log_fsync: bool = False,
    checkpoint_dir: AnyPath = "",
    checkpoint_seconds: float = 300.0,
    checkpoint_steps: int = 0,
    keep_checkpoint_max: int = 3,
    restore_from: AnyPath | JobResult = "",
    continue_from: AnyPath | JobResult = "",
    only_new: bool = False,
    latest: AnyPath = "",
    evaluation_steps: int = -1,
    evaluation_workers: int = 0,
    output: AnyPath = "",
    export: str = "keras,savedmodel",
    export_max_table_mb: int = 512,
    export_dtype: str = "auto",
    metrics_seconds: float = 10.0,
    tensorboard_dir: AnyPath = "",
    workers: int | str = 1,
    relaunch_limit: int = 3,
    relaunch_window_seconds: float = 3600.0,
    step_timeout_seconds: float = 600.0,
    heartbeat_seconds: float = 1.0,
    worker_timeout_seconds: float = 30.0,
    server_timeout_seconds: float = 60.0,
    master_timeout_seconds: float = 120.0,
    server_patience_seconds: float = 120.0,
    serve_metrics: bool = False,
    metrics_hot_ids: int = 0,
    storage_patience_seconds: float = 300.0,
    autoscale: str = "on",
    scale_efficiency: float = 0.5,
    scale_seconds: float = 20.0,
    max_cpu: float = 0.0,
    max_memory: str = "",
    image: str = "",
    server_image: str = "",
    min_workers: int = 1,
    namespace: str = "",
    service_account: str = "shoal",
    image_pull_policy: str = "",
    master_resource_request: str = "cpu=0.1,memory=256Mi",
    master_resource_limit: str = "",
    ps_resource_request: str = "cpu=0.5,memory=1Gi",
    ps_resource_limit: str = "",
    worker_resource_request: str = "cpu=1,memory=2Gi",
    worker_resource_limit: str = "",
    master_priority: str = "",
    ps_priority: str = "",
    worker_priority: str = "",
    kueue_queue: str = "",
    volcano_min_member: int = 0,
    volcano_queue: str = "",
    oom_memory_factor: float = 1.5,
    volume: str = "",
    env_from_secret: str = "",
    metrics_secret: str = "shoal-metrics",
    pod_template: str = "",
    start_timeout: float = 0.0,
    active_deadline_seconds: int = 0,
    ttl_seconds_after_finished: int = -1,
    display: Display | None = None,
    verbose: int | str = "auto",
    wait: Literal[True] = True,
) -> JobResult: ...


@documented("train")
def train(*, wait: bool = True, **arguments: Any) -> JobResult | Job:
    """Train a model and return the result of the job.

    training_data is required, and model or model_def. Data may be a path or a URL, a DataFrame of
    pandas or Polars, a pyarrow Table or Dataset, a tf.data.Dataset or a dict of arrays.

    The model by value, instead of model_def:

      model: a Keras model, or a function or class without arguments that gives one. Of a compiled
          model, loss, optimizer and metrics are those it was compiled with.
      loss, loss_weights: as in a module; also an object of Keras or its name.
      optimizer: an optimizer of Keras, its name, or a dict of these by table name; or a function
          that gives one of these.
      feed, feed_batch: functions as in a module. Without one the model's inputs are the columns of
          their names.
      metrics: a list of metrics, a dict of them by name, or a function that gives such a dict.
      callbacks: a list, or a function that gives one.
      class_weight: a dict from class to the weight of its records in the loss, for training.
      label: the column of the labels, without feed; by default the only one that is no input of
          the model, or the one that is called label.

    validation_split: the fraction of the records of training_data, which is no path, that are
    validation data: the last ones.
    verbose: how progress is shown. 0: not at all; 1: in a display that is drawn anew; 2: in lines;
    "auto": 1 in a terminal or a notebook, else 2. display: another place in its stead.
    wait: False returns a `Job` when the job has begun, and the job goes on; errors of its start and
    end are those of Job.result(). A program that ends waits for its jobs.

    Raises UserError if the job cannot be started, JobFailedError if it fails or is
    stopped.
    """
    return run("train", arguments) if wait else start("train", arguments)


@overload
def evaluate(*, wait: Literal[False], **arguments: Any) -> Job: ...


@overload
def evaluate(
    *,
    model_def: str = "",
    model_zoo: AnyPath = ".",
    model_params: str | Mapping[str, Any] = "",
    job_name: str = "",
    job_dir: AnyPath = "",
    overwrite: bool = False,
    tls: str = "auto",
    insecure: bool = False,
    log_level: str = "info",
    log_format: str = "text",
    validation_data: Data = "",
    index_dir: AnyPath = "",
    data_format: str = "",
    csv_separator: str = "",
    csv_columns: str | Sequence[str] = "",
    csv_quotes: str = "double",
    csv_comment: str = "",
    columns: str | Sequence[str] = "",
    fill_missing: str | Sequence[str] | Mapping[str, Any] = "",
    missing_mask: str | Sequence[str] = "",
    batch_size: int = 256,
    num_minibatches_per_task: int = 16,
    seed: int = 0,
    max_bad_records: int = 0,
    servers: int | str = 1,
    embedding_threshold: int = 2_000_000,
    table: str | Sequence[str] | Mapping[str, Any] = "",
    wire_dtype: str = "float32",
    restore_from: AnyPath | JobResult = "",
    metrics_seconds: float = 10.0,
    tensorboard_dir: AnyPath = "",
    workers: int | str = 1,
    relaunch_limit: int = 3,
    relaunch_window_seconds: float = 3600.0,
    step_timeout_seconds: float = 600.0,
    heartbeat_seconds: float = 1.0,
    worker_timeout_seconds: float = 30.0,
    server_timeout_seconds: float = 60.0,
    master_timeout_seconds: float = 120.0,
    server_patience_seconds: float = 120.0,
    serve_metrics: bool = False,
    storage_patience_seconds: float = 300.0,
    image: str = "",
    server_image: str = "",
    min_workers: int = 1,
    namespace: str = "",
    service_account: str = "shoal",
    image_pull_policy: str = "",
    master_resource_request: str = "cpu=0.1,memory=256Mi",
    master_resource_limit: str = "",
    ps_resource_request: str = "cpu=0.5,memory=1Gi",
    ps_resource_limit: str = "",
    worker_resource_request: str = "cpu=1,memory=2Gi",
    worker_resource_limit: str = "",
    master_priority: str = "",
    ps_priority: str = "",
    worker_priority: str = "",
    kueue_queue: str = "",
    volcano_min_member: int = 0,
    volcano_queue: str = "",
    oom_memory_factor: float = 1.5,
    volume: str = "",
    env_from_secret: str = "",
    metrics_secret: str = "shoal-metrics",
    pod_template: str = "",
    start_timeout: float = 0.0,
    active_deadline_seconds: int = 0,
    ttl_seconds_after_finished: int = -1,
    display: Display | None = None,
    verbose: int | str = "auto",
    wait: Literal[True] = True,
) -> JobResult: ...


@documented("evaluate")
def evaluate(*, wait: bool = True, **arguments: Any) -> JobResult | Job:
    """Evaluate a trained model, as `train`; validation_data and restore_from are required.

    restore_from may be the result of a training job, which also has the model.
    """
    return run("evaluate", arguments) if wait else start("evaluate", arguments)


@overload
def predict(*, wait: Literal[False], **arguments: Any) -> Job: ...


@overload
def predict(
    *,
    model_def: str = "",
    model_zoo: AnyPath = ".",
    model_params: str | Mapping[str, Any] = "",
    job_name: str = "",
    job_dir: AnyPath = "",
    overwrite: bool = False,
    tls: str = "auto",
    insecure: bool = False,
    log_level: str = "info",
    log_format: str = "text",
    prediction_data: Data = "",
    index_dir: AnyPath = "",
    data_format: str = "",
    csv_separator: str = "",
    csv_columns: str | Sequence[str] = "",
    csv_quotes: str = "double",
    csv_comment: str = "",
    columns: str | Sequence[str] = "",
    fill_missing: str | Sequence[str] | Mapping[str, Any] = "",
    missing_mask: str | Sequence[str] = "",
    batch_size: int = 256,
    num_minibatches_per_task: int = 16,
    seed: int = 0,
    max_bad_records: int = 0,
    servers: int | str = 1,
    embedding_threshold: int = 2_000_000,
    table: str | Sequence[str] | Mapping[str, Any] = "",
    wire_dtype: str = "float32",
    restore_from: AnyPath | JobResult = "",
    output: AnyPath = "",
    in_order: bool = False,
    metrics_seconds: float = 10.0,
    tensorboard_dir: AnyPath = "",
    workers: int | str = 1,
    relaunch_limit: int = 3,
    relaunch_window_seconds: float = 3600.0,
    step_timeout_seconds: float = 600.0,
    heartbeat_seconds: float = 1.0,
    worker_timeout_seconds: float = 30.0,
    server_timeout_seconds: float = 60.0,
    master_timeout_seconds: float = 120.0,
    server_patience_seconds: float = 120.0,
    serve_metrics: bool = False,
    storage_patience_seconds: float = 300.0,
    image: str = "",
    server_image: str = "",
    min_workers: int = 1,
    namespace: str = "",
    service_account: str = "shoal",
    image_pull_policy: str = "",
    master_resource_request: str = "cpu=0.1,memory=256Mi",
    master_resource_limit: str = "",
    ps_resource_request: str = "cpu=0.5,memory=1Gi",
    ps_resource_limit: str = "",
    worker_resource_request: str = "cpu=1,memory=2Gi",
    worker_resource_limit: str = "",
    master_priority: str = "",
    ps_priority: str = "",
    worker_priority: str = "",
    kueue_queue: str = "",
    volcano_min_member: int = 0,
    volcano_queue: str = "",
    oom_memory_factor: float = 1.5,
    volume: str = "",
    env_from_secret: str = "",
    metrics_secret: str = "shoal-metrics",
    pod_template: str = "",
    start_timeout: float = 0.0,
    active_deadline_seconds: int = 0,
    ttl_seconds_after_finished: int = -1,
    display: Display | None = None,
    verbose: int | str = "auto",
    wait: Literal[True] = True,
) -> JobResult: ...


@documented("predict")
def predict(*, wait: bool = True, **arguments: Any) -> JobResult | Job:
    """Predict, as `train`; prediction_data, restore_from and output are required.

    restore_from may be the result of a training job, which also has the model.
    """
    return run("predict", arguments) if wait else start("predict", arguments)
