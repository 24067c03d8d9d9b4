"""The outcomes that a worker reports of its task, one class each, and the tasks they fit.

A failure is an outcome too: failures.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.master.work.failures import Failure
from shoal.master.work.units import FoundSource, Source
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError


@dataclass(frozen=True)
class Done:
    """TRAIN, PREDICT, FINISH_PREDICTION, EXPORT: all of it is done.

    stop: TRAIN: why a callback of the user's asks for training to end; empty if none does.
    progressive: TRAIN: metric states of predictions in training, of `records` records; None for no
        record.
    """

    stop: str = ""
    progressive: pb.MetricStates | None = None
    records: int = 0


@dataclass(frozen=True)
class Trained:
    """The part of a TRAIN task that was trained when it failed.

    done: head of its records that all servers have. touched: head that some servers may have; it is
    larger than `done` if the records of a push are not known.
    """

    done: int = 0
    touched: int = 0


NOTHING_TRAINED = Trained()


@dataclass(frozen=True)
class DataDescribed:
    """DESCRIBE_DATA: what there is to read, and when training ends before it.

    DESCRIBE_SOURCES: the sources of the task. LIST_SOURCES: those that are there, or have come
    since, among more_training, and token: where the next listing begins.
    notes: for the job's messages. more_...: sources that were found and not described, in the order
    in which they should be.
    """

    training: tuple[Source, ...] = ()
    validation: tuple[Source, ...] = ()
    prediction: tuple[Source, ...] = ()
    rules: pb.TrainingRules = field(default_factory=pb.TrainingRules)
    notes: tuple[str, ...] = ()
    more_training: tuple[FoundSource, ...] = ()
    more_validation: tuple[FoundSource, ...] = ()
    more_prediction: tuple[FoundSource, ...] = ()
    token: str = ""


@dataclass(frozen=True)
class StatesComputed:
    """EVALUATE: additive metric states."""

    states: pb.MetricStates


@dataclass(frozen=True)
class MetricsComputed:
    """FINISH_EVALUATION: the numbers. stop: as Done's. slices: the worst ones, if there are any."""

    metrics: dict[str, float]
    stop: str = ""
    slices: tuple[pb.SliceMetrics, ...] = ()


Success = Done | DataDescribed | StatesComputed | MetricsComputed
Outcome = Success | Failure


def of_report(request: pb.ReportTaskRequest) -> Outcome:
    """The outcome that a worker reports. Raises WireError if there is none."""
    match request.WhichOneof("outcome"):
        case "done":
            states = request.progressive if request.HasField("progressive") else None
            return Done(request.stop_training, states, request.progressive_records)
        case "failure":
            return Failure.from_message(request.failure)
        case "data":
            found = (request.data.training, request.data.validation, request.data.prediction)
            sources = [tuple(map(Source.from_message, kind)) for kind in found]
            data = request.data
            more = (data.more_training, data.more_validation, data.more_prediction)
            left = [tuple(map(FoundSource.from_message, kind)) for kind in more]
            return DataDescribed(
                *(sources[0], sources[1], sources[2]),
                data.rules,
                tuple(data.notes),
                *(left[0], left[1], left[2]),
                data.token,
            )
        case "states":
            return StatesComputed(request.states)
        case "metrics":
            metrics = request.metrics
            return MetricsComputed(
                dict(metrics.values), request.stop_training, tuple(metrics.slices)
            )
        case _:
            raise WireError(pb.BAD_REQUEST, "a report without an outcome")
