"""Checkpoints: one server's share to files and back, and the whole that they make.

Owns the files' content. A share is the server after exactly the pushes that it names:
they are noted and the rows fixed in one pause between pushes, and the rows are written
while later pushes go on. Sizes and checksums are manifests.py's; when to take a
checkpoint is the master's to say. Tables are Arrow IPC files with a column each for ids,
values, every optimizer slot, version and use count.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shoal.native import ids as native_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.routing import Routing, slice_of
from shoal.ps import manifests
from shoal.ps.manifests import CheckpointError
from shoal.ps.pushes import PushRegister
from shoal.ps.tables import ServerModel, flat_size

FORMAT = 1
ROWS_PER_PIECE = 32768
SLOT = "slot:"

Float32 = npt.NDArray[np.float32]


def write_share(
    folder: Path, server: int, routing: Routing, model: ServerModel, pushes: PushRegister
) -> dict[str, Any]:
    """Write a server's share into `folder`; returns its manifest as the whole's names it.

    Raises OSError if files cannot be written, WireError before the dense values are
    there, MemoryError if rows changed meanwhile do not fit. The model goes on as before.
    """
    with pushes.paused() as applied:
        dense = model.freeze()
    try:
        files = []
        for position, table in enumerate(model.tables):
            path = folder / f"server-{server:04d}.table-{position:04d}.arrow"
            _write_arrow(path, (_row_columns(*piece) for piece in table.snapshot(ROWS_PER_PIECE)))
            files.append(manifests.describe(path))
    finally:
        model.thaw()
    for name, vectors in (("dense", dense.trainable), ("state", {"values": dense.state})):
        path = folder / f"server-{server:04d}.{name}.arrow"
        _write_arrow(path, [{key: pa.array(each) for key, each in vectors.items()}])
        files.append(manifests.describe(path))
    path = folder / f"server-{server:04d}.json"
    content = {
        "format": FORMAT,
        "server": server,
        "servers": routing.servers,
        "routing": _text(routing.to_message()),
        "model": _text(model.spec),
        "version": dense.version,
        "pushes": applied,
        "files": files,
    }
    manifests.write(path, content)
    return manifests.describe(path)


def complete(
    folder: Path, number: int, shares: Sequence[dict[str, Any]], ledger: dict[str, Any]
) -> None:
    """Make the shares written into `folder` a checkpoint: the last step of taking one.

    shares: what `write_share` returned, by server. ledger: the master's position.
    """
    content = {"format": FORMAT, "number": number, "shares": list(shares), "ledger": ledger}
    manifests.write(folder / manifests.MANIFEST, content)
    manifests.sync_folder(folder.parent)


def folder_of(root: Path, number: int) -> Path:
    """The folder of checkpoint `number`, counted from 1 and never used again."""
    return root / f"checkpoint-{number:08d}"


class Checkpoint:
    """A complete checkpoint, opened. ledger: the master's position."""

    def __init__(self, folder: Path) -> None:
        """Read the manifests. Raises CheckpointError naming a file that is not right."""
        self.folder = folder
        manifest = manifests.read(folder / manifests.MANIFEST)
        if manifest["format"] != FORMAT or folder_of(folder.parent, manifest["number"]) != folder:
            raise CheckpointError(f"{folder / manifests.MANIFEST}: of another format or checkpoint")
        self.number: int = manifest["number"]
        self.ledger: dict[str, Any] = manifest["ledger"]
        self.shares = [manifests.read(manifests.check(folder, each)) for each in manifest["shares"]]
        self.model = pb.ModelSpec.FromString(base64.b64decode(self.shares[0]["model"]))
        self.routing = Routing.from_message(
            pb.RoutingTable.FromString(base64.b64decode(self.shares[0]["routing"]))
        )

    def verify(self) -> None:
        """Read every file. Raises CheckpointError naming one that is not as written."""
        for share in self.shares:
            for described in share["files"]:
                manifests.check(self.folder, described)

    def restore(self, server: int, routing: Routing, pushes: PushRegister) -> ServerModel:
        """The share of server `server` of `routing.servers`, however many wrote it.

        With another number of servers no push is known as applied: the workers that
        sent them are gone. Raises CheckpointError naming a file that is not as written.
        """
        model = ServerModel(self.model, server, routing.servers)
        same = routing.servers == len(self.shares) and np.array_equal(
            routing.owners, self.routing.owners
        )
        # A share of the same cut holds all that is ours.
        shares = [self.shares[server]] if same else self.shares
        for share in shares:
            for position, table in enumerate(model.tables):
                for columns in self._pieces(share, position):
                    ids = columns.pop("id")
                    ours = routing.owners[native_ids.slot_of(ids)] == server
                    rows = {name: np.ascontiguousarray(c[ours]) for name, c in columns.items()}
                    table.assign(
                        ids[ours],
                        rows.pop("values"),
                        versions=rows.pop("version"),
                        use_counts=rows.pop("uses"),
                        slots={name.removeprefix(SLOT): rows[name] for name in rows},
                    )
        dense = self._vectors(server, routing.servers, -2, flat_size(self.model.trainable))
        state = self._vectors(server, routing.servers, -1, flat_size(self.model.non_trainable))
        version = max(share["version"] for share in shares)
        model.restore(version, dense, state["values"])
        if same:
            pushes.restore(self.shares[server]["pushes"])
        return model

    def _pieces(self, share: dict[str, Any], file: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
        path = manifests.check(self.folder, share["files"][file])
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield {name: _numbers(c) for name, c in _columns(reader.get_batch(number))}

    def _vectors(self, server: int, servers: int, file: int, size: int) -> dict[str, Float32]:
        """The slice of the flat vectors in a file that this server is to hold."""
        ours = slice_of(size, server, servers)
        parts: dict[str, list[Float32]] = {}
        for share in self.shares:
            theirs = slice_of(size, share["server"], share["servers"])
            for columns in self._pieces(share, file):
                for name, column in columns.items():
                    start = max(0, ours.start - theirs.start)
                    part = column[start : max(start, ours.stop - theirs.start)]
                    parts.setdefault(name, []).append(part)
        return {name: np.concatenate(each) for name, each in parts.items()}


def newest_good(root: Path) -> tuple[Checkpoint | None, list[CheckpointError]]:
    """The newest checkpoint below `root` whose every file is right; why newer ones are not."""
    refused: list[CheckpointError] = []
    for folder in sorted(root.glob("checkpoint-*"), reverse=True):
        try:
            checkpoint = Checkpoint(folder)
            checkpoint.verify()
        except CheckpointError as error:
            refused.append(error)
        else:
            return checkpoint, refused
    return None, refused


def _text(message: Any) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def _row_columns(
    ids: Any, values: Float32, slots: dict[str, Float32], versions: Any, uses: Any
) -> dict[str, Any]:
    def listed(array: Float32) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])

    columns = {"id": pa.array(ids), "values": listed(values)}
    columns |= {SLOT + name: listed(slot) for name, slot in slots.items()}
    return columns | {"version": pa.array(versions), "uses": pa.array(uses)}


def _write_arrow(path: Path, pieces: Iterable[dict[str, Any]]) -> None:
    """Write pieces of one schema, on disk when this returns; no piece is an empty table."""
    with path.open("wb") as file:
        writer = None
        for columns in pieces:
            batch = pa.RecordBatch.from_pydict(columns)
            if writer is None:
                writer = pa.ipc.new_file(file, batch.schema)
            writer.write_batch(batch)
        if writer is None:
            writer = pa.ipc.new_file(file, pa.schema([]))
        writer.close()
        file.flush()
        os.fsync(file.fileno())


def _columns(batch: Any) -> Iterator[tuple[str, Any]]:
    return zip(batch.schema.names, batch.columns, strict=True)


def _numbers(column: Any) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        flat: npt.NDArray[Any] = column.flatten().to_numpy()
        return flat.reshape(len(column), column.type.list_size)
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers
