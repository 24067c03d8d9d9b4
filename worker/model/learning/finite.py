"""Non-finite values in a computed step, and the words of --nonfinite-gradients for them.

What is not finite is base/finite.py's to find.
"""

from __future__ import annotations

import math
from dataclasses import replace

from shoal.base.finite import not_finite
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.servers.pushing import Push

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
        lost = "" if math.isfinite(loss) else f"the loss is {loss}"
        reason = lost or not_finite(self._spec, push.tables, push.dense)
        if reason and self._policy == "fail":
            where = f"worker {self._worker}, model version {max(push.versions)}"
            raise UserError(f"{reason}: {ADVICE} ({where})")
        return replace(push, left_out=reason) if reason else push
