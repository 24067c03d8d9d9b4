"""The facts that the page shows of a job now, from its master's status or its result. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from shoal.base.modules.tracebacks import own_lines
from shoal.client.show.course import Course as Pace
from shoal.client.show.drawn import ENDED
from shoal.client.show.stages import bound_and_step, shares
from shoal.proto import shoal_pb2 as pb
from shoal.result import COMPLETE, JobResult, given_up
from shoal.tools.dashboard.course import LEDGER

THREADS = {
    "input": ("read", "feed", "feed_batch"),
    "pull": ("wait for data", "wait for workers", "ids", "pull", "wait for push"),
    "step": ("wait for pull", "step", "wait for update"),
    "push": ("push",),
}
"""The threads of a worker's training, each with what it does in turn: worker/training/pipeline.py.
What none of them names is a bar of its own."""

SPEEDS = ("pulls", "pushes", "cores")
"""Of a server, in a second."""

SPEED_SECONDS = 5.0
"""Over which these are counted, at least."""


class Rates:
    """The growth per second of counts of processes."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, int, Mapping[str, float]]] = {}

    def of(
        self, name: str, at: float, course: int, counts: Mapping[str, float]
    ) -> dict[str, float]:
        """The growth of each count in a second, by its name; empty while it is not known.

        at: in seconds of any clock. course: differs for a process that begins to count anew.
        """
        began, same, before = self._before.get(name, (at, course, counts))
        if same != course:
            began, before = at, counts
        took = at - began
        if not took or took >= SPEED_SECONDS:
            self._before[name] = at, course, counts
        return {n: (count - before[n]) / took for n, count in counts.items()} if took > 0 else {}


def stage_bars(stage_seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """A bar for each thread of training: the share of each stage in the workers' time."""
    found = shares(stage_seconds)
    bars = []
    for thread, names in THREADS.items():
        parts = [[name, round(found.pop(name), 4)] for name in names if name in found]
        if parts:
            bars.append({"thread": thread, "parts": parts})
    bars += [{"thread": n, "parts": [[n, round(share, 4)]]} for n, share in found.items()]
    return bars


def difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """The stage times of what was done between two statuses."""
    # Of a worker that has died meanwhile, some may be missing.
    return {name: max(0.0, value - before.get(name, 0.0)) for name, value in now.items()}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _task(worker: pb.WorkerView) -> dict[str, Any] | None:
    if not worker.task.id:
        return None
    span = worker.task.range
    return {
        "id": worker.task.id,
        "kind": pb.TaskKind.Name(worker.task.kind),
        "source": span.source,
        "start": span.start,
        "end": span.end,
        "done": worker.records_done,
    }


def _tables(servers: Iterable[pb.ServerView]) -> list[dict[str, Any]]:
    """Each table, over all servers."""
    found: dict[str, dict[str, Any]] = {}
    for server in servers:
        for table in server.told.tables:
            of_all = found.setdefault(
                table.name,
                {"name": table.name, "rows": 0, "bytes": 0, "counted": 0, "removed": 0},
            )
            of_all["rows"] += table.rows
            of_all["bytes"] += table.memory_bytes
            of_all["counted"] += table.counting
            of_all["removed"] += table.removed.expired + table.removed.evicted
    return [found[name] for name in sorted(found)]


def of_status(status: pb.JobStatus, pace: Pace) -> dict[str, Any]:
    """A job that runs."""
    found = status.diagnosis
    bound = bound_and_step(found.bound_by, found.evidence, found.advice, status.stage_seconds)
    workers = [
        {
            "name": f"worker-{each.worker}",
            "state": each.state,
            "starts": each.starts,
            "deaths": each.deaths,
            "task": _task(each),
            "waits_for": each.waits_for,
        }
        for each in status.workers
    ]
    servers = [
        {
            "name": f"ps-{each.server}",
            "state": each.state,
            "starts": each.starts,
            "deaths": each.deaths,
            "progress": each.progress,
            "unprotected": each.unprotected,
            "doubt": each.told.clock_doubt,
            "version": each.told.version,
            "rows": sum(table.rows for table in each.told.tables),
            "bytes": sum(table.memory_bytes for table in each.told.tables),
        }
        for each in status.servers
    ]
    return {
        "state": status.state,
        "ended": status.state in ENDED,
        "waits_for": status.waits_for,
        "waits_progress": status.waits_progress,
        "trouble": status.trouble,
        "failure": status.failure.message if status.HasField("failure") else "",
        "seconds": status.seconds,
        "epoch": min(status.epoch + 1, status.epochs) if status.ledger.total else 0,
        "epochs": status.epochs,
        "records": [status.records_done, status.records_total],
        "ledger": {n: getattr(status.ledger, n) for n in ("total", *LEDGER)},
        "samples_per_second": status.samples_per_second,
        "loss": _number(pace.loss),
        "staleness": status.mean_staleness,
        "version": status.version,
        "time_left": pace.time_left,
        "workers_wanted": status.workers_wanted,
        "bad_records": status.bad_records,
        "left_out": status.left_out,
        "workers": workers,
        "servers": servers,
        "tables": _tables(status.servers),
        "stages": stage_bars(status.stage_seconds),
        "bottleneck": bound[0],
        "advice": bound[1],
    }


def over(last: Mapping[str, Any] | None) -> dict[str, Any]:
    """The facts of the last status, if there was one, with its processes shown as ended."""
    seen = dict(last or {})
    gone = {
        "state": "ended",
        "task": None,
        **dict.fromkeys(("waits_for", "progress", "unprotected", "doubt"), ""),
    }
    for name in ("workers", "servers"):
        # Not in place: the page may be told of the last status right now.
        seen[name] = [each | gone | dict.fromkeys(SPEEDS) for each in seen.get(name, ())]
    return seen | {"machine": None, "time_left": ""}


def of_result(result: JobResult, last: Mapping[str, Any] | None) -> dict[str, Any]:
    """A job that has ended. last: facts of its last status, if the page saw it run."""
    seen = over(last)
    versions = result.versions.values()
    told = result.diagnosis or {}
    by, evidence, advice = (told.get(name, "") for name in ("bound_by", "evidence", "advice"))
    bound = bound_and_step(by, evidence, advice, result.stage_seconds)
    ledger = {name: result.ledger.get(name, 0) for name in ("total", *LEDGER)}
    tables = [
        {
            "name": name,
            "rows": told["rows"],
            "bytes": told["memory_bytes"],
            "counted": told["counting"],
            "removed": told["expired"] + told["evicted"],
        }
        for name, told in sorted(result.tables.items())
    ]
    failure = result.failure or {}
    trace = failure.get("traceback") if failure.get("kind") == "USER_CODE" else ""
    return {
        "loss": None,
        "epoch": 0,
        "epochs": 0,
        "workers": [],
        "servers": [],
        **seen,
        "tables": tables,
        "state": result.state,
        "ended": True,
        "waits_for": "",
        "waits_progress": "",
        "trouble": "",
        "failure": str(failure.get("message", "")),
        "cause": own_lines(trace) if trace else "",
        "seconds": result.seconds,
        "records": [result.records, result.records],
        "ledger": ledger,
        "samples_per_second": result.samples_per_second,
        "staleness": float(result.staleness.get("mean") or 0.0),
        "version": round(sum(versions) / len(versions)) if versions else 0,
        "workers_wanted": 0,
        "bad_records": given_up(result.bad_records),
        "left_out": result.left_out.get("minibatches", 0),
        "stages": stage_bars(result.stage_seconds),
        "bottleneck": bound[0],
        "advice": bound[1],
        "output": result.output if result.output and result.state in COMPLETE else "",
    }


def of_running(status: pb.JobStatus) -> dict[str, Any]:
    """A job that runs, by one status alone, for programs: with metrics and messages."""
    pace = Pace()
    pace.update(status, 0.0)
    metrics = {name: _number(value) for name, value in status.last_evaluation.metrics.items()}
    told = {"metrics": metrics, "messages": list(status.messages)}
    return of_status(status, pace) | told


def of_ended(result: JobResult) -> dict[str, Any]:
    """A job that has ended, for programs: with metrics and messages."""
    return of_result(result, None) | {"metrics": result.metrics, "messages": result.messages}
