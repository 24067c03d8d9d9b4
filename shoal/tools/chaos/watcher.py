"""Looks at a running job and does to it what its schedule says.

How far the job is, is asked of the servers (their versions) and of the master (its state);
nothing is assumed to happen within a time. Runs on a thread of its own.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import (
    job_processes,
    kill_process,
    limit_files,
    process_of,
    signal_process,
)
from shoal.config.job import JobConfig
from shoal.proto import faults
from shoal.proto.errors import CallError
from shoal.proto.identity import WORKER
from shoal.proto.plane.link import BrokenError
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import own_identity
from shoal.tools.chaos import faulty
from shoal.tools.chaos.faults import (
    JOB,
    Cut,
    DisturbStorage,
    Fault,
    Fill,
    Hang,
    Kill,
    Leave,
    LeaveNoRoom,
    Pause,
    Scale,
    SendHalves,
    Target,
)
from shoal.tools.chaos.half_sent import HalfSent
from shoal.tools.chaos.probe import Probe
from shoal.tools.chaos.relay import Relay
from shoal.tools.chaos.schedule import Schedule, Seen

LOOK_SECONDS = 0.02
"""Between two looks at the servers: some steps of a small model."""


@dataclass
class Action:
    """A fault and what became of it.

    at: wall-clock seconds when it was done; None: the job ended before. step: at that time.
    process: that was killed, paused or the like. ended: what lasts was over before the job was.
    remarks: further results, in words.
    """

    fault: Fault
    at: float | None = None
    step: int = 0
    process: int | None = None
    ended: bool = True
    remarks: list[str] = field(default_factory=list)


@dataclass
class _Lasting:
    action: Action
    until: float
    end: Callable[[], None]


@dataclass
class _Armed:
    action: Action
    file: Path


class Watcher:
    """Disturbs one job from `start` to `stop`, and again after a resumption.

    actions: one for each fault that was due, in order. seen: how far the job was last.
    killed: the fault that killed the whole job, after which nothing is done until the next
    `start`.
    """

    def __init__(self, config: JobConfig, planned: list[Fault], folder: Path) -> None:
        """config: resolved. folder: of SHOAL_FAULTS, empty."""
        self._config = config
        self._job = JobFolder(Path(config.job_dir))
        self._schedule = Schedule(planned)
        self._faults = folder
        self._relays = _relays(planned, folder)
        self._waiting: list[Action] = []
        self._armed: list[_Armed] = []
        self._lasting: list[_Lasting] = []
        self._over = threading.Event()
        self._kill: Callable[[], None] = lambda: None
        self.actions: list[Action] = []
        self.seen = Seen()
        self.killed: Action | None = None
        self.error: BaseException | None = None

    def start(self, config: JobConfig, kill: Callable[[], None]) -> None:
        """Begin to look at the job, which need not run yet.

        kill: has the client kill the whole job.
        """
        self._over.clear()
        self._config, self._kill, self.killed = config, kill, None
        self._probe = Probe(config, self._job)
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The client has ended: end what lasts."""
        self._over.set()
        self._thread.join()
        for lasting in self._lasting:
            lasting.action.ended = False
            lasting.end()
        self._lasting.clear()
        self._see_deaths()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """The job has ended: note what did not come to pass."""
        for relay in self._relays.values():
            relay.close()
        self.actions += [Action(fault) for fault in self._schedule.left]

    def _run(self) -> None:
        probe = self._probe
        try:
            while not probe.is_there() and not self._over.wait(LOOK_SECONDS):
                pass
            while not self._over.wait(LOOK_SECONDS) and self.killed is None:
                self._step()
        except BaseException as error:
            self.error = error
        finally:
            probe.close()

    def _step(self) -> None:
        self.seen = self._probe.look()
        self._see_deaths()
        due = [Action(fault) for fault in self._schedule.due(self.seen)]
        self.actions += due
        # One that was due before and met no process comes first.
        self._waiting += due
        self._waiting = [
            action for action in self._waiting if self.killed is not None or not self._do(action)
        ]
        now = time.monotonic()
        for lasting in [each for each in self._lasting if each.until <= now]:
            self._lasting.remove(lasting)
            lasting.end()

    def _do(self, action: Action) -> bool:
        """Do a fault, if that is possible now."""
        fault = action.fault
        if isinstance(fault, Cut):
            self._cut(action)
            return True
        if isinstance(fault, DisturbStorage):
            return self._disturb(action, fault)
        if isinstance(fault, Scale):
            return self._scale(action, fault.servers)
        (target,) = fault.targets
        if target.role == JOB:
            self._note(action)
            self.killed = action
            self._kill()
            return True
        if fault.when.point:
            return self._arm(action, target)
        action.process = self._disturb_process(action, target)
        if action.process is None:
            return False
        self._note(action)
        return True

    def _disturb_process(self, action: Action, target: Target) -> int | None:
        """Do a fault to one process, and return that; None if it is not there now."""
        match action.fault:
            case Kill():
                return kill_process(self._job.config, target.role, target.index)
            case Leave():
                process = process_of(self._job.config, target.role, target.index)
                there = process is not None and signal_process(
                    self._job.config, process, signal.SIGTERM
                )
                return process if there else None
            case Pause():
                return self._pause(action, target)
            case Fill():
                return self._fill(action, target)
            case Hang():
                return self._hang(action, target)
            case SendHalves(count=count):
                return self._send(action, target, count)
            case LeaveNoRoom():
                return self._evict(action, target)
            case other:
                raise TypeError(f"{other.kind} is done to no single process")

    def _note(self, action: Action) -> None:
        action.at, action.step = time.time(), self.seen.step

    def _arm(self, action: Action, target: Target) -> bool:
        path = self._faults / f"{action.fault.when.point}@{target.process}"
        if path.exists():
            return False  # armed by another fault, and not come to yet
        point, hang = action.fault.when.point, action.fault.seconds
        self._armed.append(_Armed(action, faults.arm(self._faults, point, target.process, hang)))
        return True

    def _see_deaths(self) -> None:
        for armed in [each for each in self._armed if not each.file.exists()]:
            self._armed.remove(armed)
            self._note(armed.action)

    def _pause(self, action: Action, target: Target) -> int | None:
        process = process_of(self._job.config, target.role, target.index)
        if process is None or not signal_process(self._job.config, process, signal.SIGSTOP):
            return None
        self._last(action, partial(_go_on, self._job, process))
        return process

    def _fill(self, action: Action, target: Target) -> int | None:
        process = process_of(self._job.config, target.role, target.index)
        if process is None or not limit_files(process, 0):
            return None
        self._last(action, partial(_make_room, self._job))
        return process

    def _hang(self, action: Action, target: Target) -> int | None:
        process = process_of(self._job.config, target.role, target.index)
        if process is not None:
            self._while_there(action, faults.calls_file(self._faults, target.process), str(process))
        return process

    def _send(self, action: Action, target: Target, count: int) -> int | None:
        address = self._probe.server_address(target.index)
        process = process_of(self._job.config, target.role, target.index)
        if process is None or address is None:
            return None
        peer = peer_name(self._config.token, target.role, target.index)
        identity = own_identity(self._config, self._job, WORKER)
        try:
            sent = HalfSent(address, peer, count, identity)
        except (OSError, CallError, BrokenError):
            return None  # it is not there now
        self._last(action, sent.close)
        return process

    def _evict(self, action: Action, target: Target) -> int | None:
        path = faults.no_room_file(self._faults, target.process)
        if path.exists():
            return None  # by another fault
        path.touch()
        process = kill_process(self._job.config, target.role, target.index)
        if process is None:
            path.unlink()
        else:
            self._while_there(action, path)
        return process

    def _disturb(self, action: Action, fault: DisturbStorage) -> bool:
        (storage,) = fault.targets
        if faulty.fault_file(self._faults, storage.role).exists():
            return False  # of another fault
        self._last(action, faulty.begin(self._faults, fault, self._config).unlink)
        self._note(action)
        return True

    def _scale(self, action: Action, servers: int) -> bool:
        if done := self._probe.scale(servers):
            self._note(action)
        return done

    def _while_there(self, action: Action, path: Path, content: str = "") -> None:
        path.write_text(content)
        self._last(action, partial(path.unlink, missing_ok=True))

    def _cut(self, action: Action) -> None:
        relays = [self._relays[pair] for pair in _directions(action.fault)]
        for relay in relays:
            relay.cut()
        self._last(action, partial(_mend, relays))
        self._note(action)

    def _last(self, action: Action, end: Callable[[], Any]) -> None:
        self._lasting.append(_Lasting(action, time.monotonic() + action.fault.seconds, end))


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
    """The pairs of caller and called process across a cut, by name."""
    one, other = fault.targets
    pairs = [(one.process, other.process)]
    # Master and servers call each other; nobody calls a worker.
    return pairs if one.role == "worker" else [*pairs, (other.process, one.process)]


def _relays(planned: list[Fault], folder: Path) -> dict[tuple[str, str], Relay]:
    pairs = {pair for fault in planned if isinstance(fault, Cut) for pair in _directions(fault)}
    return {pair: Relay(folder, *pair) for pair in sorted(pairs)}
