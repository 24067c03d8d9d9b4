"""An explanation of one id of a table, in words: `shoal explain`.

Owns the choice of the source: the master of a job that runs, the newest checkpoint of a job that
has ended, else its export. Servers and files tell the facts about the id.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from shoal.base.disk.job_folder import shown_path
from shoal.base.words import counted, duration
from shoal.client.ask.asking import find_id
from shoal.client.ask.running_job import RunningJob
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def find_of_job(job: RunningJob, table: str, key: int) -> tuple[pb.FoundId, str]:
    """Look up an id in a job. Raises UserError.

    Returns the answer and, in words, its source.
    """
    places = job.saved()
    if not places:
        return find_id(job, table, key), f"job {job.name}, which runs"
    for place in places:
        if (found := _find_at(place, table, key)) is not None:
            return found
    raise UserError(
        f"job {job.name} does not run, and there is neither a checkpoint in "
        f"{shown_path(places[0])} nor an export: nothing tells what its tables had"
    )


def find_at(location: str, table: str, key: int) -> tuple[pb.FoundId, str] | None:
    """Look up an id in a checkpoint, the newest one of a folder, or an export.

    Returns the answer and, in words, its source; None if there is none of these. Raises UserError.
    """
    if "://" not in location and not Path(location).exists():
        return None
    return _find_at(location, table, key)


def _find_at(location: str, table: str, key: int) -> tuple[pb.FoundId, str] | None:
    from shoal.checkpoints.formats.manifests import MANIFEST, CheckpointError
    from shoal.checkpoints.found import find_in_checkpoint, find_in_export
    from shoal.checkpoints.newest import checkpoint_at
    from shoal.checkpoints.saved import Export
    from shoal.files.storage import open_storage

    try:
        if (checkpoint := checkpoint_at(location)) is not None:
            found = find_in_checkpoint(checkpoint, table, key)
            return found, f"checkpoint {checkpoint.number} in {shown_path(location)}"
        if MANIFEST in open_storage(location).names():
            return find_in_export(Export(location), table, key), f"export {shown_path(location)}"
    except (CheckpointError, OSError) as error:
        raise UserError(str(error)) from error
    except UserError as error:
        raise UserError(str(error).removeprefix("--restore-from: ")) from error
    return None


def check_vocabulary(found: pb.FoundId) -> None:
    """Raises UserError for an id that the table does not take."""
    size = found.table.vocabulary
    if size and not 0 <= found.id < size:
        raise UserError(f"table {found.table.name!r} has the ids 0 to {size - 1}, not {found.id}")


def explained(found: pb.FoundId) -> Iterator[tuple[str, str]]:
    """Lines about the id, as pairs of a heading and what there is to say; first its state."""
    from shoal.native.rowstore import MANY_USES  # late: who asks a cluster needs it not

    table = found.table
    yield "state", _state(found)
    if found.servers:
        yield "server", f"ps-{found.server} of {found.servers}, routing slot {found.slot}"
    if found.state != pb.FoundId.NOTHING and found.servers:
        many = " or more" if found.uses >= MANY_USES else ""
        yield "uses", f"{counted(found.uses, 'push', 'pushes')}{many}"
        yield "last push", _last(found)
    if found.state == pb.FoundId.ROW:
        kind = table.value_dtype or "float32"
        yield "row", f"{table.dim} {kind} values, norm {found.norm:.6g}"
        for each in found.slots:
            yield f"slot {each.slot}", f"norm {each.norm:.6g}"
    if found.HasField("removal"):
        yield "removed", _removal(found)
    if table.expire_after and found.state != pb.FoundId.NOTHING:
        yield "expiry", _expiry(found)
    if table.max_rows:
        yield "cap", f"{table.max_rows:,} rows of the table; those of least use go first (max_rows)"


def _state(found: pb.FoundId) -> str:
    admit = found.table.admit_after
    if found.state == pb.FoundId.ROW:
        return "has a row"
    if found.state == pb.FoundId.COUNTED:
        return (
            f"is counted, and has no row: {found.uses} of {admit} pushes (admit_after); lookups "
            "read the table's default row"
        )
    if found.HasField("removal"):
        return "has no row: it was removed"
    if not found.servers:
        return "has no row in the export"
    if found.table.frozen:
        return "has no row: the table is not trained"
    return "has no row: no push had it, or it was removed long ago"


def _last(found: pb.FoundId) -> str:
    if not found.last_step:
        return "none: the row was assigned"
    text = f"step {found.last_step:,} of {found.step:,}"
    if found.last_time:
        text += f", event time {_time(found.last_time)} or shortly before"
    return text


def _removal(found: pb.FoundId) -> str:
    removal = found.removal
    why = "evicted for max_rows" if removal.eviction else "it had expired"
    at = f", event time {_time(removal.event_time)}" if removal.event_time else ""
    return f"at step {removal.step:,}{at}: {why}"


def _expiry(found: pb.FoundId) -> str:
    span = found.table.expire_after
    told = f"expire_after={duration(span).replace(' ', '')}"
    if not found.last_time:
        return f"not known yet: no push had an event time ({told})"
    left = found.last_time / 1e6 + span - found.clock / 1e6
    if left <= 0:
        return f"has expired, and goes with the next sweep ({told})"
    return f"in {duration(left)} of event time, unless it is pushed again ({told})"


def _time(microseconds: int) -> str:
    try:
        return f"{_EPOCH + timedelta(microseconds=microseconds):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{microseconds / 1e6:.0f} s"


def as_json(found: pb.FoundId, where: str) -> dict[str, Any]:
    """The same for programs. Times are seconds since 1970, null where there is none."""
    states = {pb.FoundId.NOTHING: "nothing", pb.FoundId.COUNTED: "counted", pb.FoundId.ROW: "row"}
    removal = found.removal
    known = bool(found.servers)
    return {
        "table": found.table.name,
        "id": found.id,
        "where": where,
        "state": states[found.state],
        "server": found.server if known else None,
        "slot": found.slot if known else None,
        "uses": found.uses if known else None,
        "last_step": found.last_step if known else None,
        "step": found.step if known else None,
        "last_time": found.last_time / 1e6 or None,
        "clock": found.clock / 1e6 or None,
        "norm": found.norm if found.state == pb.FoundId.ROW else None,
        "slots": {each.slot: each.norm for each in found.slots},
        "removed": {
            "step": removal.step,
            "time": removal.event_time / 1e6 or None,
            "reason": "evicted" if removal.eviction else "expired",
        }
        if found.HasField("removal")
        else None,
        "admit_after": found.table.admit_after or 1,
        "expire_after": found.table.expire_after or None,
        "max_rows": found.table.max_rows or None,
    }
