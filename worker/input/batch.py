"""A batch: what input gives, and training, evaluation and prediction take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class Batch:
    """features and labels as feed gave them, batched; labels None in prediction.

    weights: of the records in the loss, as feed gave them; None if it gives none.
    size: elements in the batch. first: elements of the range before it.
    records_done: records of the range used up with this batch; 0 while that is not
        known because feed changes the order or number of records.
    records: those that it was made of; where that is not known, the whole range.
    event_time: the median of its records' times, microseconds since 1970; None without
        --event-time.
    """

    features: Any
    labels: Any
    size: int
    first: int
    records_done: int
    records: pb.Range = field(default_factory=pb.Range)
    event_time: int | None = None
    weights: Any = None
