"""The report of a job that has ended: a table on a terminal, plain lines elsewhere.

Owns the words for what came of a job; the numbers are result.json's.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.base.disk.job_folder import JobFolder, shown_path
from shoal.base.modules.tracebacks import own_lines
from shoal.base.words import counted
from shoal.client.found.claim import resume_command
from shoal.client.show.console import PlainConsole
from shoal.client.show.course import Best
from shoal.client.show.learned import few_updates, rising_loss
from shoal.client.show.plain import plain
from shoal.client.show.stages import bound_and_step, stages_text
from shoal.config.conditions import FIRST
from shoal.result import COMPLETE, JobResult, given_up

SHOWN_BAD_RECORDS = 5
"""In the report; result.json and `shoal audit` name them all."""

SHOWN_SLICES = 10
"""In the report; result.json has more of them."""

SHOWN_ERROR = 160
"""Characters of a bad record's error; result.json has it whole."""

COLUMNS = 100
"""Of a table that is not for a terminal."""

SEARCHED_BYTES = 1 << 20
"""Of the end of each log, in which the log of a failure is looked for."""


def wide_console() -> Console:
    """Standard output: as wide as the terminal is, or for a file as wide as `COLUMNS`."""
    console = PlainConsole()
    return console if console.is_terminal else PlainConsole(width=COLUMNS)


def metrics_text(metrics: Mapping[str, float], best: Best | None = None) -> str:
    """Metrics in one line, sorted by name. best: of all evaluations, told where it was better."""
    known = best or Best()
    return ", ".join(
        f"{name} {value:.4f}{known.better(name, value)}" for name, value in sorted(metrics.items())
    )


def ledger_text(ledger: dict[str, int]) -> str:
    """The sample ledger as the sum that it is."""
    kinds = {"trained_once": "trained once", "repeated": "repeated", "failed": "failed"}
    total = ledger.get("total", 0)
    text = " + ".join(f"{ledger.get(kind, 0):,} {name}" for kind, name in kinds.items())
    left = total - sum(ledger.get(kind, 0) for kind in kinds)
    return f"{total:,} = {text}" + (f" + {left:,} not reached" if left else "")


def bad_records_text(bad: Sequence[Mapping[str, Any]]) -> str:
    """The records that were given up, the first few by name."""
    lines = [
        f"{each['data']} data, {shown_path(each['source'])}, {each['place']}: "
        f"{textwrap.shorten(each['error'], SHOWN_ERROR, placeholder=' ...')}"
        for each in bad[:SHOWN_BAD_RECORDS]
    ]
    more = [f"and {len(bad) - len(lines):,} more, see result.json"] * (len(bad) > len(lines))
    return "\n".join([f"{given_up(bad):,} given up", *lines, *more])


def slices_text(slices: Sequence[Mapping[str, Any]]) -> str:
    """The worst slices, a line each, and the number of the others that result.json has."""
    names = {"auc": "auc", "log_loss": "log loss", "calibration": "calibration"}
    lines = []
    for each in slices[:SHOWN_SLICES]:
        numbers = (
            f"{name} {'NaN' if each[key] is None else format(each[key], '.4f')}"
            for key, name in names.items()
        )
        what = textwrap.shorten(f"{each['feature']}={each['value']}", 40, placeholder="...")
        lines.append(f"{what}: {', '.join(numbers)}, {counted(each['records'], 'record')}")
    more = [f"and {len(slices) - len(lines):,} more, see result.json"] * (len(slices) > len(lines))
    return "\n".join([*lines, *more])


def checkpoints_text(checkpoints: Mapping[str, Any]) -> str:
    """The numbers of checkpoints taken and failed, and the newest one; empty without any."""
    kept, failed = checkpoints.get("kept"), checkpoints.get("failed")
    if not kept and not failed:
        return ""
    text = f"{checkpoints['taken']} taken"
    if failed:
        text += f", {failed} FAILED ({checkpoints['last_failure']})"
    if kept:
        newest = kept[-1]
        where = shown_path(checkpoints["folder"])
        text += f"; newest number {newest['number']}, version {newest['version']:,}, in {where}"
    return text


Rows = list[tuple[str, Text]]


def rows(result: JobResult) -> Rows:
    """The rows of the report: names, and their values."""
    styles = {"succeeded": "bold green", "degraded": "bold red", "failed": "bold red"}
    found: Rows = []

    def add(name: str, value: str, style: str = "") -> None:
        found.append((name, Text(value, style=style)))

    add("state", result.state, styles.get(result.state, "bold yellow"))
    if result.state != "succeeded" and (command := resume_command(JobFolder(result.job_dir))):
        add("to go on", command, "bold")
    best = Best((each["version"], each["metrics"]) for each in result.evaluations)
    if result.first_evaluation is not None:
        first = result.first_evaluation["metrics"]
        for name, value in sorted(first.items()):
            add(f"{FIRST}{name}", "NaN" if value is None else f"{value:.4f}")
    for reason in result.held_back:
        add("held back", reason, "bold red")
    for name, value in sorted(result.metrics.items()):
        add(name, "NaN" if value is None else f"{value:.4f}{best.better(name, value)}")
    if result.slices:
        add("worst slices", slices_text(result.slices))
    if result.ledger.get("total"):
        add("training records", ledger_text(result.ledger))
    elif result.records:
        add("records", f"{result.records:,}")
    if left_out := result.left_out.get("minibatches"):
        minibatches = counted(left_out, "minibatch", "minibatches")
        records = counted(result.left_out["records"], "record")
        text = f"{minibatches}, {records}; the last: {result.left_out['last']}"
        add("not finite", text, "bold red")
    if result.bad_records:
        add("bad records", bad_records_text(result.bad_records), "bold red")
    add("seconds", f"{result.seconds:.1f}")
    if result.samples_per_second:
        add("samples/s", f"{result.samples_per_second:,.0f}")
    told = result.diagnosis or {}
    bound_by, evidence, advice = (told.get(n, "") for n in ("bound_by", "evidence", "advice"))
    sentence, advice = bound_and_step(bound_by, evidence, advice, result.stage_seconds)
    if sentence:
        add("bottleneck", sentence)
        if advice:
            add("next step", advice)
        add("time by stage", stages_text(result.stage_seconds))
    if result.ledger.get("total") and result.staleness:
        add("mean staleness", f"{result.staleness.get('mean', 0.0):.2f} pushes")
        if text := few_updates(result):
            add("few updates", text, "yellow")
    if text := rising_loss(result):
        add("rising loss", text, "yellow")
    for name, table in result.tables.items():
        if text := _removed(table):
            add(f"table {name}", text)
    for role, slots in (("worker", result.workers), ("server", result.servers)):
        if slots.get("deaths"):
            add(f"{role} starts", f"{slots['starts']} ({slots['deaths']} died)")
    if result.servers.get("deaths"):
        add("updates lost", *_loss(result.servers))
    if absent := result.log.get("unprotected", {}).get("times"):
        seconds = result.log["unprotected"]["seconds"]
        text = f"{counted(absent, 'time')}, for {seconds:.1f} s in all: a death then would have "
        add("no protection", f"{text}lost updates", "bold red")
    if text := checkpoints_text(result.checkpoints):
        add("checkpoints", text)
    if result.output and result.state in COMPLETE:
        add("output", shown_path(result.output))
    if result.job_dir.is_dir():  # not if the job ran in a cluster and was followed elsewhere
        add("job folder", f"{shown_path(result.job_dir)} (logs/, result.json)")
    return found


def _removed(table: Mapping[str, int]) -> str:
    """The rows left in a table, and the counts that sweeps removed; "" if they removed none."""
    words = {"expired": "rows expired", "evicted": "rows evicted", "counts": "counted ids removed"}
    parts = [f"{table[name]:,} {each}" for name, each in words.items() if table.get(name)]
    return ", ".join([f"{table['rows']:,} rows", *parts]) if parts else ""


def _loss(servers: Mapping[str, int]) -> tuple[str, str]:
    """The pushes lost by deaths of parameter servers and their fate, in words; the text's style."""
    lost = counted(servers["lost_pushes"], "push", "pushes")
    if stayed := servers.get("lost_records", 0):
        return f"{lost}; of {counted(stayed, 'record')} they STAY LOST", "bold red"
    return f"{lost}, whose records were trained again" if servers["lost_pushes"] else lost, ""


def _title(result: JobResult) -> str:
    return f"shoal {result.command}: {result.job_name}"


def report(result: JobResult) -> Table:
    """The report as a terminal shows it."""
    table = Table(title=_title(result), show_header=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in rows(result):
        table.add_row(name, value)
    return table


def report_text(result: JobResult) -> str:
    """The report as plain lines of at most `COLUMNS`.

    A word that is longer, such as a path, stays whole for grep.
    """
    found = rows(result)
    indent = max(len(name) for name, _ in found) + 4
    lines = [_title(result)]
    for name, value in found:
        label = f"  {name}".ljust(indent)
        for part in value.plain.splitlines() or [""]:
            lines += textwrap.wrap(
                part,
                COLUMNS,
                initial_indent=label,
                subsequent_indent=" " * indent,
                break_long_words=False,
                break_on_hyphens=False,
            ) or [label.rstrip()]
            label = " " * indent
    return "\n".join(lines)


def print_report(result: JobResult) -> None:
    """The report on standard output; a failure once, on standard error, the user's lines first."""
    console = PlainConsole()
    if console.is_terminal:
        console.print(report(result))
    else:
        print(plain(report_text(result)), flush=True)
    if result.failure is None:
        return
    message, trace = plain(result.failure["message"]), plain(result.failure.get("traceback") or "")
    if trace and result.failure.get("kind") == "USER_CODE":
        lines = own_lines(trace).splitlines()
        # The message ends with the exception's own line: once is enough.
        if len(lines) > 1 and message.endswith(lines[-1].strip()):
            del lines[-1]
        if lines:
            print("\n".join(lines), file=sys.stderr)
        log = log_of_failure(JobFolder(result.job_dir), result.failure["message"])
        if log is not None:
            print(f"The whole traceback: {shown_path(log)}", file=sys.stderr)
    elif trace and result.failure.get("kind") != "USER_ERROR":
        print(trace.rstrip(), file=sys.stderr)
    print(f"Error: {message}", file=sys.stderr)


def log_of_failure(folder: JobFolder, message: str) -> Path | None:
    """The log of the worker that met a failure; the folder of logs if none has it."""
    if not folder.logs.is_dir():
        return None
    # A record that is at fault is named before what its worker wrote.
    words = message.splitlines()[0].rpartition(": ")[2]
    written = (words.encode(), json.dumps(words)[1:-1].encode())  # --log-format text and json
    for path in sorted(folder.logs.glob("worker-*.log")):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - SEARCHED_BYTES))
            end = file.read()
        if any(each in end for each in written):
            return path
    return folder.logs
