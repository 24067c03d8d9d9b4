"""The stacks of all processes of a job, which the master collects.

It calls servers. Nobody can call a worker: the answer to its heartbeat has the question, and the
next heartbeat has the stacks. A process that does not answer is reported with the reason, beside
the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.base.modules.stacks import process_stacks
from shoal.base.words import counted
from shoal.master.calls.servers import Place, ServerConnections
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState, ServerMember, WorkerMember
from shoal.master.shared_job import SharedJob
from shoal.master.work.ids import ProcessId, ServerId, Start
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.identity import MASTER, SERVER, WORKER, Identity
from shoal.proto.methods import THREADS, Threads

BEATS, LEAST_SECONDS, MOST_SECONDS = 3, 10.0, 45.0
"""A worker's answer is waited for so many heartbeats, but at least and at most so long."""

MOST_ASKERS = THREADS[Threads.CONTROL] // 2
"""Answered at the same time: each holds a thread, and the others are for what controls the job."""

Member = WorkerMember | ServerMember


Answer = pb.ProcessStacks | str
"""Of a process: its stacks, or why there are none."""


class Questions:
    """Questions to workers, asked and answered by heartbeats; shared by threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Not the number of an earlier master's question, which a worker has answered already.
        self._question = time.time_ns() // 1000
        self._wanted: dict[Start, int] = {}
        self._told: dict[Start, pb.ProcessStacks] = {}
        self._waiting = 0
        self._closed = False

    def close(self) -> None:
        """End all waits: the callers get the answers that are there."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def heard(self, start: Start, told: pb.ProcessStacks) -> int:
        """A worker's heartbeat, with its answer if it has told one.

        Returns the question that it has not answered yet; 0 if there is none.
        """
        with self._changed:
            wanted = self._wanted.get(start, 0)
            if not wanted or told.question != wanted:
                return wanted
            del self._wanted[start]
            self._told[start] = told
            self._changed.notify_all()
            return 0

    def ask(self, workers: Sequence[Start]) -> int:
        """Ask from now on; returns the question, for `answers`."""
        with self._changed:
            self._question += 1
            # A question that is under way is answered by the newer one.
            self._wanted |= dict.fromkeys(workers, self._question)
            return self._question

    def answers(
        self, workers: Sequence[Start], question: int, patience: float
    ) -> dict[ProcessId, Answer]:
        """The answers of workers since a question; waits for them at most `patience` seconds."""

        def told(start: Start) -> bool:
            answer = self._told.get(start)
            return answer is not None and answer.question >= question

        found: dict[ProcessId, Answer] = {}
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._closed or all(map(told, workers)), patience)
            for start in workers:
                if told(start):
                    own = pb.ProcessStacks()  # others may wait for the same one
                    own.CopyFrom(self._told[start])
                    found[start.process] = own
                elif self._closed:
                    found[start.process] = "the job ends"
                else:
                    found[start.process] = f"no heartbeat within {patience:g} s"
                if self._wanted.get(start) == question:
                    del self._wanted[start]
            self._waiting -= 1
            if not self._waiting:
                self._told.clear()
        return found


class Stacks:
    """The stacks of the processes of `job`; shared by threads. Close it at the end.

    identity: of the master. patience: seconds to wait for workers; by default a few heartbeats.
    """

    def __init__(
        self, job: SharedJob, identity: Identity | None = None, patience: float | None = None
    ) -> None:
        self._job = job
        self._servers = ServerConnections(job.config.token, identity)
        if patience is None:
            beats = BEATS * job.config.heartbeat_seconds
            patience = min(MOST_SECONDS, max(LEAST_SECONDS, beats))
        self._patience = patience
        self._questions = Questions()
        self._free = threading.Semaphore(MOST_ASKERS)

    def close(self) -> None:
        """Give up what is under way."""
        self._questions.close()
        self._servers.close()

    def heard(self, start: Start, request: pb.HeartbeatRequest, reply: pb.HeartbeatReply) -> None:
        """Take what a worker tells in a heartbeat, and put into the reply what it is to tell."""
        reply.stacks_wanted = self._questions.heard(start, request.stacks)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Count a request while it is answered. Raises WireError(BAD_REQUEST) if too many ask."""
        # One who has gone, as by Ctrl-C, is answered to the end.
        if not self._free.acquire(blocking=False):
            raise WireError(
                pb.BAD_REQUEST,
                f"the master answers {MOST_ASKERS} questions for stacks already: ask "
                "again when one of them has ended",
            )
        try:
            yield
        finally:
            self._free.release()

    def of(self, role: str = "", index: int = 0) -> list[pb.ProcessStacks]:
        """The stacks of all processes, or of the named one: the master, servers, workers.

        Raises WireError(BAD_REQUEST) if the job has no such process, or too many ask.
        """
        members = self._job.look(lambda job, _: _members(job, role, index))
        workers, servers = _here(members)
        with self._asking():
            question = self._questions.ask(workers)
            found = [process_stacks(MASTER)] if role in ("", MASTER) else []
            said = self._servers.stacks(servers)
            said |= self._questions.answers(workers, question, self._patience)
        return found + [_answer(member, said.get(member.id)) for member in members]


def _here(members: Sequence[Member]) -> tuple[list[Start], dict[ServerId, Place]]:
    """The workers and servers that can be asked."""
    here = [each for each in members if each.state == ProcessState.ALIVE]
    workers = [_start(m) for m in here if isinstance(m, WorkerMember)]
    return workers, {m.id: Place.of(m) for m in here if isinstance(m, ServerMember)}


def _start(member: Member) -> Start:
    return Start(member.id, member.incarnation)


def _answer(member: Member, said: Answer | None) -> pb.ProcessStacks:
    answer = said or _absence(member)
    if isinstance(answer, str):
        answer = pb.ProcessStacks(problem=answer)
    answer.process, answer.incarnation = str(member.id), max(0, member.incarnation)
    return answer


def _members(job: Job, role: str, index: int) -> list[Member]:
    """The servers and workers that are meant, without those that are not to be there."""
    members = job.members
    servers: list[Member] = list(members.servers.values())
    workers: list[Member] = list(members.workers.values())
    if not role:
        ended = ProcessState.DEAD
        return servers + [
            each
            for each in workers
            if isinstance(each, WorkerMember) and (members.wanted(each) or each.state != ended)
        ]
    if role == MASTER:
        if index:
            raise WireError(pb.BAD_REQUEST, "a job has one master: master 0")
        return []
    of_role = {SERVER: servers, WORKER: workers}.get(role)
    if of_role is None:
        raise WireError(pb.BAD_REQUEST, f"role must be master, ps or worker, not {role!r}")
    if index >= len(of_role):
        noun = {SERVER: "server", WORKER: "worker"}[role]
        raise WireError(
            pb.BAD_REQUEST,
            f"the job has no {role}-{index}: it has {counted(len(of_role), noun)}, from {role}-0",
        )
    return [each for each in of_role if each.id.index == index]


def _absence(member: Member) -> str:
    """The reason why a member that is not there cannot be asked."""
    match member.state:
        case ProcessState.PLANNED:
            return "it was not started yet"
        case ProcessState.STARTING:
            doing = member.progress.what if isinstance(member, ServerMember) else ""
            return "it is being started" + (f": it is to {doing}" if doing else "")
        case _:
            return "it has ended"
