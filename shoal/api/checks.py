"""`shoal.check`, in the form of the functions of `shoal.api`: it looks, and starts no job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shoal.api.calls import AnyPath, Data, checking
from shoal.client.inspection import CheckReport
from shoal.config.signatures import documented


@documented("check")
def check(
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
    model_def: str = "",
    model_zoo: AnyPath = ".",
    model_params: str | Mapping[str, Any] = "",
    training_data: Data = "",
    event_time: str = "",
    data_format: str = "",
    csv_separator: str = "",
    csv_columns: str | Sequence[str] = "",
    csv_quotes: str = "double",
    csv_comment: str = "",
    columns: str | Sequence[str] = "",
    fill_missing: str | Sequence[str] | Mapping[str, Any] = "",
    missing_mask: str | Sequence[str] = "",
    minibatch_size: int = 256,
    seed: int = 0,
    num_ps: int = 1,
    embedding_threshold: int = 2_000_000,
    table: str | Sequence[str] | Mapping[str, Any] = "",
    export_dtype: str = "auto",
) -> CheckReport:
    """Look at a model and its data without a job: what would live where, what is unsupported.

    model, loss, ... label: the model by value, as `train` takes it.

    With training_data, one batch is read, trained and evaluated. The report tells it when it is
    shown or printed, and is true if nothing is at fault. Raises UserError for what is found
    before the model is built.
    """
    return checking(locals())
