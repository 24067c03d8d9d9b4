"""The check of a push, before anything is logged or changed.

Owns what a push must be for it to be applied: after the check, nothing in it can make applying
it fail, in this server or in one that does it again from a log. Shapes and types that are wrong
in any model are refused by unpack.py already, values that are not finite by finite.py.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.ps.model.tables import ServerModel
from shoal.ps.model.unpack import UnpackedPush

LARGEST_NUMBER = 2**63 - 1
"""Of a sequence: messages elsewhere carry it as an int64."""

MAX_TIME = 2**62
"""Of an event time: differences of two are int64 too."""


def check_push(push: UnpackedPush, model: ServerModel, *, synchronous: bool) -> None:
    """Check a push that is new. A row that comes twice in it is updated twice, in order.

    synchronous: whether the job is one of --sync, where gradients may be pending.

    Raises WireError: BAD_REQUEST for what no worker sends, NOT_FINITE for the learning rate,
    DENSE_NOT_INITIALIZED before the model has its first dense values.
    """
    if push.request.hold and not synchronous:
        raise _refused(push, "it is to wait for an update, and the job is not one of --sync")
    check_logged(push, model)


def check_logged(push: UnpackedPush, model: ServerModel) -> None:
    """Check a push as `check_push` does, whether it comes from a worker or from a log."""
    request = push.request
    if reason := _field(request) or _tables(push, model) or _dense(push, model):
        raise _refused(push, reason)
    if push.gradients.dense is not None and not model.dense.initialized:
        raise WireError(pb.DENSE_NOT_INITIALIZED, "no dense values yet")
    if len(request.table_rates) not in (0, len(model.tables)):
        count, tables = len(request.table_rates), len(model.tables)
        raise _refused(push, f"it has {count} learning rates of tables; the model has {tables}")
    for rate in (request.learning_rate, *request.table_rates):
        if not math.isfinite(rate):
            raise _refused(push, f"its learning rate is {rate}", pb.NOT_FINITE)
    try:
        model.check_learning_rates(request.learning_rate, request.table_rates)
    except ValueError as error:
        raise _refused(push, str(error)) from error


def _refused(push: UnpackedPush, reason: str, kind: pb.ErrorKind = pb.BAD_REQUEST) -> WireError:
    identity = push.request.identity
    return WireError(
        kind,
        f"push {identity.sequence} of worker {identity.worker}, incarnation "
        f"{identity.incarnation}, was refused: {reason}",
    )


def _field(request: pb.PushRequest) -> str:
    """The fault of a number of the header; "" for none."""
    sequence = request.identity.sequence
    if not 1 <= sequence <= LARGEST_NUMBER:
        return f"its sequence is not from 1 to {LARGEST_NUMBER}"
    for name in ("pulled_version", "task", "records_done", "own_pushes"):
        if getattr(request, name) < 0:
            return f"its {name} is {getattr(request, name)}"
    if request.own_pushes >= sequence:
        return f"its own_pushes is {request.own_pushes}: so many cannot come before it"
    # Its age is counted once it is applied; the clock never goes below 0.
    if not 0 <= request.pulled_time < math.inf:
        return f"its pulled_time is {request.pulled_time}"
    if not -MAX_TIME < request.event_time < MAX_TIME:
        return f"its event_time is {request.event_time}"
    return ""


def _tables(push: UnpackedPush, model: ServerModel) -> str:
    for position, (ids, gradients) in push.gradients.tables.items():
        if position >= len(model.tables):
            return f"there is no table {position}: the model has {len(model.tables)}"
        dim = model.dim(position)
        if gradients.shape != (ids.size, dim):
            return (
                f"table {model.spec.tables[position].name!r}: gradients of shape "
                f"{gradients.shape} for {ids.size} ids of dim {dim}"
            )
    return ""


def _dense(push: UnpackedPush, model: ServerModel) -> str:
    if push.gradients.dense is None:
        return ""
    wanted = (model.dense.elements,), (model.dense.state_elements,)
    given = tuple(part.shape for part in push.gradients.dense)
    if given != wanted or any(part.dtype != np.float32 for part in push.gradients.dense):
        types = ", ".join(str(part.dtype) for part in push.gradients.dense)
        return (
            f"dense slices of {given[0]} and {given[1]} elements ({types}); float32 of "
            f"{wanted[0]} and {wanted[1]} are this server's"
        )
    return ""
