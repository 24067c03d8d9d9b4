"""Non-finite values in a computed step, and the words of --nonfinite-gradients for them.

The worker checks too, since a step goes to several servers: a minibatch that is left out
must be left out on all of them. Owns the words; native/finite.pyx finds the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shoal.errors import UserError
from shoal.native.finite import first_not_finite
from shoal.proto import shoal_pb2 as pb
from shoal.worker.servers.pushing import Push

Float32 = npt.NDArray[np.float32]

SHOWN_IDS = 5
"""Most ids of a table in a message."""

ADVICE = (
    "lower the learning rate, clip gradients, or look for missing or huge values in the data "
    "(--fill-missing COLUMN=VALUE fills missing ones); --nonfinite-gradients=skip leaves such "
    "minibatches out"
)


class FiniteCheck:
    """policy: of --nonfinite-gradients. worker: its index, for messages."""

    def __init__(self, policy: str, spec: pb.ModelSpec, worker: int) -> None:
        self._policy = policy
        self._spec = spec
        self._worker = worker

    def checked(self, loss: float, push: Push) -> Push:
        """The same push, marked if it is to be left out. Raises UserError if that fails."""
        if self._policy == "allow":
            return push
        reason = self._reason(loss, push)
        if reason and self._policy == "fail":
            where = f"worker {self._worker}, model version {max(push.versions)}"
            raise UserError(f"{reason}: {ADVICE} ({where})")
        return replace(push, left_out=reason) if reason else push

    def _reason(self, loss: float, push: Push) -> str:
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        for table, (ids, gradients) in push.tables.items():
            if first_not_finite(gradients) >= 0:
                return f"the gradient of {_of_table(self._spec, table, ids, gradients)}"
        gradient, change = push.dense
        if (at := first_not_finite(gradient)) >= 0:
            name = _variable(self._spec.trainable, at)
            return f"the gradient of variable {name!r} is {gradient[at]}"
        if (at := first_not_finite(change)) >= 0:
            name = _variable(self._spec.non_trainable, at)
            return f"the change of variable {name!r} is {change[at]}"
        return ""


def _of_table(
    spec: pb.ModelSpec, table: int, ids: npt.NDArray[np.int64], gradients: Float32
) -> str:
    bad = ids[~np.isfinite(gradients).all(axis=1)]
    shown = ", ".join(map(str, bad[:SHOWN_IDS]))
    more = f" and {bad.size - SHOWN_IDS:,} more" if bad.size > SHOWN_IDS else ""
    return f"table {spec.tables[table].name!r} is not finite at id {shown}{more}"


def _variable(manifest: Sequence[pb.VariableSpec], element: int) -> str:
    """The variable that holds an element of a flat vector."""
    return [each.name for each in manifest if each.offset <= element][-1]
