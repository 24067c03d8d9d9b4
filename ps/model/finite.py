"""The servers' check that a push holds no NaN and no infinity: the last line of defence.

Workers look before they send (worker/model/learning/finite.py), so that what is left out is left
out on all servers. What comes here all the same would ruin rows for good, and is refused whole.
"""

from __future__ import annotations

from shoal.base.finite import not_finite
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import flat_size, slice_of
from shoal.ps.model.gradients import Gradients


def check_finite(
    push: Gradients, identity: pb.PushIdentity, spec: pb.ModelSpec, server: int, servers: int
) -> None:
    """Raises WireError(NOT_FINITE), which names what is not finite, before anything changes."""
    flat = (spec.trainable, spec.non_trainable)
    starts = [slice_of(flat_size(each), server, servers).start for each in flat]
    reason = not_finite(spec, push.tables, push.dense, starts)
    if reason:
        raise WireError(
            pb.NOT_FINITE,
            f"push {identity.sequence} of worker {identity.worker}, incarnation "
            f"{identity.incarnation}, was refused by server {server}: {reason}",
        )
