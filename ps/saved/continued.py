"""The checkpoint that `--continue-from` names: the servers read all that it holds.

Rows, optimizer slots, counts, steps and clocks go on. The other job's pushes do not: this job's
workers begin with their first. Reading a shard is restoring.py's.
"""

from __future__ import annotations

from shoal.checkpoints.continued import differences, forerunner_checkpoint, refusal
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.errors import UserError
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.beginning import Given
from shoal.ps.saved.restoring import restore


class Continued(Given):
    """The values of another job's checkpoint."""

    def read(self, spec: pb.ModelSpec) -> ServerModel:
        """The model, as `Given.read` gives it; its version and step are the checkpoint's."""
        try:
            checkpoint = forerunner_checkpoint(self.location, self.opened)
            if found := differences(checkpoint.model, spec):
                raise refusal(checkpoint, found)
            faults.point("before-checkpoint-read")
            return restore(checkpoint, self.server, self.routing, None, self.progress, spec=spec)
        except CheckpointError as error:
            raise UserError(f"--continue-from: {error}") from error
