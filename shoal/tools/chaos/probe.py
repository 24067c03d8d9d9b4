"""Asks the processes of a running job how far it is. Owns the connections to them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.asking import connection_to
from shoal.config.job import JobConfig
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.tools.chaos.schedule import Seen

MASTER_LOOKS = 5
"""So many looks at the servers for one at the master."""

CALL_SECONDS = 1.0
"""Deadline of one look: a process may be paused."""


@dataclass
class Probe:
    """Asks the job's processes how far it is."""

    config: JobConfig
    folder: JobFolder
    _seen: Seen = field(default_factory=Seen)
    _looks: int = 0
    _servers: list[str] = field(default_factory=list)
    _connections: dict[tuple[str, int, str], Connection] = field(default_factory=dict)

    def is_there(self) -> bool:
        """True if the folder is this job's by now, and no longer that of a job before."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return bool(json.loads(self.folder.config.read_text())["token"] == self.config.token)
        return False

    def look(self) -> Seen:
        """Ask for the job's progress; a figure that cannot be asked for stays as it was."""
        if self._looks % MASTER_LOOKS == 0:
            self._look_at_master()
        self._looks += 1
        step = self._seen.step
        for index, address in enumerate(self._servers):
            if not address:
                continue  # it is absent
            request = pb.ServerStatusRequest(onlooker=True)
            status = self._call("ps", index, address, methods.STATUS, request)
            if status is not None:
                step = max(step, status.version)
        self._seen = Seen(step, self._seen.steps, self._seen.phase)
        return self._seen

    def server_address(self, index: int) -> str | None:
        """The last known address of a server; None if there is none."""
        return self._servers[index] or None if index < len(self._servers) else None

    def scale(self, servers: int) -> bool:
        """Ask for so many servers; False: the master is away, or wants no more of them."""
        address, request = self.folder.master_address(), pb.ScaleJobRequest(num_servers=servers)
        if address is None:
            return False
        return self._call("master", 0, address, methods.SCALE_JOB, request) is not None

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def _look_at_master(self) -> None:
        address = self.folder.master_address()
        if address is None:
            return
        routing = self._call("master", 0, address, methods.GET_ROUTING, pb.GetRoutingRequest())
        if routing is not None:
            self._servers = list(routing.servers)
        status = self._call("master", 0, address, methods.GET_JOB_STATUS, pb.JobStatusRequest())
        if status is None:
            return
        records = status.ledger.total
        batch = self.config.batch_size
        batch *= self.config.gradients_per_update if self.config.sync else 1
        steps = -(-records // batch) if records else self._seen.steps
        self._seen = Seen(self._seen.step, steps, status.state or self._seen.phase)

    def _call(
        self, role: str, index: int, address: str, method: methods.Method[Any, Any], request: Any
    ) -> Any:
        key = role, index, address
        if key not in self._connections:
            # A process that was started again may be elsewhere.
            for old in [each for each in self._connections if each[:2] == key[:2]]:
                self._connections.pop(old).close()
            self._connections[key] = connection_to(
                self.config, self.folder, address, CALL_SECONDS, role, index
            )
        with contextlib.suppress(PeerUnavailableError, WireError):
            return self._connections[key].call(method, request)
        return None
