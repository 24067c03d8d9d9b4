"""The folder of a prediction job's output: begun, filled by parts, completed.

A part holds the predictions of one task and is named by the position of its first record
in the whole input, so that sorted names give the input's order. It is written under a
temporary name and renamed when it is whole: a task done twice, because a worker died,
leaves one part. The manifest says whether all parts are there. What is in a part is
prediction.py's.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.errors import UserError
from shoal.wholefile import remove_partial, replacing, write_json

MANIFEST = "_manifest.json"
FORMAT = "shoal-predictions-2"
PARTS = "_parts"
"""Where parts wait to become one file; readers of Parquet folders skip such names."""

WHOLE = "predictions.parquet"


def begin_output(output: str) -> None:
    """Make the folder, with a manifest that says that it is not complete.

    A manifest that is there stays: this may be done again at any time.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / MANIFEST).exists():
        _write_manifest(folder, complete=False)


def write_part(output: str, position: int, table: pa.Table, *, in_order: bool) -> None:
    """Write the predictions of a task, whose first record is at `position` of the input."""
    folder = Path(output, PARTS) if in_order else Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{position:015d}.parquet"
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def finish_output(
    output: str, total: int, skipped: Collection[int] = (), *, in_order: bool
) -> None:
    """Check that each of the `total` records has its prediction once, and say so.

    skipped: positions of records that were given up, and have none.
    in_order: make one file of the parts.

    May be done again, from any point at which it was interrupted. Raises UserError if
    parts are missing: somebody else has been at the folder.
    """
    folder = Path(output)
    if total and len(skipped) == total:
        raise UserError("--prediction-data: none of its records can be predicted")
    whole = folder / WHOLE
    if in_order:
        if not whole.exists():
            _join(_checked_parts(folder / PARTS, total, skipped), whole)
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        files = [whole]
    else:
        files = _checked_parts(folder, total, skipped)
    remove_partial(folder)
    _write_manifest(
        folder,
        complete=True,
        records=total - len(skipped),
        skipped=sorted(skipped),
        files=[file.name for file in files],
    )


def _checked_parts(folder: Path, total: int, skipped: Collection[int]) -> list[Path]:
    """The parts in the input's order."""
    parts = sorted(folder.glob("part-*.parquet"))
    missing = frozenset(skipped)

    def following(position: int) -> int:
        while position in missing:
            position += 1
        return position

    expected = following(0)
    for part in parts:
        position = int(part.stem.removeprefix("part-"))
        if position != expected:
            break
        expected = following(expected + pq.read_metadata(part).num_rows)
    else:
        if expected == total:
            return parts
    raise UserError(
        f"--output: the predictions of the records from {expected} on are not in {folder}, "
        f"where this job wrote them; was the folder changed meanwhile?"
    )


def _join(parts: list[Path], whole: Path) -> None:
    """One file of all parts, a row group a part."""
    with (
        replacing(whole) as temporary,
        pq.ParquetWriter(temporary, pq.read_schema(parts[0])) as writer,
    ):
        for part in parts:
            writer.write_table(pq.read_table(part))


def _write_manifest(folder: Path, *, complete: bool, **more: Any) -> None:
    content = {
        "format": FORMAT,
        "columns": "source, record (position in the source), then one per model output",
        "complete": complete,
        **more,
    }
    write_json(folder / MANIFEST, content)
