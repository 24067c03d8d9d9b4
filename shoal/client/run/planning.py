"""`shoal plan`: what a job's tables will take, the servers to ask for, and how far a plan was off.

Owns starting the process that reads the sample (worker/inspect/plan.py), what follows from its
numbers, and their comparison with a job's newest checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from shoal.client.ask.local_jobs import find
from shoal.client.run.checks import check_inputs
from shoal.client.run.model_process import model_process, run
from shoal.config.job import JobConfig
from shoal.errors import UserError

BESIDE_ROWS = 1.5
"""Memory of a server by that of its rows: memory is taken in large pieces, tables grow by copying
their index, and a checkpoint keeps copies of rows that change while it is written. A margin; it was
not measured."""

PROCESS_BYTES = 200 << 20
"""Of a server beside its tables: Python and its libraries, connections and buffers. A margin,
too."""

GIB = 1 << 30


def job_of(name: str) -> JobConfig:
    """The configuration of a job of this machine. Raises UserError if there is none."""
    folder = find(name)
    if folder is None:
        raise UserError(
            f"--job: there is no job {name} on this machine, in ./shoal-jobs or at this path"
        )
    config = JobConfig.load(folder.config)
    if config.command != "train":
        raise UserError(f"--job: {name} is a job of shoal {config.command}, not of shoal train")
    return config


def predicted(config: JobConfig, records: int) -> dict[str, Any]:
    """The plan that worker/inspect/plan.py makes for a job. Raises UserError."""
    config = config.resolved()
    check_inputs(config)
    with model_process("plan", config) as (command, _):
        command += ["--records", str(records)]
        done = run(command, captured=True)
    if done.returncode:
        told = done.stderr.strip().removeprefix("Error: ")
        raise UserError(told or f"shoal plan ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table_bytes(table: Mapping[str, Any], bound: str, dtype: str = "", admit_after: int = 0) -> int:
    """Bytes of a table's rows and of the ids that are counted only.

    bound: low, value or high. dtype, admit_after: in place of the table's own.
    """
    rows = table["rows_by_admission"][str(admit_after)] if admit_after else table["rows"]
    a_row = table["row_bytes_by_dtype"][dtype] if dtype else table["row_bytes"]
    counted = max(table["ids"][bound] - rows[bound], 0)
    return int(rows[bound] * a_row + counted * table["counted_bytes"])


def to_ask_for(plan: Mapping[str, Any], config: JobConfig, server_gib: float) -> dict[str, Any]:
    """Servers, and memory of each, for the upper ends of the intervals."""
    tables = sum(table_bytes(each, "high") for each in plan["tables"])
    needed = BESIDE_ROWS * (tables + plan["dense_bytes"])
    room = server_gib * GIB - PROCESS_BYTES
    # Several servers keep their logs in the memory of one another, unless told otherwise.
    log = 0 if config.sync or config.durability == "checkpoint" else config.log_bytes
    alone = config.durability != "peer" and needed <= room
    if not alone and config.durability not in ("file", "disk"):
        room -= log
    if room <= 0:
        raise UserError(
            f"--server-memory-gib {server_gib:g} has no room for rows beside the process and the "
            "log of updates: give more, or a smaller --log-mb"
        )
    servers = max(1, math.ceil(needed / room))
    memory = needed / servers + PROCESS_BYTES
    memory += log if servers > 1 and config.durability not in ("file", "disk") else 0
    mib = math.ceil(memory / (1 << 20) / 64) * 64
    return {
        "servers": servers,
        "server_memory_mib": mib,
        "flags": f"--servers {servers} --ps-resources cpu=0.5,memory={mib}Mi",
    }


def rows_of(config: JobConfig) -> tuple[int, dict[str, int]]:
    """The number of a job's newest checkpoint, and the rows of its tables. Raises UserError."""
    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.checkpoints.newest import checkpoint_at

    try:
        found = checkpoint_at(config.checkpoint_dir)
    except CheckpointError as error:
        raise UserError(f"--job: {error}") from error
    if found is None:
        raise UserError(f"--job: {config.job_name} has no checkpoint yet, which has its rows")
    return found.number, {
        table.name: sum(shard["rows"][place] for shard in found.shards)
        for place, table in enumerate(found.model.tables)
    }


def compared(plan: Mapping[str, Any], rows: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each table that a job has: rows and bytes, predicted and true."""
    return [
        {
            "name": table["name"],
            "rows_predicted": table["rows"],
            "rows": rows[table["name"]],
            "bytes_predicted": round(table["rows"]["value"] * table["row_bytes"]),
            "bytes": rows[table["name"]] * table["row_bytes"],
            "off": _off(table["rows"]["value"], rows[table["name"]]),
        }
        for table in plan["tables"]
        if table["name"] in rows
    ]


def _off(value: float, truth: int) -> float | None:
    return value / truth - 1 if truth else None


def count_text(number: float) -> str:
    """A number with no more than three digits that count: an estimate has no more."""
    if number < 1000:
        return f"{number:.0f}"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def interval(expected: Mapping[str, float]) -> str:
    """An interval, or the number itself where it is known."""
    low, high = count_text(expected["low"]), count_text(expected["high"])
    return low if low == high else f"{low} to {high}"


def tables_of(plan: Mapping[str, Any]) -> list[Table]:
    """The printed tables: rows and memory, memory by admission, rows by expiry, memory by dtype."""
    rows = Table(title=Text("Rows and memory at the end of the job"))
    for heading in ("table", "ids sampled", "rows", "bytes a row", "memory"):
        rows.add_column(heading)
    admission = Table(title=Text("Memory with admit_after, and rows where older ones expire"))
    ks = list(plan["tables"][0]["rows_by_admission"]) if plan["tables"] else []
    windows = sorted({w for each in plan["tables"] for w in each["rows_by_window"]}, reverse=True)
    admission.add_column("table")
    for k in ks:
        admission.add_column(f"by push {k}")
    for window in windows:
        admission.add_column(f"of {float(window):.0%} of an epoch")
    dtypes = Table(title=Text("Memory by the dtype of rows"))
    names = list(plan["tables"][0]["row_bytes_by_dtype"]) if plan["tables"] else []
    for heading in ("table", *names):
        dtypes.add_column(heading)
    for each in plan["tables"]:
        name = Text(each["name"])
        rows.add_row(
            name,
            f"{each['sampled_ids']:,}",
            interval(each["rows"]),
            f"{each['row_bytes']}",
            _bytes(each),
        )
        cells = [_bytes(each, admit_after=int(k)) for k in ks]
        cells += [interval(w) if (w := each["rows_by_window"].get(n)) else "-" for n in windows]
        admission.add_row(name, *cells)
        dtypes.add_row(name, *(_bytes(each, dtype=dtype) for dtype in names))
    return [rows, admission, dtypes]


def _bytes(table: Mapping[str, Any], dtype: str = "", admit_after: int = 0) -> str:
    low, high = (
        count_text(table_bytes(table, bound, dtype, admit_after)) + "B" for bound in ("low", "high")
    )
    return low if low == high else f"{low} to {high}"


def comparison_of(found: list[dict[str, Any]], number: int) -> Table:
    """The table to print for a comparison with checkpoint `number`."""
    table = Table(title=Text(f"Against checkpoint {number} of the job"))
    for heading in ("table", "rows predicted", "rows", "bytes predicted", "bytes", "off"):
        table.add_column(heading)
    for each in found:
        off = "-" if each["off"] is None else f"{each['off']:+.1%}"
        table.add_row(
            Text(each["name"]),
            interval(each["rows_predicted"]),
            f"{each['rows']:,}",
            f"{each['bytes_predicted']:,}",
            f"{each['bytes']:,}",
            off,
        )
    return table
