"""The content of the manifests of a checkpoint and of a server's shard.

Every reader of a manifest has it checked here, so wrong content is an error that names the file and
the field, and never a traceback. The readers of other files compare these with the manifest.
Fields stand above; what must hold between them, below. To add a field, add it to its class here
and to its writer, and raise the format. export_schema.py has the manifest of an export.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Annotated, Any, NotRequired, TypeVar, cast

from google.protobuf.message import DecodeError
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from shoal.errors import Error
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import USE_CLASSES
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.model_bounds import check_model
from shoal.proto.values.routing import SLOTS, Routing


def _relative(name: str) -> str:
    parts = PurePosixPath(name).parts
    if "\0" in name or "\\" in name or "/".join(parts) != name or {"..", "."} & {*parts, name}:
        raise ValueError("not the name of a file below the manifest's folder")
    if name.startswith("/"):
        raise ValueError("not the name of a file below the manifest's folder")
    return name


exact = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
Count = Annotated[int, Field(ge=0, lt=2**63)]
Integer = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Positive = Annotated[int, Field(gt=0, lt=2**63)]
FileName = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_relative)]
Text = Annotated[str, Field(min_length=1)]
Slot = Annotated[int, Field(ge=0, lt=SLOTS)]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


@exact
class Page(TypedDict):
    """A piece of a file, which is read and checked at once. Pages follow one another.

    rows, slots: of a piece of a table: how many rows, and from which routing slot to which these
    are. So who wants the rows of some slots need not read all.
    """

    bytes: Annotated[int, Field(gt=0, lt=2**40)]
    xxh3_64: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    rows: NotRequired[Positive]
    slots: NotRequired[Annotated[list[Slot], Field(min_length=2, max_length=2)]]


@exact
class File(TypedDict):
    """A file as it was written."""

    name: FileName
    bytes: Count
    xxh3_128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


@exact
class PagedFile(File):
    """A file of rows or vectors. pages: all of it; the last is the file's end."""

    pages: Annotated[list[Page], Field(min_length=1)]


@exact
class AppliedPush(TypedDict):
    """The last push of a worker that a shard has, as ps/model/pushes.py keeps it."""

    worker: Count
    incarnation: Count
    sequence: Count
    task: Count
    records_done: Count
    fenced: Annotated[int, Field(ge=-1, lt=2**63)]


@exact
class JournalPosition(TypedDict):
    """A position of the master's journal: which one, an event's number and its checksum."""

    journal: Nonce
    event: Count
    checksum: Nonce


@exact
class TimelineState(TypedDict):
    """Steps and event times of a table that expires, as ps/forgetting/clock.py has them."""

    table: Count
    span: Positive
    entries: list[Annotated[list[Integer], Field(min_length=2, max_length=2)]]
    base: Integer
    swept: Count
    planned: Count


@exact
class ClockState(TypedDict):
    """A server's event clock (ps/forgetting/clock.py). Times are microseconds since 1970."""

    now: Integer | None
    jump: Annotated[list[Integer], Field(min_length=3, max_length=3)] | None
    behind: Count
    lines: list[TimelineState]


@exact
class RemovedCounts(TypedDict):
    """The numbers of a table's ids that sweeps removed: rows of both kinds, and counted ids."""

    expired: Count
    evicted: Count
    counts: Count


@exact
class PlanningState(TypedDict):
    """The plan of a large table's sweep, while it is made (ps/forgetting/planning.py).

    table: its position. step: of its beginning. cut: what was last used before this step is
    counted. excess: for max_rows, rows and counted ids that are to go; else None. slices: of the
    table. there: counted ids and rows as it began. whole: the counts are of all there was then; or
    of what was used since. counts: of counted ids and of rows, by their age and by their order.
    """

    table: Count
    step: Count
    cut: Count
    excess: NotRequired[Annotated[list[Count], Field(min_length=2, max_length=2)] | None]
    slices: Positive
    there: Annotated[list[Count], Field(min_length=2, max_length=2)]
    whole: bool
    counts: Annotated[list[list[list[Count]]], Field(min_length=2, max_length=2)]


@exact
class CapState(TypedDict):
    """The cap of a table. table: its position. max_rows: of it, in the whole job.

    began: the server's rows and counted ids as the sweep that is under way began, or its plan.
    """

    table: Count
    max_rows: Positive
    began: NotRequired[Annotated[list[Count], Field(min_length=2, max_length=2)] | None]


@exact
class LifecycleState(TypedDict):
    """The sweeps of a server's tables, as ps/model/lifecycle.py has them.

    plan: of the sweep that is under way, a message, base64; None for none. part: of it, the next.
    next: the step behind which that is due. planning: the plan that is being made. caps: by which
    sweeps are planned, of each table that has one.
    owing: a part is to be done before the next push. removed: of each table.
    """

    clock: ClockState
    plan: str | None
    part: Count
    next: NotRequired[Count]
    planning: NotRequired[PlanningState | None]
    caps: NotRequired[list[CapState]]
    owing: bool
    removed: list[RemovedCounts]


@exact
class Shard(TypedDict):
    """One server's shard of a checkpoint.

    routing, model: messages, base64. version: pushes applied. step: the last one taken. rows:
    of each table. counting: of each table, how many ids without a row are counted. removed: of each
    table, how many rows were removed since the complete checkpoint before. files: of each
    table; of each table's counted ids, if there are any; of its removed ones; of the trainable and
    the non-trainable slice. lifecycle: where the rows of a table expire or have a cap. update: of
    --sync, the last one applied. forgotten: of each table, removed rows that the file of removed
    ones lacks, as there were too many; whoever follows changes has to read the whole table.
    """

    format: int
    number: Positive
    nonce: Nonce
    server: Count
    servers: Annotated[int, Field(gt=0, le=16384)]
    routing: str
    model: str
    version: Count
    step: Count
    pushes: list[AppliedPush]
    rows: list[Count]
    counting: list[Count]
    removed: list[Count]
    files: list[PagedFile]
    journal: NotRequired[JournalPosition | None]
    lifecycle: NotRequired[LifecycleState | None]
    update: NotRequired[Count]
    forgotten: NotRequired[list[Count]]


@exact
class ShardEntry(TypedDict):
    """A server's answer about its shard. bytes: of all its files."""

    manifest: File
    bytes: Count
    version: Count


@exact
class Manifest(TypedDict):
    """A checkpoint. job: the id of the job that took it. ledger: the master's position."""

    format: int
    number: Positive
    nonce: Nonce
    job: str
    created: Annotated[float, Field(ge=0, lt=1e11)]
    bytes: Count
    version: Count
    shards: Annotated[list[ShardEntry], Field(min_length=1, max_length=16384)]
    ledger: dict[str, Any]


@exact
class Begun(TypedDict):
    """The file of a checkpoint that is under way, or was given up. job: as in the manifest."""

    format: int
    number: Positive
    nonce: Nonce
    job: str


Kind = TypeVar("Kind")


class SchemaError(Error, ValueError):
    """Content that is not as the schema says; the message names the field."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def checked(content: object, kind: type[Kind]) -> Kind:
    """`content` as a `kind`, which is one of the classes here.

    Raises SchemaError.
    """
    try:
        return cast(Kind, _adapter(cast(Any, kind)).validate_python(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = "".join(
            f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"]
        )
        message = first["msg"].removeprefix("Value error, ")
        raise SchemaError(f"{place.removeprefix('.') or 'the whole'}: {message}") from error


def shard_entry(text: str) -> ShardEntry:
    """A server's answer about its shard, read from JSON. Raises SchemaError."""
    try:
        return checked(json.loads(text), ShardEntry)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"shard: {error}") from error


def checked_shard(content: object) -> tuple[Shard, pb.ModelSpec, Routing]:
    """A shard's manifest, and the model and routing that it has. Raises SchemaError."""
    shard = checked(content, Shard)
    model = model_spec(shard["model"])
    routing = _routing(shard["routing"])
    if routing.servers != shard["servers"]:
        raise SchemaError(f"servers: {shard['servers']}, in the routing {routing.servers}")
    if shard["server"] >= shard["servers"]:
        raise SchemaError(f"server: {shard['server']} of {shard['servers']}")
    tables = len(model.tables)
    for field in ("rows", "counting", "removed"):
        if len(shard[field]) != tables:
            count = len(shard[field])
            raise SchemaError(f"{field}: of {count} tables, the model has {tables}")
    prefix = shard_prefix(shard["server"], shard["nonce"])
    names = shard_files(prefix, shard["counting"], shard["removed"])
    counts = [
        *shard["rows"],
        *filter(None, shard["counting"]),
        *filter(None, shard["removed"]),
        *(None, None),
    ]
    if len(shard["files"]) != len(names):
        raise SchemaError(f"files: {len(shard['files'])}, and {len(names)} are its shard's")
    for position, (file, name, rows) in enumerate(zip(shard["files"], names, counts, strict=True)):
        if file["name"] != name:
            raise SchemaError(f"files[{position}].name: {file['name']!r}, not {name}")
        _check_pages(f"files[{position}].pages", file, rows)
    all_different("pushes", "worker", [push["worker"] for push in shard["pushes"]])
    if (lifecycle := shard.get("lifecycle")) is not None:
        _check_lifecycle(lifecycle, tables)
    return shard, model, routing


def _check_lifecycle(lifecycle: LifecycleState, tables: int) -> None:
    if len(lifecycle["removed"]) != tables:
        count = len(lifecycle["removed"])
        raise SchemaError(f"lifecycle.removed: of {count} tables, the model has {tables}")
    lines = lifecycle["clock"]["lines"]
    all_different("lifecycle.clock.lines", "table", [line["table"] for line in lines])
    for number, line in enumerate(lines):
        field = f"lifecycle.clock.lines[{number}]"
        if line["table"] >= tables:
            raise SchemaError(f"{field}.table: {line['table']}, the model has {tables}")
        if lifecycle["clock"]["now"] is None and line["entries"]:
            raise SchemaError(f"{field}.entries: of a clock without a time")
        if any(a >= b for a, b in pairwise(step for step, _ in line["entries"])):
            raise SchemaError(f"{field}.entries: steps that do not rise")
        if any(a > b for a, b in pairwise(time for _, time in line["entries"])):
            raise SchemaError(f"{field}.entries: times that go back")
    if lifecycle["plan"] is not None:
        plan: pb.SweepPlan = _message("lifecycle.plan", lifecycle["plan"], pb.SweepPlan)
        lengths = {
            len(each) for kind in (plan.rows, plan.counts) for each in (kind.sure, kind.maybe)
        }
        if plan.table >= tables or lifecycle["part"] >= plan.parts or lengths - {0, USE_CLASSES}:
            raise SchemaError("lifecycle.plan: of no sweep of this model")

    if (planning := lifecycle.get("planning")) is not None:
        lengths = {len(each) for each in planning["counts"]}
        expiring = planning.get("excess") is None
        swept = [line["table"] for line in lines] if expiring else range(tables)
        if planning["table"] not in swept or len(lengths) != 1:
            raise SchemaError("lifecycle.planning: of no sweep of this model")
    all_different("lifecycle.caps", "table", [cap["table"] for cap in lifecycle.get("caps", ())])


def _check_pages(field: str, file: PagedFile, rows: int | None) -> None:
    """rows: of a table in the file; None: it has vectors."""
    pages = file["pages"]
    if sum(page["bytes"] for page in pages) != file["bytes"]:
        raise SchemaError(f"{field}: not {file['bytes']} bytes")
    pieces = 0 if rows is None else len(pages) - 1
    for number, page in enumerate(pages):
        first, last = page.get("slots", (SLOTS, -1))
        if ("rows" in page, first <= last) != (number < pieces, number < pieces):
            raise SchemaError(f"{field}[{number}].slots: not of a piece of a table")
    found = sum(page.get("rows", 0) for page in pages)
    if found != (rows or 0):
        raise SchemaError(f"{field}: {found} rows, not {rows}")


def shard_prefix(server: int, nonce: str) -> str:
    """The beginning of the names of a shard's files.

    The nonce is in them as an object store takes what was begun first for what is written
    last: a shard of an attempt that was given up must not replace one of the next.
    """
    return f"server-{server:04d}.{nonce}"


def shard_files(prefix: str, counting: Sequence[int], removed: Sequence[int]) -> list[str]:
    """The names of a shard's files, in the order of its manifest.

    counting, removed: as Shard's.
    """
    parts = [f"table-{position:04d}" for position in range(len(counting))]
    for kind, counts in (("counting", counting), ("removed", removed)):
        parts += [f"{kind}-{position:04d}" for position, count in enumerate(counts) if count]
    return [f"{prefix}.{part}.arrow" for part in (*parts, "dense", "state")]


def checked_manifest(content: object) -> Manifest:
    """A checkpoint's manifest. Raises SchemaError."""
    manifest = checked(content, Manifest)
    for server, entry in enumerate(manifest["shards"]):
        name = f"{shard_prefix(server, manifest['nonce'])}.json"
        if entry["manifest"]["name"] != name:
            raise SchemaError(
                f"shards[{server}].manifest.name: {entry['manifest']['name']!r}, not {name}"
            )
    for field, found in (
        ("bytes", sum(entry["bytes"] for entry in manifest["shards"])),
        ("version", max(entry["version"] for entry in manifest["shards"])),
    ):
        if manifest[field] != found:  # type: ignore[literal-required]
            raise SchemaError(f"{field}: not {found}, as its shards say")
    return manifest


def checked_begun(content: object) -> Begun:
    """The mark of a checkpoint that is under way. Raises SchemaError."""
    return checked(content, Begun)


def all_different(field: str, key: str, values: list[Any]) -> None:
    """Raise SchemaError if the key of two elements of a list has the same value."""
    seen = set()
    for position, value in enumerate(values):
        if value in seen:
            raise SchemaError(f"{field}[{position}].{key}: {value!r} a second time")
        seen.add(value)


def parsed(field: str, parse: Any, text: str) -> Any:
    """The result of `parse` for a field's text. Raises SchemaError."""
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SchemaError(f"{field}: {error}") from error


def _message(field: str, text: str, kind: type[Any]) -> Any:
    try:
        return kind.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise SchemaError(f"{field}: not a {kind.__name__}") from error


def model_spec(text: str) -> pb.ModelSpec:
    """A model's specification out of a shard's manifest. Raises SchemaError."""
    model: pb.ModelSpec = _message("model", text, pb.ModelSpec)
    try:
        check_model(model)
    except ValueError as error:
        raise SchemaError(f"model.{error}") from error
    parsed("model.dense_optimizer", OptimizerSpec.from_json, model.dense_optimizer)
    for position, table in enumerate(model.tables):
        field = f"model.tables[{position}]"
        parsed(f"{field}.optimizer", OptimizerSpec.from_json, table.optimizer)
        parsed(f"{field}.initializer", InitializerSpec.from_json, table.initializer)
    all_different("model.tables", "name", [table.name for table in model.tables])
    return model


def _routing(text: str) -> Routing:
    message = _message("routing", text, pb.RoutingTable)
    if not message.servers:
        raise SchemaError("routing: of no server")
    routing: Routing = parsed("routing", Routing.from_message, message)
    return routing
