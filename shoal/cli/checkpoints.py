"""`shoal checkpoint`: look into the checkpoints of a job.

Owns finding them and printing. Reads files only: the job may be running, have ended or be
gone. What is in the files is shoal.checkpoints'.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shoal.base.disk.job_folder import JobFolder, meant_folder
from shoal.base.disk.wholefile import replacing
from shoal.client.show.plain import echo
from shoal.config.job import JobConfig
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError, without_secrets

if TYPE_CHECKING:
    from shoal.checkpoints.folders import Checkpoint
    from shoal.files.storage import Storage


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Run a command; wrong input is one line and exit code 2."""
        try:
            return super().invoke(context)
        except (UserError, OSError) as error:
            echo(f"Error: {without_secrets(str(error))}", err=True)
            sys.exit(EXIT_USER_ERROR)


@click.group("checkpoint", cls=_Commands)
def checkpoint() -> None:
    """Look into a job's checkpoints.

    FOLDER is the folder of a job, of its checkpoints (also a URL), or of one checkpoint.
    """


_number = click.option("--number", type=int, help="Which checkpoint; default: the newest.")


@checkpoint.command("list")
@click.argument("folder")
def list_(folder: str) -> None:
    """List the checkpoints, and whether each is whole by its manifests."""
    from rich.table import Table

    from shoal.checkpoints.formats.manifests import CheckpointError
    from shoal.client.show.report import wide_console

    root, numbers = find_checkpoints(folder)
    table = Table("number", "taken", "version", "servers", "rows", "MB", "state")
    for number in numbers:
        try:
            found = _open(root, number)
        except CheckpointError as error:
            table.add_row(str(number), "", "", "", "", "", f"not whole: {error}")
            continue
        table.add_row(
            str(number),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.created)),
            f"{found.version:,}",
            str(len(found.shards)),
            f"{sum(sum(shard['rows']) for shard in found.shards):,}",
            f"{found.bytes / 1e6:,.1f}",
            "whole",
        )
    wide_console().print(table)


@checkpoint.command()
@click.argument("folder")
@click.option("--number", type=int, help="Only this checkpoint.")
def verify(folder: str, number: int | None) -> None:
    """Read every file and compare it with its checksum; exit 1 if one is not right.

    FOLDER may also be an export: the --output of a training job, or of shoal export.
    """
    from shoal.checkpoints import contents
    from shoal.checkpoints.formats.manifests import CheckpointError

    if number is None and _is_export(folder):
        sys.exit(_verify_export(folder))
    root, numbers = find_checkpoints(folder, number)
    damaged = False
    for each in numbers:
        try:
            contents.verify(_open(root, each))
        except CheckpointError as error:
            damaged = True
            echo(f"checkpoint {each}: NOT GOOD: {error}")
        else:
            echo(f"checkpoint {each}: good")
    sys.exit(EXIT_JOB_FAILED if damaged else 0)


def _is_export(folder: str) -> bool:
    from shoal.checkpoints.folders import NAME
    from shoal.checkpoints.formats.manifests import MANIFEST
    from shoal.files.storage import open_storage

    name = folder.rstrip("/").rpartition("/")[2]
    return not NAME.fullmatch(name) and MANIFEST in open_storage(folder).names()


def _verify_export(folder: str) -> int:
    from shoal.checkpoints.saved import Export

    try:
        Export(folder).verify()
    except UserError as error:
        echo(f"export: NOT GOOD: {str(error).removeprefix('--restore-from: ')}")
        return EXIT_JOB_FAILED
    echo("export: good")
    return 0


@checkpoint.command()
@click.argument("folder")
@click.argument("table")
@click.option("--id", "row", required=True, type=int, help="The id whose row is shown.")
@_number
def show(folder: str, table: str, row: int, number: int | None) -> None:
    """Show one row of TABLE: its values, optimizer slots, version and use count."""
    import numpy as np

    from shoal.native import ids as native_ids

    if not -(2**63) <= row < 2**63:
        raise UserError(f"--id: {row} is not a 64-bit integer")
    found = newest_checkpoint(*find_checkpoints(folder, number))
    wanted = np.array([row], np.int64)
    server = int(found.routing.owners[native_ids.slot_of(wanted)][0])
    for columns in _pieces(found, table, server):
        at = np.flatnonzero(columns.get("id", wanted[:0]) == row)
        if at.size:
            echo(f"checkpoint {found.number}, server {server}, table {table}, id {row}")
            for name, column in columns.items():
                if name != "id":
                    value = column[at[0]]
                    text = ", ".join(f"{v:.8g}" for v in value) if value.ndim else str(value)
                    echo(f"  {name:<12} {text}")
            return
    raise UserError(
        f"--id: checkpoint {found.number} has no row of id {row} in table {table!r}; rows appear "
        "when an id is first trained"
    )


@checkpoint.command()
@click.argument("folder")
@click.argument("table")
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path))
@_number
def export(folder: str, table: str, output: Path, number: int | None) -> None:
    """Write TABLE as a Parquet file: id, vector, optimizer slots, version, use count."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output.exists():
        raise UserError(f"{output} exists already; choose another name")
    found = newest_checkpoint(*find_checkpoints(folder, number))
    rows, writer = 0, None
    with replacing(output) as temporary:
        for server in range(len(found.shards)):
            for columns in _pieces(found, table, server):
                batch = pa.table({_parquet_name(name): _list(c) for name, c in columns.items()})
                if writer is None:
                    writer = pq.ParquetWriter(temporary, batch.schema)
                writer.write_table(batch)
                rows += len(batch)
        if writer is None:
            raise UserError(f"table {table!r} of checkpoint {found.number} has no rows")
        writer.close()
    echo(f"{rows:,} rows of table {table} of checkpoint {found.number} in {output}")


def _parquet_name(column: str) -> str:
    # The name that an export's tables have it under.
    return "vector" if column == "values" else column


def _list(column: Any) -> Any:
    import pyarrow as pa

    if column.ndim == 1:
        return pa.array(column)
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), column.shape[1])


def find_checkpoints(folder: str, number: int | None = None) -> tuple[Storage, list[int]]:
    """The root of the checkpoints that `folder` means, and the numbers wanted there."""
    from shoal.checkpoints import folders
    from shoal.files.storage import open_storage

    parent, _, name = folder.rstrip("/").rpartition("/")
    match = folders.NAME.fullmatch(name)
    if match:
        number = int(match[1]) if number is None else number
        folder = parent or "."
    elif "://" not in folder and (job := JobFolder(Path(folder))).config.is_file():
        beside = job.path / "checkpoints"
        # The folder may have been moved since the job ran.
        folder = str(beside) if beside.is_dir() else JobConfig.load(job.config).checkpoint_dir
    root = open_storage(folder)
    numbers = folders.numbers(root)
    if not numbers:
        raise UserError(f"there is no checkpoint in {folder}{meant_folder(folder)}")
    if number is not None and number not in numbers:
        raise UserError(
            f"there is no checkpoint {number} in {folder}, only {', '.join(map(str, numbers))}"
        )
    return root, numbers if number is None else [number]


def _open(root: Storage, number: int) -> Checkpoint:
    from shoal.checkpoints.folders import Checkpoint

    return Checkpoint(root, number)


def newest_checkpoint(root: Storage, numbers: list[int]) -> Checkpoint:
    """The newest of some checkpoints that is whole by its manifests."""
    from shoal.checkpoints.formats.manifests import CheckpointError

    refused = []
    for number in reversed(numbers):
        try:
            return _open(root, number)
        except CheckpointError as error:
            refused.append(str(error))
    raise UserError("no whole checkpoint: " + "; ".join(refused))


def _pieces(found: Checkpoint, table: str, server: int) -> Iterator[dict[str, Any]]:
    """The pieces of a table that a server wrote. Raises UserError if it is unknown or damaged."""
    from shoal.checkpoints import contents
    from shoal.checkpoints.formats.manifests import CheckpointError

    names = [each.name for each in found.model.tables]
    if table not in names:
        known = ", ".join(names) or "none"
        raise UserError(f"checkpoint {found.number} has no table {table!r}; its tables: {known}")
    try:
        yield from contents.table_pieces(found, server, names.index(table))
    except CheckpointError as error:
        raise UserError(str(error)) from error
