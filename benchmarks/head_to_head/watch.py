"""A peer's run as its user sees it: its line, its memory, and what a kill makes of it."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.head_to_head.systems import System

TICKS = os.sysconf("SC_CLK_TCK")
POLL_SECONDS = 0.05
MEMORY_SECONDS = 1.0
BEYOND = 8
"""Training goes on once so many minibatches more than at the kill are trained."""


class Run:
    """One run of a peer, pinned to `cores`."""

    def __init__(
        self, system: System, data: Path, folder: Path, ids: int, batch: int, warm: int, cores: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("progress", "roles.json"):
            (folder / name).unlink(missing_ok=True)
        self._folder = folder
        self._batch = batch
        self.peak_mb = 0.0
        self._looked = 0.0
        self._least = batch * warm
        self._spent: dict[int, float] = {}  # CPU seconds by process, also of those that ended
        self._samples: list[tuple[int, float]] = []  # records and CPU seconds of all
        self._output = folder / "stdout.txt"
        self._errors = folder / "stderr.txt"
        self.began = time.time()
        # In the environment of all processes of the run, whoever their parents are.
        self._mark = f"HEAD_TO_HEAD_RUN={os.getpid()}-{self.began}"
        command = [
            *("taskset", "--cpu-list", cores, *system.command(), str(data.resolve())),
            *("--ids", str(ids), "--batch", str(batch), "--warm", str(warm)),
            *("--dir", str(folder.resolve()), "--started", str(self.began)),
        ]
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdout=output,
                stderr=errors,
                env=os.environ | system.variables() | dict([self._mark.split("=")]),
                cwd=folder,  # where Paddle leaves files
                start_new_session=True,
            )

    def records(self) -> int:
        """The records trained so far."""
        try:
            raw = (self._folder / "progress").read_bytes()
        except OSError:
            return 0
        return int(struct.unpack("<q", raw)[0]) if len(raw) == 8 else 0

    def roles(self) -> dict[str, int]:
        """The process ids by role, as far as they are known."""
        path = self._folder / "roles.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def ended(self) -> bool:
        """Look whether the command has ended; now and then, how much memory it has."""
        if self._process.poll() is not None:
            return True
        if time.monotonic() - self._looked > MEMORY_SECONDS:
            self._look()
            self._looked = time.monotonic()
        return False

    def _look(self) -> None:
        pids = marked(self._mark)
        self.peak_mb = max(self.peak_mb, memory_mb(pids))
        self._spent |= cpu_seconds(pids)
        self._samples.append((self.records(), sum(self._spent.values())))

    def cpu(self) -> float | None:
        """CPU seconds a million records after the warm-up, of all processes; None if unknown."""
        timed = [each for each in self._samples if each[0] >= self._least]
        last = next((each for each in timed if each[0] == timed[-1][0]), None)
        if last is None or last[0] == timed[0][0]:
            return None
        return (last[1] - timed[0][1]) / (last[0] - timed[0][0]) * 1e6

    def wait(self, seconds: float) -> bool:
        """Wait for the end; returns False if it did not come in time."""
        end = time.monotonic() + seconds
        while not self.ended():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def until(self, records: int, seconds: float) -> bool:
        """Wait for so many records to be trained; False if the run ends or time is over."""
        end = time.monotonic() + seconds
        while self.records() < records:
            if self.ended() or time.monotonic() > end:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def stop(self) -> None:
        """End what is left of the run."""
        for pid in marked(self._mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended
        self._process.wait()

    def line(self) -> dict[str, Any]:
        """The peer's line of JSON, with the whole seconds and the memory, or {"failed": reason}."""
        found = [each for each in self._output.read_text().splitlines() if each.startswith("{")]
        if self._process.returncode or not found:
            return {"failed": self.reason()}
        whole = {"whole_seconds": time.time() - self.began, "peak_mb": self.peak_mb}
        whole["cpu_seconds"] = self.cpu()
        return json.loads(found[-1]) | whole

    def reason(self) -> str:
        """The last line of what the run said on standard error."""
        lines = [each for each in self._errors.read_text().splitlines() if each.strip()]
        told = [each for each in lines if "Error" in each] or lines
        return told[-1].strip()[:200] if told else f"exit code {self._process.returncode}"


def marked(mark: str) -> list[int]:
    """The processes with `mark` in their environment: NAME=VALUE."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue  # it has ended
    return found


def cpu_seconds(pids: list[int]) -> dict[int, float]:
    """User and system time so far by process, of those that have not ended."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        found[pid] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def memory_mb(pids: list[int]) -> float:
    """Memory of processes that is no file's, each shared page counted once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        for row in text.splitlines():
            if row.startswith(("Pss_Anon:", "Pss_Shmem:")):
                total += int(row.split()[1])
    return total / 1e3


def kill(
    run: Run, role: str, at: int, after: float, batch: int, limit: float, start: float
) -> dict[str, Any]:
    """Kill a role `after` seconds from when `at` records are trained; returns the outcome.

    outcome: "goes on", "ends" (with what it said), "hangs" for `limit` seconds, or "not killed" if
    it did not come so far within `start` seconds. seconds: from the kill until more is trained than
    before, or until the end. told: the peer's line, if the run came to its end.
    """
    if not run.until(at, start) or role not in run.roles():
        run.stop()
        return {"outcome": "not killed", "said": run.reason()}
    time.sleep(after)
    trained = run.records()
    os.kill(run.roles()[role], signal.SIGKILL)
    killed = time.monotonic()
    went_on = run.until(trained + BEYOND * batch, limit)
    seconds = time.monotonic() - killed
    if went_on:
        told = run.line() if run.wait(start) else {"failed": "did not come to its end"}
        run.stop()
        return {"outcome": "goes on", "seconds": seconds, "trained": trained, "told": told}
    ended = run.ended()
    outcome = "ends" if ended else "hangs"
    run.stop()
    return {"outcome": outcome, "seconds": seconds, "trained": trained, "said": run.reason()}
