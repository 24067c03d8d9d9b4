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
    """

    stop: str = ""


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

    DESCRIBE_SOURCES: the sources of the task.
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


@dataclass(frozen=True)
class StatesComputed:
    """EVALUATE: additive metric states."""

    states: pb.MetricStates


@dataclass(frozen=True)
class MetricsComputed:
    """FINISH_EVALUATION: the numbers. stop: as Done's."""

    metrics: dict[str, float]
    stop: str = ""


Success = Done | DataDescribed | StatesComputed | MetricsComputed
Outcome = Success | Failure


def of_report(request: pb.ReportTaskRequest) -> Outcome:
    """The outcome that a worker reports. Raises WireError if there is none."""
    match request.WhichOneof("outcome"):
        case "done":
            return Done(request.stop_training)
        case "failure":
            return Failure.from_message(request.failure)
        case "data":
            found = (request.data.training, request.data.validation, request.data.prediction)
            sources = [tuple(map(Source.from_message, kind)) for kind in found]
            data = request.data
            more = (data.more_training, data.more_validation, data.more_prediction)
            left = [tuple(FoundSource(each.name, each.weight) for each in kind) for kind in more]
            return DataDescribed(
                *(sources[0], sources[1], sources[2]),
                data.rules,
                tuple(data.notes),
                *(left[0], left[1], left[2]),
            )
        case "states":
            return StatesComputed(request.states)
        case "metrics":
            return MetricsComputed(dict(request.metrics.values), request.stop_training)
        case _:
            raise WireError(pb.BAD_REQUEST, "a report without an outcome")


@dataclass(frozen=True)
class Heartbeat:
    """A worker's sign of life.

    task: the task it works on, 0 for none.
    records_done: of the task, acknowledged by all servers.
    version: the highest model version it has seen.
    loss: mean over the `loss_batches` batches since the last heartbeat.
    stage_seconds: by stage, since the start of the process.
    acknowledged: the last push that all servers have, by sequence.
    busy_seconds, busy_with: for how long one of its threads has been at what. longest_seconds:
    that such a thing has taken so far.
    waits_for: what it waits for, out of its hands, such as storage; "" for nothing.
    left_out, left_out_records: minibatches that were left out since the start of the process, and
    their records. left_out_why: the last of them. steps_done: of training, since that start.
    learning_rate: of its last push; 0 before the first. pipeline: how many steps overlap, and why.
    """

    task: int = 0
    records_done: int = 0
    version: int = 0
    loss: float = 0.0
    loss_batches: int = 0
    stage_seconds: dict[str, float] = field(default_factory=dict)
    acknowledged: int = 0
    busy_seconds: float = 0.0
    busy_with: str = ""
    longest_seconds: float = 0.0
    waits_for: str = ""
    left_out: int = 0
    left_out_records: int = 0
    left_out_why: str = ""
    steps_done: int = 0
    learning_rate: float = 0.0
    pipeline: tuple[int, str] = (0, "")
