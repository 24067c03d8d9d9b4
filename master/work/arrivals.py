"""Sources that come while a job trains: when they are looked for, which are new, and when no more.

A worker lists the sources; of those that can tell their state, such as files, one counts once two
listings in succession have found it in the same state, so that none is trained while it is being
written. No I/O, no clock: times are the job's seconds, which never go back.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.master.work.units import FoundSource, Requester, Task, TaskIds, TaskQueue
from shoal.proto import shoal_pb2 as pb


class Arrivals:
    """Sources that come.

    open: more may come. fruitless: listings in a row that have found nothing. token: where the next
    listing begins, in the words of the reader. ended_by: the flag by which no more are looked for;
    "" while some may come.
    """

    def __init__(self, every: float, until_idle: float, leg: float, next_id: TaskIds) -> None:
        """Times in seconds.

        every: between two listings; 0: no source comes. until_idle: without a new one, after which
        none is looked for; 0: without end. leg: the same, from the first listing on.
        """
        self._every, self._until_idle, self._leg = every, until_idle, leg
        self._next_id = next_id
        self._stamps: dict[str, str] = {}  # of the sources that count; "" where nobody has told
        self._unsettled: dict[str, str] = {}
        self._changed: set[str] = set()
        self.open = every > 0
        self.fruitless = 0
        self.token = self.ended_by = ""
        self.resume()

    def resume(self) -> None:
        """The job begins again: nobody lists anything now, and its times begin anew."""
        self._tasks = TaskQueue([], self._next_id)
        self._begun: float | None = None
        self._newest = self._listed = 0.0

    def known(self, names: Sequence[str], token: str) -> None:
        """The job begins with these sources. token: of the listing that found them."""
        self._stamps.update(dict.fromkeys(names, ""))
        self.token = token

    def due(self, now: float) -> bool:
        """True if a worker should list the sources now."""
        if not self.open or self._tasks.left:
            return False
        return self._begun is None or now >= self._listed + self._every

    def take(self, requester: Requester, now: float) -> Task | None:
        """Lease the task of listing the sources; None while none is due."""
        if self._tasks.waiting or not self.due(now):
            return self._tasks.take(requester)
        if self._begun is None:
            self._begun = self._newest = now
        self._listed = now
        task = Task(self._next_id(), pb.LIST_SOURCES, token=self.token)
        self._tasks = TaskQueue([task], self._next_id)
        return self._tasks.take(requester)

    def give_back(self, task: Task) -> None:
        """Take the task from a worker that will not finish it."""
        self._tasks.give_back(task.id)

    def listed(
        self, task: Task, found: Sequence[FoundSource], token: str, now: float
    ) -> tuple[list[FoundSource], list[str]]:
        """A leased task is done, and has found these: those that are new, and those that changed.

        Each that has changed after it counted is told once.
        """
        self._tasks.complete(task.id)
        self.token = token
        new: list[FoundSource] = []
        changed: list[str] = []
        for source in found:
            name, stamp = source.name, source.stamp
            if (before := self._stamps.get(name)) is not None:
                if not before:
                    self._stamps[name] = stamp
                elif stamp != before and name not in self._changed:
                    self._changed.add(name)
                    changed.append(name)
            elif not stamp or self._unsettled.get(name) == stamp:
                self._unsettled.pop(name, None)
                self._stamps[name] = stamp
                new.append(source)
            else:
                self._unsettled[name] = stamp
                self._newest = now
        assert self._begun is not None
        self.fruitless = 0 if new else self.fruitless + 1
        if new:
            self._newest = now
        elif self._until_idle and now - self._newest >= self._until_idle:
            self._end("--until-idle")
        if self._leg and now - self._begun >= self._leg:
            self._end("--leg")
        return new, changed

    def _end(self, by: str) -> None:
        self.open, self.ended_by = False, by
