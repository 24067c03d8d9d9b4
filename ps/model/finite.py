"""The servers' check that a push holds no NaN and no infinity: the last line of defence.

Workers look before they send (worker/model/learning/finite.py), so that what is left out is left
out on all servers. What comes here all the same would ruin rows for good, and is refused whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from shoal.native.finite import first_not_finite
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import flat_size, slice_of
from shoal.ps.model.gradients import Gradients

SHOWN_IDS = 5
"""Most ids of a table in a message."""


def check_finite(
    push: Gradients, identity: pb.PushIdentity, spec: pb.ModelSpec, server: int, servers: int
) -> None:
    """Raises WireError(NOT_FINITE), which names what is not finite, before anything changes."""
    reason = _reason(push, spec, server, servers)
    if reason:
        raise WireError(
            pb.NOT_FINITE,
            f"push {identity.sequence} of worker {identity.worker}, incarnation "
            f"{identity.incarnation}, was refused by server {server}: {reason}",
        )


def _reason(push: Gradients, spec: pb.ModelSpec, server: int, servers: int) -> str:
    for position, (ids, gradients) in push.tables.items():
        if first_not_finite(gradients) >= 0:
            bad = ids[~np.isfinite(gradients).all(axis=1)]
            shown = ", ".join(map(str, bad[:SHOWN_IDS]))
            more = f" and {bad.size - SHOWN_IDS:,} more" if bad.size > SHOWN_IDS else ""
            name = spec.tables[position].name
            return f"the gradient of table {name!r} is not finite at id {shown}{more}"
    if push.dense is None:
        return ""
    named = (("gradient", spec.trainable), ("change", spec.non_trainable))
    for (what, manifest), part in zip(named, push.dense, strict=True):
        if (at := first_not_finite(part)) >= 0:
            first = slice_of(flat_size(manifest), server, servers).start
            return f"the {what} of variable {_variable(manifest, first + at)!r} is {part[at]}"
    return ""


def _variable(manifest: Sequence[pb.VariableSpec], element: int) -> str:
    """The variable that holds an element of a flat vector."""
    return manifest[bisect_right([each.offset for each in manifest], element) - 1].name
