"""A server's share of a delta: what changed since its last share, written while pushes go on.

A share is a round of a move whose target is a file: a *cut* between two pushes says up to which
step it has all; then the tables are scanned for rows that were changed since. A row may be newer
than the cut, and is told again with the next share. So nothing is copied but the dense slices, and
no push waits for the scan. Owns the cut and the writing. The master says which slots are to be
told whole, as a base is due or they have moved. This server tells all where it does not know what
changed since: its last share was written by an earlier process, rows were set without a push, or
too many ids were removed.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.formats import manifests
from shoal.files.storage import open_storage
from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.pools import started_pool
from shoal.proto.errors import WireError
from shoal.proto.values.routing import SLOTS, from_bits
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel, rows_of
from shoal.ps.moved_rows import Flags, parts_of
from shoal.ps.ownership import Ownership
from shoal.ps.shards import NONCE

if TYPE_CHECKING:
    from shoal.deltas.schema import Kind
    from shoal.deltas.shares import Page

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

PIECE_BYTES = 4 << 20
"""Of rows in a page, about."""

PIECE_ELEMENTS = PIECE_BYTES // 4
"""Of a dense vector in a page, at most; or of removed ids, twice as many bytes."""


@dataclass(frozen=True)
class Cut:
    """A server at one moment, for a share.

    owned, whole: its slots, and those of them that are told whole. since, to: the steps of which
    it has all. removed: of each table, the ids that were removed in them. dense: values and state,
    with the places of their first elements; None where none of them has changed.
    """

    owned: Flags
    whole: Flags
    since: int
    to: int
    version: int
    removed: Sequence[Int64]
    dense: tuple[tuple[int, Float32], tuple[int, Float32]] | None
    event_time: int | None


class Publishing:
    """Writes the shares of server `server`.

    root: path or URL of the folder that the job publishes into; "" where it publishes nothing.
    Raises OSError if the thread that writes cannot be had.
    """

    def __init__(
        self,
        server: int,
        model: Callable[[], ServerModel],
        ownership: Ownership,
        pushes: PushRegister,
        root: str,
    ) -> None:
        """model: the present one. ownership: of its ids."""
        self._server = server
        # Of this process alone: what a share says of steps is about no other one.
        self._life = secrets.token_hex(8)
        self._model, self._ownership, self._pushes = model, ownership, pushes
        self._root = root
        self._calls = threading.Lock()  # one share at a time
        self._assigned = -1
        # Always the same thread, as that of checkpoints.
        self._writer = started_pool(1, "write-share") if root else None

    def assigned(self) -> None:
        """Rows were set without a push: the next share has to tell all."""
        self._assigned = self._model().step

    def publish(self, request: pb.PublishRequest) -> pb.PublishReply:
        """Write a share. Raises WireError, CHECKPOINT_FAILED if it cannot be written."""
        if request.number < 1 or not NONCE.fullmatch(request.nonce):
            raise WireError(pb.BAD_REQUEST, "the delta has no number, or no nonce of 16 digits")
        if self._writer is None:
            raise WireError(pb.CHECKPOINT_FAILED, "this server was given no folder for deltas")
        try:
            whole = from_bits(request.whole)
        except ValueError as error:
            raise WireError(pb.BAD_REQUEST, f"whole: {error}") from error
        with self._calls:
            model = self._model()
            cut = self._cut(model, request, whole)
            faults.point("publish-cut")
            try:
                share, seconds = self._writer.submit(self._write, model, request, cut).result()
            except OSError as error:
                where = error.filename or self._root
                reason = manifests.reason(error)
                raise WireError(pb.CHECKPOINT_FAILED, f"{where}: {reason}") from error
        faults.point("share-written")
        return pb.PublishReply(share=share, seconds=seconds)

    def _cut(self, model: ServerModel, request: pb.PublishRequest, whole: Flags) -> Cut:
        """The server between two pushes."""
        since = request.since if request.life == self._life else 0
        if since <= self._assigned + 1:
            since = 0
        lifecycle, event_time = model.lifecycle, None
        with self._pushes.paused():
            routing = self._ownership.routing
            self._ownership.check(request.routing_epoch, ())
            to, version = model.step, model.version
            removed: Sequence[Int64] = [np.empty(0, np.int64) for _ in model.tables]
            if lifecycle is not None:
                event_time = lifecycle.clock.now
                lifecycle.removals.published(since - 1)
                if since and (known := lifecycle.removals.since(since, to)) is not None:
                    removed = known
                else:
                    since = 0
            if since == 0:
                whole = np.ones(SLOTS, bool)
            dense = None
            if to >= since or whole.all():
                trainable, state = model.dense.slices
                values = model.dense.block.values.copy()
                dense = (trainable.start, values), (state.start, model.dense.state)
        owned = routing.owners == self._server
        return Cut(owned, whole & owned, since, to, version, removed, dense, event_time)

    def _write(self, model: ServerModel, request: pb.PublishRequest, cut: Cut) -> tuple[str, float]:
        """Write the file of a cut; returns the share as JSON, and the processor's seconds."""
        began = time.thread_time()
        # Late: they take the start of a process a while.
        from shoal.deltas import chain, schema, shares

        def pages() -> Iterator[Page]:
            for page in self._pages(model, cut):
                yield page
                faults.point("share-half-written")

        folder = open_storage(self._root).child(chain.delta_name(request.number))
        folder.make()
        name = chain.share_name(self._server, request.nonce)
        share: schema.Share = {
            "server": self._server,
            "life": self._life,
            "since": cut.since,
            "to": cut.to,
            "version": cut.version,
            "owned": schema.runs_of(cut.owned),
            "whole": schema.runs_of(cut.whole),
            "dense": cut.dense is not None,
            "file": shares.write(folder, name, pages()),
        }
        if cut.event_time is not None:
            share["event_time"] = cut.event_time
        return json.dumps(share), time.thread_time() - began

    def _pages(self, model: ServerModel, cut: Cut) -> Iterator[Page]:
        from shoal.deltas.shares import Page

        for position, ids in enumerate(cut.removed):
            for first in range(0, len(ids), PIECE_ELEMENTS):
                yield Page("removed", position, ids=ids[first : first + PIECE_ELEMENTS])
        for slots, step in ((cut.owned & ~cut.whole, cut.since), (cut.whole, 0)):
            if not slots.any():
                continue
            part_of = parts_of([slots])
            for position, table in enumerate(model.tables):
                room = rows_of(table, PIECE_BYTES)
                for _, (ids, values, *_others) in table.export_of(part_of, 1, step, room):
                    dtype = table.value_dtype
                    yield Page("rows", position, ids=ids, values=values, value_dtype=dtype)
        if cut.dense is not None:
            kinds: tuple[Kind, Kind] = ("trainable", "state")
            for (place, values), kind in zip(cut.dense, kinds, strict=True):
                for first in range(0, values.size, PIECE_ELEMENTS):
                    piece = values[first : first + PIECE_ELEMENTS]
                    yield Page(kind, first=place + first, values=piece)
