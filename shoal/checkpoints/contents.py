"""The rows and vectors of a checkpoint, compared with all that its manifests say of them.

The only way to them: what restores, exports, shows or verifies a checkpoint reads it here, so
that none of these takes what another refuses. The files' form is arrow.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats import arrow, manifests
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.threads import for_each
from shoal.native import ids as native_ids
from shoal.native.optimizers import OptimizerSpec
from shoal.native.values import decode
from shoal.proto.values.routing import flat_size

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import PagedFile

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def table_pieces(checkpoint: Checkpoint, server: int, position: int) -> Iterator[dict[str, Array]]:
    """A table's rows in the shard of `server`, in pieces, by column.

    `id` int64 [n], `values` float32 [n, dim] of whichever dtype the rows are, each optimizer slot
    float32 [n, width] under its name after arrow.SLOT, `version` int64 [n], `uses` uint32 [n].
    Raises CheckpointError naming a file that is not as written; after the last piece, too.
    """
    described = checkpoint.shards[server]["files"][position]
    pieces = arrow.read(checkpoint.folder, described, _columns(checkpoint, position))
    for piece, page in zip(pieces, table_pages(checkpoint, server, position), strict=False):
        _check_rows(checkpoint, page, piece["id"])
        yield _decoded(checkpoint, position, piece)


Kind = Literal["rows", "counting", "removed"]
"""What a file has of a table: its rows, ids that are counted and have none, or removed ids."""

KINDS: tuple[Kind, ...] = ("rows", "counting", "removed")
"""In the order of a shard's files."""

_OTHER_COLUMNS = {"counting": arrow.COUNTING_COLUMNS, "removed": arrow.REMOVED_COLUMNS}


@dataclass(frozen=True)
class Page:
    """A page of a table's file in the shard of `server`.

    number: of the page. start: its byte. rows: how many it has. slots: from which routing slot
    to which they are; None for the file's end, which has no rows. kind: what the file has of the
    table.
    """

    server: int
    position: int
    number: int
    start: int
    bytes: int
    rows: int
    slots: tuple[int, int] | None
    kind: Kind = "rows"


def table_pages(
    checkpoint: Checkpoint, server: int, position: int, owned: Flags | None = None
) -> list[Page]:
    """The pages of a table's file in the shard of `server`, in their order.

    owned: bool [16384]; only pages that may have rows of these routing slots. None: all pages,
    which are all of the file. For who reads them in any order, by several threads (`page_rows`).
    Raises CheckpointError if the file has another size.
    """
    return _pages(checkpoint, server, position, owned, "rows")


def counting_pages(
    checkpoint: Checkpoint, server: int, position: int, owned: Flags | None = None
) -> list[Page]:
    """The pages of the table's ids that are counted and have no row; otherwise as `table_pages`."""
    if not checkpoint.shards[server]["counting"][position]:
        return []
    return _pages(checkpoint, server, position, owned, "counting")


def removed_pages(checkpoint: Checkpoint, server: int, position: int) -> list[Page]:
    """The pages of the rows removed since the complete checkpoint before; as `table_pages`."""
    if not checkpoint.shards[server]["removed"][position]:
        return []
    return _pages(checkpoint, server, position, None, "removed")


def _pages(
    checkpoint: Checkpoint, server: int, position: int, owned: Flags | None, kind: Kind
) -> list[Page]:
    described = _file(checkpoint, server, position, kind)
    manifests.check_size(checkpoint.folder, described)
    start = 0
    found = []
    for number, page in enumerate(described["pages"]):
        slots = (page["slots"][0], page["slots"][1]) if "slots" in page else None
        rows = page.get("rows", 0)
        found.append(Page(server, position, number, start, page["bytes"], rows, slots, kind))
        start += page["bytes"]
    if owned is None:
        return found
    before = np.concatenate(([0], np.cumsum(owned)))
    return [
        page
        for page in found
        if page.slots is not None and before[page.slots[0]] < before[page.slots[1] + 1]
    ]


def page_rows(checkpoint: Checkpoint, page: Page) -> dict[str, Array] | None:
    """The rows of a page, as `table_pieces` gives them; None for the last, which has none.

    Of counted ids: `id` and `version` int64 [n], `uses` uint32 [n]; of removed ones arrow's
    REMOVED_COLUMNS. Reads the page once, and
    compares it with its checksum before anything of it is used. Raises
    CheckpointError as `table_pieces` does.
    """
    described = _file(checkpoint, page.server, page.position, page.kind)
    data = manifests.page(checkpoint.folder, described, page.number, page.start)
    if page.slots is None:
        return None
    path = checkpoint.folder.path(described["name"])
    columns = _OTHER_COLUMNS.get(page.kind) or _columns(checkpoint, page.position)
    rows = arrow.piece(path, data, page.number, columns)
    _check_rows(checkpoint, page, rows["id"])
    return _decoded(checkpoint, page.position, rows)


def row_in(checkpoint: Checkpoint, pages: Iterable[Page], key: int) -> dict[str, Any] | None:
    """The last row of an id in some pages, its columns as of `page_rows`; None if there is none.

    Raises CheckpointError as `table_pieces` does.
    """
    found = None
    for page in pages:
        rows = page_rows(checkpoint, page)
        if rows is not None and (at := np.flatnonzero(rows["id"] == key)).size:
            found = {name: column[at[-1]] for name, column in rows.items()}
    return found


def _file(checkpoint: Checkpoint, server: int, position: int, kind: Kind) -> PagedFile:
    shard = checkpoint.shards[server]
    # Those of all tables, and of each other kind those of tables that have any.
    counts = [[1] * len(shard["rows"]), shard["counting"], shard["removed"]]
    before = KINDS.index(kind)
    place = sum(map(bool, [*chain(*counts[:before]), *counts[before][:position]]))
    return shard["files"][place]


def _columns(checkpoint: Checkpoint, position: int) -> dict[str, pa.DataType]:
    table = checkpoint.model.tables[position]
    return arrow.table_columns(
        table.dim, OptimizerSpec.from_json(table.optimizer), table.value_dtype or "float32"
    )


def _decoded(checkpoint: Checkpoint, position: int, rows: dict[str, Array]) -> dict[str, Array]:
    """The columns of rows with their values as float32, which holds each of them exactly."""
    name, _ = arrow.VALUES[checkpoint.model.tables[position].value_dtype or "float32"]
    return {
        "values" if column == name else column: decode(array) if column == name else array
        for column, array in rows.items()
    }


def _check_rows(checkpoint: Checkpoint, page: Page, ids: Array) -> None:
    """Raises CheckpointError unless these rows are what the manifest says of the page."""
    described = _file(checkpoint, page.server, page.position, page.kind)
    path = checkpoint.folder.path(described["name"])
    slots = native_ids.slot_of(ids)
    if ids.size != page.rows:
        raise CheckpointError(f"{path}: {ids.size} rows in page {page.number}, not {page.rows}")
    if (checkpoint.routing.owners[slots] != page.server).any():
        raise CheckpointError(f"{path}: holds rows of another server")
    assert page.slots is not None
    if slots.size and not page.slots[0] <= slots.min() <= slots.max() <= page.slots[1]:
        raise CheckpointError(f"{path}: page {page.number} holds rows of other slots than it says")


def dense_slices(checkpoint: Checkpoint, server: int) -> dict[str, Float32]:
    """The slice of the trainable variables in a shard, as "values", and of each slot of theirs.

    float32 [elements of the slice]. Raises CheckpointError as `table_pieces`.
    """
    model = checkpoint.model
    names = OptimizerSpec.from_json(model.dense_optimizer).slot_names
    size = flat_size(model.trainable)
    return _vectors(checkpoint, server, -2, ["values", *names], size)


def state_slice(checkpoint: Checkpoint, server: int) -> Float32:
    """The slice of the non-trainable variables in a shard. As `dense_slices`."""
    size = flat_size(checkpoint.model.non_trainable)
    return _vectors(checkpoint, server, -1, ["values"], size)["values"]


def _vectors(
    checkpoint: Checkpoint, server: int, file: int, names: list[str], size: int
) -> dict[str, Float32]:
    described = checkpoint.shards[server]["files"][file]
    path = checkpoint.folder.path(described["name"])
    ours = checkpoint.routing.dense_slice(size, server)
    pieces = list(arrow.read(checkpoint.folder, described, arrow.vector_columns(names)))
    if len(pieces) != 1 or any(each.size != ours.stop - ours.start for each in pieces[0].values()):
        raise CheckpointError(f"{path}: not the {ours.stop - ours.start} elements of its slice")
    return pieces[0]


def verify(checkpoint: Checkpoint) -> None:
    """Read all of it, several files at once.

    Raises CheckpointError naming a file that is not as written.
    """

    def table(server: int, position: int) -> None:
        for _ in table_pieces(checkpoint, server, position):
            pass
        for page in (
            *counting_pages(checkpoint, server, position),
            *removed_pages(checkpoint, server, position),
        ):
            page_rows(checkpoint, page)

    files: list[Callable[[], object]] = []
    for server in range(len(checkpoint.shards)):
        files += [
            partial(table, server, position) for position in range(len(checkpoint.model.tables))
        ]
        files += [
            partial(dense_slices, checkpoint, server),
            partial(state_slice, checkpoint, server),
        ]
    for_each(lambda read: read(), files)
