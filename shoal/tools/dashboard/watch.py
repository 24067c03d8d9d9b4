"""Watching a job on a thread, once a second: what the page is told comes from here.

Owns what is known now. RunningJob asks, course.py remembers, facts.py puts it in the page's form.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import IO, Any, Self

from shoal.client.ask.running_job import RunningJob
from shoal.client.show.course import Course as Pace
from shoal.errors import UserError, without_secrets
from shoal.proto import shoal_pb2 as pb
from shoal.tools.dashboard import facts
from shoal.tools.dashboard.course import Course

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the job."""

RECENT_SECONDS = 30.0
"""Over which the stages of a running job are shown."""

SILENT_SECONDS = 3.0
"""Without an answer, until the page says so: a busy master answers late."""

AGAIN_SECONDS = 5.0
"""After which a journal that could not be read is tried again; then after twice as long."""

CSV_SECONDS = 10.0
"""Between two looks at metrics.csv, which has the loss of before the first look."""


class Watch:
    """The facts known of a job; shared by threads. A context manager.

    followed: this very process runs the job, and sets it to False at its end. Until then a missing
    master is only about to start.
    """

    def __init__(self, job: RunningJob, *, followed: bool = False) -> None:
        self.followed = followed
        self._job = job
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._teller: subprocess.Popen[str] | None = None
        self._facts: dict[str, Any] = {}
        self._over = False
        self._asked = -math.inf
        self._begin()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._stop_teller()  # by now nobody starts another
        self._job.close()

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._job.name

    @property
    def unasked(self) -> float:
        """Seconds since a page has asked for the facts, or since the beginning."""
        return time.monotonic() - self._asked

    def _begin(self) -> None:
        """Forget all, as another course of the job begins."""
        self._stop_teller()
        with self._lock:
            self._course, self._pace = Course(), Pace()
            self._last: dict[str, Any] | None = None
            self._seen: deque[tuple[float, dict[str, float]]] = deque()
            self._rates = facts.Rates()
        self._name = self._job.course()
        self._heard = time.monotonic()
        self._answered = False
        self._csv_read = -CSV_SECONDS
        self._untold, self._pause, self._again = "", AGAIN_SECONDS, 0.0

    # ------------------------------------------------------------ the thread

    def _watch(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # a mistake of ours: the page must not show old facts as new
                logger.exception("the job could not be looked at")
                with self._lock:
                    silent = time.monotonic() - self._heard
                    why = {"silent": silent, "silent_why": f"the page failed: {error!r}"}
                    self._facts = self._facts | why  # not into the last status, too

    def look(self) -> None:
        """Ask the job once how it goes; never raises for what is the job's."""
        try:
            if self._job.course() != self._name:
                self._begin()
            # The journal may be there later than the folder.
            if self._teller is None and time.monotonic() >= self._again:
                self._start_teller()
            status = self._job.status()
        except (UserError, OSError) as error:
            self._without_status(str(error))
            return
        with self._lock:
            now = time.monotonic()
            self._heard, self._answered, self._over = now, True, False
            self._pace.update(status, now)
            self._course.seen(status)
            self._facts = facts.of_status(status, self._pace)
            self._add_usage(status)
            self._recent_stages(status)
            self._last = self._facts
        self._read_csv()

    def _without_status(self, why: str) -> None:
        """The master has not answered: the job may have ended, or may be about to begin."""
        try:
            over = "" if self.followed else self._job.over()
            result = self._job.result() if over else None
        except (UserError, OSError) as error:
            over, result, why = "", None, str(error)
        silent = time.monotonic() - self._heard
        with self._lock:
            if result is not None:
                self._course.ended(result.evaluations, result.messages, result.seconds)
                self._facts = facts.of_result(result, self._last)
                self._facts["cause_log"] = self._job.log_of(self._facts["failure"])
            elif over:
                self._course.ended((), ())
                self._facts = {**facts.over(self._last), "state": "killed", "ended": True}
                self._facts |= {"waits_for": "", "failure": over, "seconds": None}
            elif silent >= SILENT_SECONDS or not self._facts:
                waits = "" if self._answered else why
                self._facts = {**(self._last or {"state": "starting", "waits_for": waits})}
                self._facts |= {"ended": False, "silent": silent if self._answered else 0.0}
                self._facts |= {"silent_why": why}
        if over and not self._over:
            self._over = True
            self._csv_read = -CSV_SECONDS  # its last rows
        self._read_csv()

    def _recent_stages(self, status: pb.JobStatus) -> None:
        """Add the use of the workers' recent time by stage, if that time is long enough."""
        now = dict(status.stage_seconds)
        self._seen.append((status.seconds, now))
        while len(self._seen) > 1 and status.seconds - self._seen[1][0] >= RECENT_SECONDS:
            self._seen.popleft()
        before, stages = self._seen[0]
        lately = facts.difference(now, stages)
        if status.state == "training" and status.seconds - before >= RECENT_SECONDS / 3:
            self._facts["stages"] = facts.stage_bars(lately)
            self._facts["stages_over"] = round(status.seconds - before)

    def _add_usage(self, status: pb.JobStatus) -> None:
        """Add the rates and the memory of each process and of the machine, where they are known."""
        used, machine = self._job.usage()
        at, rates = status.seconds, self._rates
        for shown, view in zip(self._facts["servers"], status.servers, strict=True):
            told = view.told
            counts = {"pulls": told.pulls, "pushes": told.pushes, "cores": told.cpu_seconds}
            shown |= rates.of(shown["name"], at, view.incarnation, counts)
        for shown in self._facts["workers"]:
            if (usage := used.get(shown["name"])) is not None:
                counts = {"cores": usage.cpu_seconds}
                shown |= rates.of(shown["name"], at, usage.course, counts)
                shown["bytes"] = usage.memory
        if machine is not None:
            usage, cores, memory = machine
            found = rates.of("machine", at, usage.course, {"cores": usage.cpu_seconds})
            sizes = {"bytes": usage.memory, "of_cores": cores, "of_bytes": memory}
            self._facts["machine"] = {**found, **sizes}

    def _read_csv(self) -> None:
        now = time.monotonic()
        if now - self._csv_read >= CSV_SECONDS and (lines := self._job.losses()):
            self._csv_read = now
            with self._lock:
                self._course.losses(lines)

    # ------------------------------------------------------------ the journal

    def _start_teller(self) -> None:
        self._teller = self._job.teller()
        if self._teller is not None:
            reading = threading.Thread(target=self._hear, args=(self._teller,), daemon=True)
            reading.start()

    def _hear(self, teller: subprocess.Popen[str]) -> None:
        """Take what the journal tells, a batch at a time, until its process ends."""
        lines: list[Mapping[str, Any]] = []
        assert teller.stdout is not None
        assert teller.stderr is not None
        # Meanwhile, as a process that nobody listens to stands still once a pipe is full.
        said: deque[str] = deque(maxlen=1)
        listening = threading.Thread(target=_last, args=(teller.stderr, said), daemon=True)
        listening.start()
        first = True
        with teller.stdout as told:
            for line in told:
                if not line.endswith("\n"):
                    break  # it was killed while it wrote
                if parsed := json.loads(line):
                    lines.append(parsed)
                    continue
                with self._lock:
                    if teller is not self._teller:
                        return
                    if first:
                        # What was seen meanwhile is in the journal, and more exactly.
                        self._course, self._untold = self._course.anew(), ""
                    for each in lines:
                        self._course.told(each)
                first, lines = False, []
        code = teller.wait()
        listening.join()
        why = said[0] if said else ""
        with self._lock:
            if teller is self._teller:
                self._untold = why or f"the process that reads the journal ended with code {code}"
                self._again = time.monotonic() + self._pause
                self._pause *= 2
                self._teller = None

    def _stop_teller(self) -> None:
        teller, self._teller = self._teller, None
        if teller is not None:
            teller.kill()
            teller.wait()

    # ------------------------------------------------------------ telling

    def facts(self) -> dict[str, Any]:
        """The facts that the page shows of the job now. JSON, without credentials."""
        self._asked = time.monotonic()
        with self._lock:
            told = {"job": self._job.name, "place": self._job.place, **self._facts}
            if told.get("state") == "killed":
                told |= self._course.last()
            told["course"], told["untold"] = " ".join(self._name), self._untold
            told["reading"] = self._teller is not None and not self._course.by_journal
            told["messages"] = list(self._course.messages)
            told["evaluation"] = next(reversed(self._course.evaluations), None)
        return {name: _without_secrets(value) for name, value in told.items()}

    def course(self) -> dict[str, Any]:
        """The curves and lanes that the page draws of the job's course. JSON."""
        with self._lock:
            return self._course.to_json()

    def logs(self) -> list[str]:
        """The names of logs. Raises UserError."""
        return self._job.logs()

    def log(self, name: str) -> list[str]:
        """The end of a log. Raises UserError."""
        return [without_secrets(line) for line in self._job.log(name)]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in value.items()}
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value


def _last(lines: IO[str], kept: deque[str]) -> None:
    """Keep the last of the lines that say something, to their end."""
    with lines:
        kept.extend(line for each in lines if (line := each.strip()))
