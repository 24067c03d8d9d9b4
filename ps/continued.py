"""What `--continue-from` names, read by the servers: all that another job's checkpoint holds.

Rows, optimizer slots, counts, steps and clocks go on; which pushes the other job's workers had sent
does not: this job's workers begin with their first. Reading a shard is restoring.py's.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.checkpoints.continued import differences, forerunner_checkpoint, refusal
from shoal.checkpoints.manifests import CheckpointError
from shoal.checkpoints.storage import Storage
from shoal.errors import UserError
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.routing import Routing
from shoal.ps.progress import Progress
from shoal.ps.restoring import restore
from shoal.ps.tables import ServerModel


class Continued:
    """What server `server` of `routing.servers` holds of the checkpoint at `location`.

    opened: as `newest_shard` takes it.
    """

    def __init__(
        self,
        location: str,
        server: int,
        routing: Routing,
        progress: Progress,
        opened: Callable[[str], Storage],
    ) -> None:
        self.location = location
        self._progress = progress
        self._opened = opened
        self._server = server
        self._routing = routing

    def read(self, spec: pb.ModelSpec) -> ServerModel:
        """As `Given.read`; the model's version and step are the checkpoint's."""
        try:
            checkpoint = forerunner_checkpoint(self.location, self._opened)
            if found := differences(checkpoint.model, spec):
                raise refusal(checkpoint, found)
            faults.point("before-checkpoint-read")
            return restore(checkpoint, self._server, self._routing, None, self._progress, spec=spec)
        except CheckpointError as error:
            raise UserError(f"--continue-from: {error}") from error
