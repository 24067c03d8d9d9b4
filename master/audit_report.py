"""What `shoal audit` says of a job, as values and as text for people.

Owns the form; what became of the records is audit.py's to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal.master.deaths import Death, Recovery


@dataclass
class Report:
    """What `shoal audit` says.

    unprotected: with --durability=log, when no log protected a server's updates, and that it
        did again, in words. problems: what is unaccounted for, in words.
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
    problems: list[str] = field(default_factory=list)


def time_text(wall: float) -> str:
    """A moment, seconds since the epoch, in local time."""
    return datetime.fromtimestamp(wall).isoformat(" ", "milliseconds")


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
        lines.append(f"bad records, given up: {len(report.bad_records)}")
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
    lines += [f"UNACCOUNTED FOR: {problem}" for problem in report.problems]
    if not report.problems:
        lines.append("everything is accounted for")
    return "\n".join(lines)
