"""The kinds of task, in one table: what each is about, what its success says, who waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.master.work.outcomes import DataDescribed, Done, MetricsComputed, StatesComputed, Success
from shoal.master.work.phases import Phase
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    succeeds: the outcome of its success. data: the data whose records it is about; "" for none.
    doing: in words, if all other tasks wait for it. alone_in: the phase whose only work is one
    such task, which a single worker does.
    """

    succeeds: type[Success]
    data: str = ""
    doing: str = ""
    alone_in: Phase | None = None


KINDS: Mapping[pb.TaskKind, Kind] = {
    pb.DESCRIBE_DATA: Kind(DataDescribed, doing="reading the data", alone_in=Phase.DESCRIBING),
    pb.DESCRIBE_SOURCES: Kind(DataDescribed, doing="reading the data"),
    pb.LIST_SOURCES: Kind(DataDescribed, doing="looking for new data"),
    pb.TRAIN: Kind(Done, data="training"),
    pb.EVALUATE: Kind(StatesComputed, data="validation"),
    pb.FINISH_EVALUATION: Kind(MetricsComputed, doing="computing the metrics"),
    pb.PREDICT: Kind(Done, data="prediction"),
    pb.FINISH_PREDICTION: Kind(Done, doing="completing the predictions"),
    pb.EXPORT: Kind(Done, doing="exporting the model", alone_in=Phase.EXPORTING),
}
"""Every kind there is; the worker's side of them is in worker/loop.py."""

ALONE_IN: Mapping[Phase, pb.TaskKind] = {
    kind.alone_in: number for number, kind in KINDS.items() if kind.alone_in is not None
}
"""Phase -> the kind of its only task."""
