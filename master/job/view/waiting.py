"""The event that a job waits for, in words, for those who look at it. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.base.modules.engines import FRAMEWORKS
from shoal.base.words import part_of, size
from shoal.master.job.job import Job
from shoal.master.job.members.members import ProcessState, ServerMember, WorkerMember
from shoal.master.work.phases import Phase

SHOWN = 3
"""So many processes are named."""

FRUITLESS = 3
"""Looks for new files, after which it is worth a word that there are none."""


def waits_for(job: Job) -> str:
    """`TensorFlow to start in worker-0` and the like; empty while the job gets on."""
    phase, members = job.phases.phase, job.members
    if phase.ended:
        return ""
    busy = _busy(job)
    servers = [
        each
        for each in members.servers.values()
        if each.state != ProcessState.ALIVE and each not in busy
    ]
    workers = list(members.workers.values())
    if servers or busy:
        to_come = _to_start(servers) or f"{_names(servers)} to be started again"
        return ", and ".join([*_doing(busy), *([to_come] if servers else [])])
    if job.updates.held_back and job.moves.unsaved:
        return "a checkpoint of the rows that have moved"
    if job.checkpoints.waits_for:
        return job.checkpoints.waits_for
    if not members.workers_alive:
        if waiting := _to_start([each for each in workers if not each.running]):
            return waiting
        starting = [each for each in workers if each.state == ProcessState.STARTING]
        return f"{_framework(job)} to start in {_names(starting)}" if starting else "a worker"
    if held_up := next((each for each in workers if each.waits_for), None):
        return f"{held_up.waits_for} ({held_up.id})"
    if phase == Phase.DESCRIBING:
        return "a worker to build the model and to look at the data"
    arrivals = job.work.description.arrivals
    quiet = arrivals.open and arrivals.fruitless >= FRUITLESS
    if quiet and not job.work.ledger.pending and job.work.description.complete:
        return "new files of --training-data (--arriving)"
    if phase == Phase.TRAINING and job.record.loss.mean is None:
        here, least = members.workers_alive, min(job.config.min_workers, members.workers_wanted)
        if here < least:
            return f"{least} workers (--min-workers), of which {here} are here"
        return f"the first training step, for which {_framework(job)} prepares the model"
    if phase == Phase.CONFIRMING:
        return "the servers to say that they have every update"
    if slow := next((each for each in workers if each.slow_at), None):
        return f"{slow.id} to get on with {slow.slow_at}"
    return ""


def _framework(job: Job) -> str:
    """The name of what computes with the model; without it where only workers know."""
    found = FRAMEWORKS.get(job.config.engine)
    return "the framework" if found is None else found.name


def waits_progress(job: Job) -> str:
    """The progress of that: `3.1 of 9.8 GB`; empty where nobody knows."""
    progress = [each.progress for each in _busy(job)] if not job.phases.phase.ended else []
    done = sum(each.done for each in progress)
    if progress and all(each.total for each in progress):
        return part_of(done, sum(each.total for each in progress))
    return size(done) if done else ""


def _busy(job: Job) -> list[ServerMember]:
    """Servers that say what they do before they can serve."""
    return [each for each in job.members.servers.values() if each.progress.what]


def _doing(servers: Sequence[ServerMember]) -> list[str]:
    """`ps-0, which restores checkpoint 12`, of servers that may do different things."""
    parts = []
    for what in dict.fromkeys(each.progress.what for each in servers):
        who = [each for each in servers if each.progress.what == what]
        verb, _, its = what.partition(" ")
        parts.append(f"{_names(who)}, which {verb}{'s' * (len(who) == 1)} {its}")
    return parts


def _to_start(members: Iterable[ServerMember | WorkerMember]) -> str:
    """Members that are wanted or were started, and have not registered; empty if none."""
    waiting = [
        each for each in members if each.state in (ProcessState.PLANNED, ProcessState.STARTING)
    ]
    return f"{_names(waiting)} to start" if waiting else ""


def _names(members: Iterable[ServerMember | WorkerMember]) -> str:
    names = [str(each.id) for each in members]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
