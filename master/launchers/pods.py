"""A job's pods: which to create and to delete, and the events that follow from an observed pod.

Fed with wishes and with what the cluster shows; yields actions and launcher events.
No I/O, no lock, no clock: pod_launcher.py executes the actions.

A pod's name has no incarnation, so a new start waits until the pod before is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.cluster.explain import MAY_START
from shoal.master.job.members.launcher import Exited, Started, Waiting
from shoal.master.launchers.pod_view import (
    LOST_CONTAINER,
    LOST_PLACE,
    NEVER_STARTS,
    OUT_OF_MEMORY,
    PodView,
)
from shoal.master.work.ids import ProcessId, ServerId, Start


@dataclass(frozen=True)
class CreatePod:
    """Create the pod of this start. growth: how often its memory did not suffice."""

    start: Start
    growth: int = 0


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod of this process, which is of this start."""

    start: Start
    at_once: bool


@dataclass(frozen=True)
class KeepLog:
    """An instruction to keep a pod's log, as the pod is about to go."""

    start: Start


@dataclass(frozen=True)
class Report:
    """Tell of an end, with the end of the pod's log where `with_log`; then it is kept, too."""

    exited: Exited
    with_log: bool


Action = CreatePod | DeletePod | KeepLog | Report | Started | Waiting

NO_ROOM = frozenset({"Unschedulable", "SchedulingGated"})
"""Reasons of a pod that waits for a node, or for its turn in a queue of Kueue."""

TAKEN_AWAY = "its pod was preempted, evicted or deleted"


@dataclass
class _Tracked:
    """A start that has not ended.

    created: the API has its pod. ending: the master has asked it to end. leaving: its pod has been
    told to. said: the reasons to wait that were told. failing: the last of them was more than want
    of room.
    """

    created: bool = False
    running: bool = False
    ending: bool = False
    leaving: bool = False
    said: set[str] = field(default_factory=set)
    failing: bool = False


class Pods:
    """The pods of one job. Every method returns the actions to take now, in order.

    memory_steps: how often a process that ran out of memory may be given more.
    """

    def __init__(self, memory_steps: int = 0) -> None:
        self._memory_steps = memory_steps
        self._tracked: dict[Start, _Tracked] = {}
        self._there: dict[ProcessId, PodView] = {}
        self._nodes: dict[ServerId, str] = {}
        self._growth: Counter[ProcessId] = Counter()
        self._listed = False
        self._created_since: set[Start] = set()  # the last listing began

    @property
    def alive(self) -> frozenset[Start]:
        """Starts that were asked for and have not ended."""
        return frozenset(self._tracked)

    @property
    def nodes_of_servers(self) -> dict[int, str]:
        """Index of a server that is wanted -> its node, or the last one where it waits for another.

        The servers of a node that is drained are those of one node, also when some have gone.
        """
        wanted = {start.process for start in self._tracked}
        return {process.index: node for process, node in self._nodes.items() if process in wanted}

    def wanted(self, start: Start) -> bool:
        """True if a pod of this start is to be created."""
        tracked = self._tracked.get(start)
        return tracked is not None and not tracked.created

    def start(self, start: Start) -> list[Action]:
        """A process is wanted."""
        self._tracked[start] = _Tracked()
        if (before := self._there.get(start.process)) is not None:
            return [DeletePod(before.start, at_once=True)]
        return [self._creation(start)]

    def adopt(self, start: Start) -> list[Action]:
        """A process that an earlier master started, or was about to.

        Without a pod it has ended: starting it again would be another incarnation.
        """
        self._tracked[start] = _Tracked(created=True)
        view = self._there.get(start.process)
        if view is not None and view.start == start:
            return self.seen(view)
        return self.gone(start) if self._listed else []

    def _creation(self, start: Start) -> CreatePod:
        return CreatePod(start, self._growth[start.process])

    def end(self, start: Start, *, at_once: bool) -> list[Action]:
        """A process is no longer wanted; one that has ended is left alone."""
        tracked = self._tracked.get(start)
        if tracked is None:
            return []
        tracked.ending = True
        if not tracked.created:
            # Its creation may be under way, so the deletion is asked for all the same.
            return [DeletePod(start, at_once=True), *self._ended(start, "was never started")]
        return [DeletePod(start, at_once)]

    def created(self, start: Start) -> list[Action]:
        """The API has taken the pod."""
        tracked = self._tracked.get(start)
        if tracked is None:
            return [DeletePod(start, at_once=True)]  # ended while it was being created
        tracked.created = True
        self._created_since.add(start)
        return []

    def refused(self, start: Start, message: str) -> list[Action]:
        """The API will not take the pod."""
        return self._ended(start, f"its pod could not be created: {message}")

    def waits(self, start: Start, reason: str, message: str) -> list[Action]:
        """The pod cannot be created or started now.

        Said once for each reason, and again when it is more than want of room, or is no more.
        """
        tracked = self._tracked.get(start)
        error = reason in MAY_START
        if tracked is None or tracked.ending:
            return []
        if reason in tracked.said and error == tracked.failing:
            return []
        tracked.said.add(reason)
        tracked.failing = error
        why = f"{reason}: {message}" if message else reason
        return [Waiting(start, why, error=error)]

    def seen(self, view: PodView) -> list[Action]:
        """The cluster shows a pod."""
        process = view.start.process
        self._there[process] = view
        if isinstance(process, ServerId) and view.node:
            self._nodes[process] = view.node
        self._growth[process] = max(self._growth[process], view.growth)
        tracked = self._tracked.get(view.start)
        if tracked is None:
            return []
        tracked.created = True
        actions: list[Action] = []
        if view.phase == "Running" and not tracked.running:
            tracked.running = True
            actions.append(Started(view.start, None))
        if view.phase in ("Succeeded", "Failed"):
            over = self._over(view, tracked)
            reads = any(isinstance(each, Report) and each.with_log for each in over)
            return [*actions, *([] if reads else [KeepLog(view.start)]), *over]
        if view.deleting and tracked.running and not tracked.leaving:
            tracked.leaving = True
            actions.append(KeepLog(view.start))
        if view.deleting and view.reason in LOST_PLACE:
            # Its node is away and cannot confirm the end, so nothing more would be heard.
            why = f"its pod was lost: {view.reason}"
            ended = self._ended(view.start, why, counted=False)
            return [*actions, *ended, DeletePod(view.start, at_once=True)]
        reason, message = view.waiting
        if reason in NEVER_STARTS:
            why = f"its container cannot start: {reason}: {message}"
            return [*actions, *self._ended(view.start, why), DeletePod(view.start, at_once=True)]
        if reason in MAY_START or reason in NO_ROOM:
            actions += self.waits(view.start, reason, message)
        elif tracked.failing and view.phase == "Pending" and reason:
            actions += self.waits(view.start, reason, "the reason before has passed")
        return actions

    def gone(self, start: Start) -> list[Action]:
        """The cluster has removed the pod of this start."""
        there = self._there.get(start.process)
        if there is not None and there.start == start:
            del self._there[start.process]
        actions: list[Action] = []
        if (tracked := self._tracked.get(start)) is not None and tracked.created:
            # What the cluster has begun to take away is not the process's failure, also
            # if the master gave it up meanwhile because it was silent.
            by_cluster = not tracked.ending or (there is not None and bool(there.disrupted))
            why = TAKEN_AWAY if by_cluster else "its pod was deleted by the master"
            actions += self._ended(start, why, counted=not by_cluster)
        if start.process not in self._there:
            for waiting, state in self._tracked.items():
                if waiting.process == start.process and not state.created:
                    actions.append(self._creation(waiting))
        return actions

    def listing(self) -> None:
        """All pods are about to be asked for."""
        self._created_since.clear()

    def listed(self, views: Sequence[PodView]) -> list[Action]:
        """All pods that there are: at the beginning, and after a watch was interrupted.

        One that was created since `listing` may be younger than the answer: nothing is
        concluded from its absence, and `unsure` asks for another list.
        """
        self._listed = True
        shown = {view.start for view in views}
        self._created_since -= shown
        actions: list[Action] = []
        for view in list(self._there.values()):
            if view.start not in shown:
                actions += self.gone(view.start)
        known = shown | self._created_since
        for start, tracked in list(self._tracked.items()):
            # Came and went while nobody watched.
            if tracked.created and start not in known and start in self._tracked:
                actions += self.gone(start)
        for view in views:
            actions += self.seen(view)
        return actions

    @property
    def unsure(self) -> bool:
        """True if a pod is not in the list although it may have been there before.

        The pod may also have come and gone meanwhile; a watch that begins at the list would
        not tell.
        """
        return not self._created_since.isdisjoint(self._tracked)

    def _over(self, view: PodView, tracked: _Tracked) -> list[Action]:
        if view.refused:
            why = f"its pod was refused by its node: {view.reason}: {view.message}".rstrip(": ")
            return self._ended(view.start, why, counted=False, refused=True)
        lost = view.ended_by == LOST_CONTAINER  # whatever exit code stands there: nobody saw it
        if view.reason in LOST_PLACE or view.disrupted or lost:
            why = f"its pod was lost: {view.reason or view.disrupted or view.ended_by}"
            return self._ended(view.start, why, counted=False)
        if view.deleting and not tracked.ending:
            return self._ended(view.start, TAKEN_AWAY, counted=False)
        if view.ended_by == OUT_OF_MEMORY:
            return self._out_of_memory(view)
        return self._ended(view.start, "", code=view.code, with_log=view.code != 0)

    def _out_of_memory(self, view: PodView) -> list[Action]:
        process = view.start.process
        why = f"it ran out of memory ({OUT_OF_MEMORY})"
        if self._growth[process] >= self._memory_steps:
            why += ", and is not to be given more"
            return self._ended(view.start, why, code=view.code, with_log=True)
        self._growth[process] += 1
        return self._ended(view.start, f"{why}, and is given more", code=view.code, counted=False)

    def _ended(
        self,
        start: Start,
        why: str,
        *,
        code: int | None = None,
        counted: bool = True,
        refused: bool = False,
        with_log: bool = False,
    ) -> list[Action]:
        if self._tracked.pop(start, None) is None:
            return []
        log = f"that of pod {start.process}"
        exited = Exited(start, code, None, log, why=why, counted=counted, refused=refused)
        return [Report(exited, with_log)]
