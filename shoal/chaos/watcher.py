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

from shoal.chaos import faulty
from shoal.chaos.faults import (
    CUT,
    FILL,
    HALF_SENT,
    HANG,
    JOB,
    KILL,
    NO_ROOM,
    STORAGE,
    Fault,
    Party,
)
from shoal.chaos.half_sent import HalfSent
from shoal.chaos.looker import Looker
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
from shoal.proto import faults
from shoal.proto.transport import peer_name

LOOK_SECONDS = 0.02
"""Between two looks at the servers: some steps of a small model."""


@dataclass
class Deed:
    """A fault and what became of it.

    at: wall-clock seconds when it was done; None: the job ended before. step: at that time.
    process: that was killed, paused or the like. ended: what lasts was over before the job was.
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
        self._config = config
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
        self._config, self._kill, self.killed = config, kill, None
        self._looker = Looker(config, self._job)
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)
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

    def _run(self) -> None:
        looker = self._looker
        try:
            while not looker.is_there() and not self._over.wait(LOOK_SECONDS):
                pass
            while not self._over.wait(LOOK_SECONDS) and self.killed is None:
                self._step()
        except BaseException as error:
            self.error = error
        finally:
            looker.close()

    def _step(self) -> None:
        self.seen = self._looker.look()
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
        if fault.kind == STORAGE:
            return self._trouble(deed, party)
        if party.role == JOB:
            self._note(deed)
            self.killed = deed
            self._kill()
            return True
        if fault.when.point:
            return self._arm(deed, party)
        do = {FILL: self._fill, HANG: self._hang, HALF_SENT: self._send, NO_ROOM: self._evict}
        if fault.kind == KILL:
            deed.process = kill_process(self._job.config, party.role, party.index)
        else:
            deed.process = do.get(fault.kind, self._pause)(deed, party)
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
        point, hang = deed.fault.when.point, deed.fault.seconds
        self._armed.append(_Armed(deed, faults.arm(self._faults, point, party.process, hang)))
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

    def _hang(self, deed: Deed, party: Party) -> int | None:
        process = process_of(self._job.config, party.role, party.index)
        if process is not None:
            self._while_there(deed, faults.calls_file(self._faults, party.process), str(process))
        return process

    def _send(self, deed: Deed, party: Party) -> int | None:
        address = self._looker.server_address(party.index)
        process = process_of(self._job.config, party.role, party.index)
        if process is None or address is None:
            return None
        peer = peer_name(self._config.token, party.role, party.index)
        self._last(deed, HalfSent(address, peer, deed.fault.count).close)
        return process

    def _evict(self, deed: Deed, party: Party) -> int | None:
        path = faults.no_room_file(self._faults, party.process)
        if path.exists():
            return None  # by another fault
        path.touch()
        process = kill_process(self._job.config, party.role, party.index)
        if process is None:
            path.unlink()
        else:
            self._while_there(deed, path)
        return process

    def _trouble(self, deed: Deed, storage: Party) -> bool:
        if faulty.trouble_file(self._faults, storage.role).exists():
            return False  # of another fault
        self._last(deed, faulty.begin(self._faults, deed.fault, self._config).unlink)
        self._note(deed)
        return True

    def _while_there(self, deed: Deed, path: Path, content: str = "") -> None:
        path.write_text(content)
        self._last(deed, partial(path.unlink, missing_ok=True))

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
