"""The content of the manifests of what a job publishes: a delta, the folder of its model, the hint.

As shoal/checkpoints/formats/schema.py has those of checkpoints: whoever reads one has it checked
here. A *delta* has all that changed since the one before; a *share* is the part of one server.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import numpy.typing as npt
from pydantic import Field
from typing_extensions import TypedDict

from shoal.checkpoints.formats.schema import (
    Count,
    File,
    FileName,
    Integer,
    Nonce,
    Positive,
    SchemaError,
    Slot,
    Text,
    all_different,
    checked,
    exact,
    model_spec,
)
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.model_bounds import MAX_DIM
from shoal.proto.values.routing import SLOTS

DELTA_FORMAT = "shoal-delta-1"
MODEL_FORMAT = "shoal-live-model-1"
HINT_FORMAT = "shoal-live-1"
VERSION_FORMAT = "shoal-version-1"

Runs = list[Annotated[list[Slot], Field(min_length=2, max_length=2)]]
"""Routing slots, as the first and the last of each run of them, in their order."""

Flags = npt.NDArray[np.bool_]
"""bool [16384], one a routing slot."""

Checksum = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]

Kind = Literal["removed", "rows", "trainable", "state"]


@exact
class DeltaPage(TypedDict):
    """A page of a share's file: an Arrow stream of one batch, which is read by itself.

    kind: rows of a table; ids that were removed from one; elements of the trainable or of the
    non-trainable dense vector. table: its position, of the first two kinds. first: the place of
    the first element in the vector, of the others. rows: how many, or how many elements.
    """

    bytes: Annotated[int, Field(gt=0, lt=2**40)]
    xxh3_64: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    kind: Kind
    table: NotRequired[Count]
    first: NotRequired[Count]
    rows: Positive


@exact
class DeltaFile(File):
    """The file of a share. pages: all of it, in their order; none in an empty file."""

    pages: list[DeltaPage]


@exact
class Share(TypedDict):
    """One server's part of a delta.

    life: of the process that wrote it. since, to: it has what changed in the steps from `since` to
    `to` of that life; rows may be newer. version: pushes applied. owned: its routing slots. whole:
    those of them of which it has all rows: a follower removes what it has of them beside these.
    dense: it has the server's slices of the dense variables. event_time: of the server's clock,
    microseconds since 1970.
    """

    server: Count
    life: Nonce
    since: Count
    to: Count
    version: Count
    owned: Runs
    whole: Runs
    dense: bool
    event_time: NotRequired[Integer]
    file: DeltaFile


@exact
class LiveModel(TypedDict):
    """The model by which a delta is understood: its folder, and the manifest in that."""

    folder: FileName
    manifest: File


@exact
class DeltaManifest(TypedDict):
    """A delta. Deltas are numbered from 1, without gaps but where some were lost: a base follows.

    job: the id of the job that made it. created: seconds since 1970. previous: the checksum of the
    manifest of the delta before; empty if there was none. base: its shares have all rows of all
    slots and all dense values, so it can be understood without any before. newest_base: the number
    of the newest base up to this delta; base_bytes: of its files; bytes_since: of those after it.
    epoch: of the routing table by which the servers divided the slots. records: trained by then.
    version: the highest
    of the servers'.
    """

    format: str
    number: Positive
    nonce: Nonce
    job: str
    job_name: str
    created: Annotated[float, Field(ge=0, lt=1e11)]
    previous: Checksum | Literal[""]
    base: bool
    newest_base: Positive
    base_bytes: Count
    bytes_since: Count
    epoch: Count
    version: Count
    records: Count
    model: LiveModel
    shares: Annotated[list[Share], Field(min_length=1, max_length=16384)]


@exact
class LiveTable(TypedDict):
    """A table of a live model, in the order of the model's specification.

    default: the row of an id that is not there. vocabulary: the table has the rows 0 to this one,
    without it; 0: of any id. ids, vectors: the names of the SavedModel's inputs.
    """

    name: Text
    dim: Annotated[int, Field(gt=0, le=MAX_DIM)]
    default: list[float]
    vocabulary: Count
    ids: NotRequired[str]
    vectors: NotRequired[str]


@exact
class LiveModelManifest(TypedDict):
    """The manifest of a live model's folder.

    spec: the specification of the model, a message, base64. saved_model: the folder of one that
    takes the vectors of all tables as inputs; None: the model cannot be had, as `lacks` says.
    variables: the paths of the variables in the SavedModel's list `dense`, in its order, with which
    the specification names them; what it has besides is none of a delta's. engine: which trains
    it. files: all that is there but this manifest.
    """

    format: str
    job: str
    engine: str
    created: Annotated[float, Field(ge=0, lt=1e11)]
    spec: str
    tables: list[LiveTable]
    saved_model: FileName | None
    variables: NotRequired[list[str]]
    lacks: NotRequired[str]
    files: list[File]


@exact
class Hint(TypedDict):
    """The place where a new follower begins: the newest base; and the oldest delta that is kept."""

    format: str
    base: Positive
    oldest: Positive


@exact
class Version(TypedDict):
    """A numbered SavedModel: the delta of its number, by the checksum of that one's manifest.

    created: the delta, in seconds since 1970.
    """

    format: str
    delta: Positive
    manifest: Checksum
    created: Annotated[float, Field(ge=0, lt=1e11)]


def checked_delta(content: object) -> DeltaManifest:
    """A delta's manifest. Raises SchemaError."""
    manifest = checked(content, DeltaManifest)
    shares = manifest["shares"]
    all_different("shares", "server", [share["server"] for share in shares])
    owned = np.zeros(SLOTS, np.int64)
    for position, share in enumerate(shares):
        field = f"shares[{position}]"
        own, whole = (slots_of(f"{field}.{name}", share[name]) for name in ("owned", "whole"))
        owned += own
        if (whole & ~own).any():
            raise SchemaError(f"{field}.whole: slots that are not the server's")
        _check_pages(f"{field}.file", share["file"])
        if manifest["base"] and ((own & ~whole).any() or not share["dense"]):
            raise SchemaError(f"{field}: not whole, of a base")
    if (owned != 1).any():
        raise SchemaError("shares.owned: not all slots, each once")
    if manifest["base"] != (manifest["newest_base"] == manifest["number"]):
        raise SchemaError("newest_base: not of a base")
    if not (manifest["previous"] or manifest["base"]):
        raise SchemaError("previous: missing, of a delta that is no base")
    if manifest["previous"] and manifest["number"] == 1:
        raise SchemaError("previous: of the first delta")
    return manifest


def _check_pages(field: str, file: DeltaFile) -> None:
    if sum(page["bytes"] for page in file["pages"]) != file["bytes"]:
        raise SchemaError(f"{field}.pages: not {file['bytes']} bytes")
    for number, page in enumerate(file["pages"]):
        of_table = page["kind"] in ("removed", "rows")
        if of_table != ("table" in page) or of_table == ("first" in page):
            raise SchemaError(f"{field}.pages[{number}]: of a table and a vector, or of none")


def checked_model(content: object) -> tuple[LiveModelManifest, pb.ModelSpec]:
    """A live model's manifest, and the specification that it has. Raises SchemaError."""
    manifest = checked(content, LiveModelManifest)
    spec = model_spec(manifest["spec"])
    found = [(table["name"], table["dim"], len(table["default"])) for table in manifest["tables"]]
    if found != [(table.name, table.dim, table.dim) for table in spec.tables]:
        raise SchemaError("tables: other than those of spec")
    if manifest["saved_model"] is not None:
        names = [each.name for each in (*spec.trainable, *spec.non_trainable)]
        there = manifest.get("variables", [])
        if lacking := [name for name in names if there.count(name) != 1]:
            raise SchemaError(f"variables: {lacking[0]} is not there once, of a SavedModel")
    return manifest, spec


def checked_hint(content: object) -> Hint:
    """A folder's hint. Raises SchemaError."""
    return checked(content, Hint)


def checked_version(content: object) -> Version:
    """The label of a numbered SavedModel. Raises SchemaError."""
    return checked(content, Version)


def runs_of(slots: Flags) -> Runs:
    """The runs of some slots, bool [16384]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slots, [False]]).astype(np.int8)))
    return [[int(first), int(end) - 1] for first, end in edges.reshape(-1, 2)]


def slots_of(field: str, runs: Iterable[Any]) -> Flags:
    """The slots of runs, bool [16384]. Raises SchemaError for runs that are out of order."""
    runs = list(runs)
    if any(a > b for a, b in runs) or any(a[1] >= b[0] for a, b in pairwise(runs)):
        raise SchemaError(f"{field}: runs that are not in order")
    slots = np.zeros(SLOTS, bool)
    for first, last in runs:
        slots[first : last + 1] = True
    return slots
