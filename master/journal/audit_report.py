"""The report of `shoal audit` on a job, as values and as text for people.

Owns the form; audit.py finds the fate of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal.master.journal.deaths import Death, Recovery
from shoal.master.work.accounts.lease_copies import Difference
from shoal.result import given_up

Ranges = list[dict[str, Any]]


@dataclass
class Report:
    """The report of `shoal audit`.

    unprotected: with --durability=log, when no log protected a server's updates, and that it
        did again, in words. ranges: records that a server has not as often as they count, as
        `ranges_of` gives them. problems: the gaps in the account, in words.
    """

    job: str
    state: str
    epochs: int
    records: dict[str, int]
    updates: dict[str, int]
    deaths: list[Death]
    bad_records: list[dict[str, Any]]
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    unprotected: list[str] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def time_text(wall: float) -> str:
    """A moment, seconds since the epoch, in local time."""
    return datetime.fromtimestamp(wall).isoformat(" ", "milliseconds")


def ranges_of(differences: Iterable[Difference], wall: Callable[[float], float]) -> Ranges:
    """Differences as JSON; those of all servers together have server None.

    kind: "lost" or "repeated". server: of how many, `servers`. source, start, end, epoch: the
    records, by their position in their source. worker, incarnation: whose pushes they are. from,
    upto: when the lease began and ended. wall: seconds of the wall clock of a moment of the job.
    """
    same: dict[tuple[Any, ...], list[int]] = {}
    for each in differences:
        who = str(each.worker) if each.worker is not None else "", each.incarnation
        key = each.kind, each.servers, *who, each.epoch, each.span, each.began, each.ended
        same.setdefault(key, []).append(each.server)
    ranges: Ranges = []
    for key, found in same.items():
        kind, servers, worker, incarnation, epoch, span, began, ended = key
        for server in [None] if 1 < servers == len(found) else found:
            ranges.append(
                {
                    "kind": kind,
                    "server": server,
                    "servers": servers,
                    "worker": worker,
                    "incarnation": incarnation,
                    "source": span.source,
                    "start": span.start,
                    "end": span.end,
                    "epoch": epoch,
                    "from": time_text(wall(began)),
                    "upto": time_text(wall(ended)),
                }
            )
    return ranges


def problem_of(lost: dict[str, Any]) -> str:
    """A range that is lost, in words."""
    where = "all servers" if lost["server"] is None else f"ps-{lost['server']}"
    pushed = f", pushed by {lost['worker']}.{lost['incarnation']}" if lost["worker"] else ""
    return (
        f"records {lost['start']} to {lost['end'] - 1} of {lost['source']}, epoch "
        f"{lost['epoch'] + 1}: their updates are lost on {where}{pushed}, "
        f"{lost['from']} to {lost['upto']}"
    )


def text_of(report: Report) -> str:
    """The report for people."""
    records, updates = report.records, report.updates
    lines = [f"job {report.job}: {report.state}"]
    if report.epochs:
        lines += [
            f"records: {records['total']:,} in {report.epochs} epochs",
            f"  trained exactly once    {records['once']:>12,}",
            f"  trained more than once  {records['more']:>12,}",
            f"  never trained           {records['never']:>12,}",
            f"  failed                  {records['failed']:>12,}",
            f"  lost and trained again  {records['lost']:>12,}",
            "updates (minibatches):",
            f"  acknowledged            {updates['acknowledged']:>12,}",
            f"  lost                    {updates['lost']:>12,}",
            f"  done again from a log   {updates['replayed']:>12,}",
            f"  left out, not finite    {updates['left_out']:>12,}",
            f"  in part, and repeated   {updates['repeated']:>12,}",
        ]
    if report.bad_records:
        lines.append(f"bad records, given up: {given_up(report.bad_records)}")
        lines += [
            f"  {bad['data']} data, {bad['source']}, {bad['place']}: {bad['error']}"
            for bad in report.bad_records
        ]
    lines.append(f"deaths: {len(report.deaths)}")
    for death in report.deaths:
        at = time_text(death.at)
        recovered = (
            "not replaced" if death.recovered is None else f"replaced after {death.recovered:.1f} s"
        )
        lines.append(f"  {at}  {death.who}: {death.cause}; {recovered}")
    for role, recovery in report.recoveries.items():
        if recovery.median is not None:
            lines.append(
                f"  {role}: {recovery.replaced} of {recovery.deaths} replaced, after "
                f"{recovery.median:.1f} s (median), {recovery.p99:.1f} s (p99)"
            )
    if report.unprotected:
        lines.append("updates that a server's death would have lost:")
        lines += [f"  {each}" for each in report.unprotected]
    lines += _repeated_text(report.ranges)
    lines += [f"UNACCOUNTED FOR: {problem}" for problem in report.problems]
    if not report.problems:
        lines.append("everything is accounted for")
    return "\n".join(lines)


def _repeated_text(ranges: Ranges) -> list[str]:
    """The lines on records that servers have once more than they count, by server."""
    counts: dict[str, int] = {}
    for each in ranges:
        if each["kind"] == "repeated":
            where = "all servers" if each["server"] is None else f"ps-{each['server']}"
            counts[where] = counts.get(where, 0) + each["end"] - each["start"]
    if not counts:
        return []
    lines = [f"  {where}: {count:,} records" for where, count in sorted(counts.items())]
    return ["trained once more than counts:", *lines]
