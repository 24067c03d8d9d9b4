"""Looks at a running job and does to it what its schedule says.

How far the job is, is asked of the servers (their versions) and of the master (its state);
nothing is assumed to happen within a time. Runs on a thread of its own.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal.chaos.faults import CUT, FILL, JOB, KILL, Fault, Party
from shoal.chaos.relay import Relay
from shoal.chaos.schedule import Schedule, Seen
from shoal.config import JobConfig
from shoal.job_folder import JobFolder
from shoal.processes import (
    job_processes,
    kill_process,
    limit_files,
    process_of,
    signal_process,
)
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.rpc import Connection
from shoal.proto.transport import peer_name

LOOK_SECONDS = 0.02
"""Between two looks at the servers: some steps of a small model."""

MASTER_LOOKS = 5
"""So many looks at the servers for one at the master."""

CALL_SECONDS = 1.0
"""Deadline of one look: a process may be paused."""


@dataclass
class Deed:
    """A fault and what became of it.

    at: wall-clock seconds when it was done; None: the job ended before. step: at that time.
    process: that was killed or paused. ended: a pause or cut was over before the job was.
    came: what came of it, in words, where that is not all.
    """

    fault: Fault
    at: float | None = None
    step: int = 0
    process: int | None = None
    ended: bool = True
    came: list[str] = field(default_factory=list)


@dataclass
class _Lasting:
    deed: Deed
    until: float
    end: Callable[[], None]


@dataclass
class _Armed:
    deed: Deed
    file: Path


class Watcher:
    """Disturbs one job from `start` to `stop`, and again after a resumption.

    deeds: one for each fault that was due, in order. seen: how far the job was last.
    killed: the fault that killed the whole job, after which nothing is done until the next
    `start`.
    """

    def __init__(self, config: JobConfig, planned: list[Fault], folder: Path) -> None:
        """config: resolved. folder: of SHOAL_FAULTS, empty."""
        self._job = JobFolder(Path(config.job_dir))
        self._schedule = Schedule(planned)
        self._faults = folder
        self._relays = _relays(planned, folder)
        self._waiting: list[Deed] = []
        self._armed: list[_Armed] = []
        self._lasting: list[_Lasting] = []
        self._over = threading.Event()
        self._kill: Callable[[], None] = lambda: None
        self.deeds: list[Deed] = []
        self.seen = Seen()
        self.killed: Deed | None = None
        self.error: BaseException | None = None

    def start(self, config: JobConfig, kill: Callable[[], None]) -> None:
        """Begin to look at the job, which need not run yet.

        kill: has the client kill the whole job.
        """
        self._over.clear()
        self._kill, self.killed = kill, None
        looker = _Looker(config, self._job)
        self._thread = threading.Thread(target=self._run, args=(looker,), name="chaos", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The client has ended: end what lasts."""
        self._over.set()
        self._thread.join()
        for lasting in self._lasting:
            lasting.deed.ended = False
            lasting.end()
        self._lasting.clear()
        self._see_deaths()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """The job has ended: note what did not come to pass."""
        for relay in self._relays.values():
            relay.close()
        self.deeds += [Deed(fault) for fault in self._schedule.left]

    def _run(self, looker: _Looker) -> None:
        try:
            while not looker.is_there() and not self._over.wait(LOOK_SECONDS):
                pass
            while not self._over.wait(LOOK_SECONDS) and self.killed is None:
                self._step(looker)
        except BaseException as error:
            self.error = error
        finally:
            looker.close()

    def _step(self, looker: _Looker) -> None:
        self.seen = looker.look()
        self._see_deaths()
        due = [Deed(fault) for fault in self._schedule.due(self.seen)]
        self.deeds += due
        # One that was due before and met no process comes first.
        self._waiting += due
        self._waiting = [
            deed for deed in self._waiting if self.killed is not None or not self._do(deed)
        ]
        now = time.monotonic()
        for lasting in [each for each in self._lasting if each.until <= now]:
            self._lasting.remove(lasting)
            lasting.end()

    def _do(self, deed: Deed) -> bool:
        """Do a fault, if that is possible now."""
        fault = deed.fault
        if fault.kind == CUT:
            self._cut(deed)
            return True
        (party,) = fault.parties
        if party.role == JOB:
            self._note(deed)
            self.killed = deed
            self._kill()
            return True
        if fault.when.point:
            return self._arm(deed, party)
        if fault.kind == FILL:
            deed.process = self._fill(deed, party)
        elif fault.kind == KILL:
            deed.process = kill_process(self._job.config, party.role, party.index)
        else:
            deed.process = self._pause(deed, party)
        if deed.process is None:
            return False
        self._note(deed)
        return True

    def _note(self, deed: Deed) -> None:
        deed.at, deed.step = time.time(), self.seen.step

    def _arm(self, deed: Deed, party: Party) -> bool:
        path = self._faults / f"{deed.fault.when.point}@{party.process}"
        if path.exists():
            return False  # armed by another fault, and not come to yet
        self._armed.append(
            _Armed(deed, faults.arm(self._faults, deed.fault.when.point, party.process))
        )
        return True

    def _see_deaths(self) -> None:
        for armed in [each for each in self._armed if not each.file.exists()]:
            self._armed.remove(armed)
            self._note(armed.deed)

    def _pause(self, deed: Deed, party: Party) -> int | None:
        process = process_of(self._job.config, party.role, party.index)
        if process is None or not signal_process(self._job.config, process, signal.SIGSTOP):
            return None
        self._last(deed, partial(_go_on, self._job, process))
        return process

    def _fill(self, deed: Deed, party: Party) -> int | None:
        process = process_of(self._job.config, party.role, party.index)
        if process is None or not limit_files(process, 0):
            return None
        self._last(deed, partial(_make_room, self._job))
        return process

    def _cut(self, deed: Deed) -> None:
        relays = [self._relays[pair] for pair in _directions(deed.fault)]
        for relay in relays:
            relay.cut()
        self._last(deed, partial(_mend, relays))
        self._note(deed)

    def _last(self, deed: Deed, end: Callable[[], Any]) -> None:
        self._lasting.append(_Lasting(deed, time.monotonic() + deed.fault.seconds, end))


def _go_on(job: JobFolder, process: int) -> None:
    signal_process(job.config, process, signal.SIGCONT)


def _make_room(job: JobFolder) -> None:
    # What the process started meanwhile has its limit.
    for process in job_processes(job.config):
        limit_files(process, None)


def _mend(relays: Sequence[Relay]) -> None:
    for relay in relays:
        relay.mend()


def _directions(fault: Fault) -> list[tuple[str, str]]:
    """Who calls whom across a cut, by name."""
    one, other = fault.parties
    pairs = [(one.process, other.process)]
    # Master and servers call each other; nobody calls a worker.
    return pairs if one.role == "worker" else [*pairs, (other.process, one.process)]


def _relays(planned: list[Fault], folder: Path) -> dict[tuple[str, str], Relay]:
    pairs = {pair for fault in planned if fault.kind == CUT for pair in _directions(fault)}
    return {pair: Relay(folder, *pair) for pair in sorted(pairs)}


@dataclass
class _Looker:
    """Asks the job's processes how far it is."""

    config: JobConfig
    folder: JobFolder
    _seen: Seen = field(default_factory=Seen)
    _looks: int = 0
    _servers: list[str] = field(default_factory=list)
    _connections: dict[tuple[str, int, str], Connection] = field(default_factory=dict)

    def is_there(self) -> bool:
        """Whether the folder is this job's by now, and not still that of one before."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            return bool(json.loads(self.folder.config.read_text())["token"] == self.config.token)
        return False

    def look(self) -> Seen:
        """How far the job is; what cannot be asked is as it was."""
        if self._looks % MASTER_LOOKS == 0:
            self._look_at_master()
        self._looks += 1
        step = self._seen.step
        for index, address in enumerate(self._servers):
            request = pb.ServerStatusRequest(onlooker=True)
            status = self._call("ps", index, address, methods.STATUS, request)
            if status is not None:
                step = max(step, status.version)
        self._seen = Seen(step, self._seen.steps, self._seen.phase)
        return self._seen

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
        batch = self.config.minibatch_size
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
            peer = peer_name(self.config.token, role, index)
            self._connections[key] = Connection(
                address, deadline=CALL_SECONDS, patience=0.0, peer=peer
            )
        with contextlib.suppress(PeerUnavailableError, WireError):
            return self._connections[key].call(method, request)
        return None
