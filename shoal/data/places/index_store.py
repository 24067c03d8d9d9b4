"""Indexes of sources: told by the process that described them, or found out here.

An index says where records begin, so that a range is read without the records before it. The
process that describes a source tells its index to others. A reader asks for the index once, and
builds it again only if none is known, or if the source has changed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from shoal.data.places.recent import Recent
from shoal.data.reader import Source
from shoal.errors import UserError

logger = logging.getLogger(__name__)

KEPT = 64
"""Sources of which is kept what is known: a worker goes from one to the next."""

_KIND = b"kind"


@dataclass(frozen=True)
class Known:
    """The description of a source that another process told.

    stamp: a text that differs between contents; "" if there is none. index: as from `packed`; empty
    if the source needs none.
    """

    source: Source
    stamp: str = ""
    index: bytes = b""


class IndexStore:
    """Indexes by source.

    fetch: gives what was told of a source; None where nothing was.
    """

    def __init__(self, fetch: Callable[[str], Known | None] = lambda _: None) -> None:
        self._fetch = fetch
        self._known: Recent[str, Known] = Recent(KEPT)
        self._found: dict[str, tuple[str, bytes]] = {}
        self._keeps = False

    def known(self, source: str) -> Known | None:
        """The description of a source, if it was told; if not, each call asks for it again."""
        if source not in self._known:
            told = self._fetch(source)
            if told is None:
                return None
            return self._known.get(source, lambda: told)
        return self._known[source]

    def forget(self) -> None:
        """Ask for everything anew."""
        self._known.clear()

    def get(self, kind: str, source: str, stamp: str, build: Callable[[], pa.Table]) -> pa.Table:
        """The index of a source, built if it is not known. What `build` raises passes through.

        kind: of index. stamp: of the source's content now. Who asks keeps the answer.
        """
        known = self.known(source)
        table = None
        if known is not None and known.index and known.stamp == stamp:
            table = unpacked(kind, known.index)
        if table is None:
            table = build()
        if self._keeps:
            self._found[source] = stamp, packed(kind, table)
        return table

    def check(self, source: Source, stamp: str) -> None:
        """Raises UserError if a source, as it is now, is not the one that was told of."""
        if self._keeps:
            self._found.setdefault(source.name, (stamp, b""))
        known = self.known(source.name)
        if known is None or not known.stamp or known.stamp == stamp:
            return
        before, now = known.source.records, source.records
        same_size = known.stamp.partition("-")[0] == stamp.partition("-")[0]
        if before != now or not same_size:
            records = f"{now:,} records, and {before:,} then" if before != now else "another size"
            raise UserError(
                f"{source.name}: the file was changed after the job had described it ({records}): "
                "files must stay as they are until their job has ended. Put the file back, or "
                "begin a new job"
            )
        logger.warning("%s was written anew, with as many records and bytes", source.name)

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep what is found out in this block, for `told`."""
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            self._found.clear()

    def told(self, source: Source) -> Known:
        """The description of a source for other processes, from reading it while `keeping`."""
        return Known(source, *self._found.pop(source.name, ("", b"")))


def packed(kind: str, table: pa.Table) -> bytes:
    """An index as bytes. kind: of it."""
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({**(table.schema.metadata or {}), _KIND: kind.encode()})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def unpacked(kind: str, index: bytes) -> pa.Table | None:
    """The table that `packed` made bytes of; None if it is of another kind, or damaged."""
    try:
        table = pa.ipc.open_stream(index).read_all()
    except (pa.ArrowException, OSError) as error:
        logger.warning("an index cannot be read: %s", error)
        return None
    found = (table.schema.metadata or {}).get(_KIND, b"")
    return table if found == kind.encode() else None
