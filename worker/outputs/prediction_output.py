"""The folder of a prediction job's output: begun, filled by parts, completed.

A part holds the predictions of one task and is named by the position of its first record
in the whole input, so that sorted names give the input's order. It is written under a
temporary name and renamed when it is whole: a task done twice, because a worker died,
leaves one part. The parts wait in a folder beside the output, which takes the output's
place when all are there; the manifest says so. What is in a part is prediction.py's.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.base.disk.wholefile import remove_partial, replacing, write_json
from shoal.checkpoints.outputs import check_output, check_replaced, try_output
from shoal.checkpoints.places import LocalPlace
from shoal.config.job import JobConfig
from shoal.errors import UserError

MANIFEST = "_manifest.json"
FORMAT = "shoal-predictions-2"
PARTS = "_parts"
"""Where parts wait to become one file; readers of Parquet folders skip such names."""

WHOLE = "predictions.parquet"


def begin_output(config: JobConfig) -> None:
    """Make the folder for the parts, with a manifest that says that it is not complete.

    What this job has written already stays: this may be done again at any time.
    Raises UserError if --output cannot be written, or must not be replaced.
    """
    check_output(config)
    try_output(config)
    place = LocalPlace(config.output)
    if _is_done(place, config) or _manifest_id(place.work) == config.job_id:
        return
    _write_manifest(place.begin(), config, complete=False)


def _manifest_id(folder: Path) -> str | None:
    found = LocalPlace(str(folder)).manifest() or {}
    return found.get("job_id")


def _is_done(place: LocalPlace, config: JobConfig) -> bool:
    """True if this job has completed its output."""
    return not place.work.exists() and _manifest_id(Path(place.location)) == config.job_id


def write_part(config: JobConfig, position: int, table: pa.Table) -> None:
    """Write the predictions of a task, whose first record is at `position` of the input."""
    work = LocalPlace(config.output).work
    folder = work / PARTS if config.in_order else work
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-{position:015d}.parquet"
    with replacing(path) as temporary:
        pq.write_table(table, temporary)


def finish_output(config: JobConfig, total: int, skipped: Collection[int] = ()) -> None:
    """Check that each of the `total` records has its prediction once, and have it in --output.

    skipped: positions of records that were given up, and have none.

    May be done again, from any point at which it was interrupted. Raises OSError, and UserError
    if parts are missing: somebody else has been at the folder.
    """
    check_replaced(config)
    place = LocalPlace(config.output)
    if _is_done(place, config):
        return
    folder = place.work
    if total and len(skipped) == total:
        raise UserError("--prediction-data: none of its records can be predicted")
    whole = folder / WHOLE
    if config.in_order:
        if not whole.exists():
            _join(_checked_parts(folder / PARTS, total, skipped), whole)
        shutil.rmtree(folder / PARTS, ignore_errors=True)
        files = [whole]
    else:
        files = _checked_parts(folder, total, skipped)
    remove_partial(folder)
    _write_manifest(
        folder,
        config,
        complete=True,
        records=total - len(skipped),
        skipped=sorted(skipped),
        files=[file.name for file in files],
    )
    place.commit(MANIFEST)


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


def _write_manifest(folder: Path, config: JobConfig, *, complete: bool, **more: Any) -> None:
    content = {
        "format": FORMAT,
        "job_id": config.job_id,
        "columns": "source, record (position in the source), then one per model output",
        "complete": complete,
        **more,
    }
    write_json(folder / MANIFEST, content)
