"""The tables of head-to-head: medians, their spread, and shoal's ratios to the others."""

from __future__ import annotations

import statistics
from typing import Any

OURS = "shoal"


def summary(rounds: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A line a system, the fastest first, those that failed last.

    rounds: by system, the lines of its runs. `samples_per_second` and the other figures are medians
    over the runs that did not fail; `spread` is the lowest and the highest samples/s; `ratio` is
    the median over the rounds of shoal's samples/s divided by the system's in the same round.
    `failed` has the reason of the last run that failed.
    """
    ours = [_rate(each) for each in rounds.get(OURS, [])]
    lines = []
    for name, runs in rounds.items():
        failures = [each["failed"] for each in runs if "failed" in each]
        good = [each for each in runs if "failed" not in each]
        line: dict[str, Any] = {"name": name, "runs": len(good)}
        if failures:
            line["failed"] = failures[-1]
        if good:
            rates = [each["records"] / each["seconds"] for each in good]
            line |= {
                "samples_per_second": statistics.median(rates),
                "spread": [min(rates), max(rates)],
                "versions": good[-1]["versions"],
            }
            for key in ("peak_mb", "start_seconds", "whole_seconds", "auc"):
                line[key] = statistics.median(each[key] for each in good)
            cpu = [each["cpu_seconds"] for each in good if each.get("cpu_seconds")]
            line["cpu_seconds"] = statistics.median(cpu) if cpu else None
            both = [a / b for a, b in zip(ours, map(_rate, runs), strict=False) if a and b]
            if both and name != OURS:
                line["ratio"] = statistics.median(both)
        lines.append(line)
    return sorted(lines, key=lambda each: -each.get("samples_per_second", 0.0))


def _rate(line: dict[str, Any]) -> float | None:
    return None if "failed" in line else line["records"] / line["seconds"]


def markdown(lines: list[dict[str, Any]]) -> str:
    """The lines of `summary` as a table of a page."""
    rows = [
        "| system | samples/s | lowest to highest | shoal against it | CPU s a million "
        "| memory, MB | start-up, s | whole command, s | AUC |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines:
        if "samples_per_second" not in line:
            rows.append(f"| {line['name']} | failed: {line['failed']} | | | | | | | |")
            continue
        low, high = line["spread"]
        cells = [
            line["name"] + (f" (one run failed: {line['failed']})" if "failed" in line else ""),
            f"{line['samples_per_second']:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{line['ratio']:.2f}" if "ratio" in line else "",
            f"{line['cpu_seconds']:.1f}" if line["cpu_seconds"] else "",
            f"{line['peak_mb']:,.0f}",
            f"{line['start_seconds']:.1f}",
            f"{line['whole_seconds']:.1f}",
            f"{line['auc']:.4f}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def lost(outcome: dict[str, Any]) -> str:
    """The records whose updates a kill lost, in words, by what the peer can tell.

    shoal's report tells them. Of a run that ended or hangs, all that it had trained are lost, as no
    peer's example takes checkpoints; of another that goes on, nobody tells.
    """
    if outcome["outcome"] in ("ends", "hangs"):
        return f"{outcome['trained']:,}: all"
    told = outcome.get("told", {}).get("lost_records")
    if told is None:
        return "not told"
    return f"{told:,}" if not isinstance(told, list) else f"{sum(told):,}"


def kills_markdown(kills: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The outcomes of kills, by system and role, as a table of a page."""
    rows = [
        "| system | killed | outcome | after s | records lost |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, roles in kills.items():
        for role, found in roles.items():
            if found["outcome"] == "not killed":
                rows.append(f"| {name} | {role} | not killed: {found['said']} | | |")
                continue
            said = f": {found['said']}" if found["outcome"] == "ends" else ""
            row = f"| {name} | {role} | {found['outcome']}{said} | {found['seconds']:.1f}"
            rows.append(f"{row} | {lost(found)} |")
    return "\n".join(rows)
