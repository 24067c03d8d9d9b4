"""A job's newest rows in Redis or Valkey, for servers of predictions that look them up there.

    {prefix}{table}:{id}   a row: float32, little-endian, one after the other
    {prefix}delta          number of the newest delta of which all is there; set last
    {prefix}chain          its checksum
    {prefix}tables         the set of the tables' names that were written
    {prefix}writer         who writes: another one that begins takes its place

Owns that Redis has just the job's rows in the end, whoever is killed meanwhile, also Redis itself.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from os import PathLike, fspath
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import numpy.typing as npt

from shoal.base.modules.libraries import library
from shoal.base.words import near
from shoal.config.url_variables import fill
from shoal.deltas.delta import Delta, TableDelta
from shoal.deltas.errors import told
from shoal.deltas.walking import Walk
from shoal.errors import Error, StorageError, UserError, without_secrets
from shoal.files.storage import open_storage
from shoal.native.ids import slot_of

Int64 = npt.NDArray[np.int64]

INT64 = np.iinfo(np.int64)

SCHEMES = ("redis", "rediss", "unix")

PREFIX = "shoal:"
"""Of keys, if the URL names no other: Redis may have other keys too."""

KEYS_AT_ONCE = 2000
"""Of one command: Redis answers nobody else while it is at it."""

SECONDS = 30.0
"""For an answer."""

logger = logging.getLogger(__name__)


class TakenOverError(Error):
    """Another process writes the same keys now."""


class RedisRows:
    """The rows below a prefix. number, checksum: of the delta that is there; 0 and "": of none."""

    def __init__(self, url: str, tables: Collection[str] = ()) -> None:
        """url: redis://[USER:PASSWORD@]HOST[:PORT][/DB][?prefix=TEXT], or rediss:// or unix://.

        tables: those to write; none: all. Raises UserError for another URL, or without the library.
        """
        self._redis = library("redis", "--to redis://", "'shoal[redis]'")
        filled = fill(url, "--to", quoted=True)
        plain, _, query = filled.url.partition("?")
        if plain.partition("://")[0] not in SCHEMES or "://" not in plain:
            raise UserError(f"--to: {without_secrets(url)} is not redis://HOST:PORT/DB?prefix=TEXT")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        self._prefix = asked.pop("prefix", PREFIX)
        plain += f"?{urlencode(asked)}" if asked else ""
        try:
            self._client: Any = self._redis.Redis.from_url(
                plain, socket_timeout=SECONDS, socket_connect_timeout=SECONDS
            )
        except (ValueError, TypeError) as error:
            raise UserError(f"--to: {without_secrets(f'{url}: {error}')}") from error
        self.place = without_secrets(filled.unfilled(url))
        self._only = frozenset(tables)
        self._token = secrets.token_hex(8).encode()
        self.number, self.checksum = 0, ""

    @property
    def failures(self) -> type[Exception]:
        """The error that is raised if Redis fails."""
        return self._redis.RedisError  # type: ignore[no-any-return]

    def begin(self) -> None:
        """Take the place of any other writer, and find what is there. Raises `failures`."""
        self._client.set(self._key("writer"), self._token)
        self.find()

    def find(self) -> bool:
        """Find what is there; True if it is what this writer has left.

        Raises TakenOverError if another one writes, and `failures`.
        """
        keys = [self._key(name) for name in ("delta", "chain", "writer")]
        number, checksum, writer = self._client.mget(keys)
        if writer not in (None, self._token):
            raise TakenOverError(
                f"{self.place}: another shoal follow writes {self._key('delta')} now: end one of "
                "them, or give them different prefixes"
            )
        if writer is None:  # Redis was emptied, or began again without it
            self._client.set(self._key("writer"), self._token)
        try:
            found = int(number or b"0"), (checksum or b"").decode()
        except ValueError as error:
            raise UserError(
                f"--to: {self.place}: {self._key('delta')} is {number!r}, which shoal did not "
                "write: give another prefix"
            ) from error
        if found == (self.number, self.checksum):
            return True
        self.number, self.checksum = found
        return False

    def apply(self, delta: Delta) -> None:
        """Make the rows those of a delta. Raises `failures`, TakenOverError and DeltaError."""
        wanted = [*delta.tables]
        for name in self._only:
            if name not in wanted:
                known = f"{near(name, wanted)}; there are {', '.join(wanted)}"
                raise UserError(f"--tables: there is no table {name!r}{known}")
        tables = [t for t in delta.tables.values() if not self._only or t.name in self._only]
        if tables:
            self._client.sadd(self._key("tables"), *(each.name for each in tables))
        for table in tables:
            self._set(table)
        if delta.whole.any():
            self._drop(delta, tables)
        self._commit(delta)

    def _set(self, table: TableDelta) -> None:
        """Set rows, then delete what was removed and is not among them: nobody misses one."""
        removed = np.unique(table.removed)
        for ids, rows in table.pieces():
            removed = removed[~np.isin(removed, ids)] if removed.size else removed
            data, size = rows.astype("<f4", copy=False).tobytes(), 4 * table.dim
            for first in range(0, ids.size, KEYS_AT_ONCE):
                some = ids[first : first + KEYS_AT_ONCE].tolist()
                start = first * size
                self._client.mset(
                    {
                        self._row(table.name, each): data[start + i * size : start + (i + 1) * size]
                        for i, each in enumerate(some)
                    }
                )
        for first in range(0, removed.size, KEYS_AT_ONCE):
            some = removed[first : first + KEYS_AT_ONCE].tolist()
            self._client.unlink(*(self._row(table.name, each) for each in some))

    def _drop(self, delta: Delta, tables: Collection[TableDelta]) -> None:
        """Delete the rows of slots that a delta has whole, if it did not set them.

        With a base, also those of tables that the model before had.
        """
        there = {each.name: np.sort(each.ids) for each in tables}
        written = {each.decode() for each in self._client.smembers(self._key("tables"))}
        for name, keys, ids in self._keys(written):
            gone = np.zeros(ids.size, bool)
            if name in there:
                known = there[name]
                at = np.minimum(np.searchsorted(known, ids), max(known.size - 1, 0))
                found = known[at] == ids if known.size else gone
                gone = delta.whole[slot_of(ids)] & ~found
            elif delta.base:
                gone[:] = True
            if gone.any():
                self._client.unlink(*keys[gone].tolist())
        if delta.base and (old := written - there.keys()):
            self._client.srem(self._key("tables"), *old)

    def _keys(self, written: Collection[str]) -> Iterator[tuple[str, Any, Int64]]:
        """Keys of rows in pieces, each of one table: its name, keys [n] and ids int64 [n]."""
        pattern = re.sub(r"([][*?^\\])", r"\\\1", self._prefix) + "*:*"
        start = len(self._prefix.encode())
        cursor = 0
        while True:
            cursor, found = self._client.scan(cursor, match=pattern, count=KEYS_AT_ONCE)
            of: dict[str, tuple[list[bytes], list[int]]] = {}
            for key in found:
                name, _, number = key[start:].rpartition(b":")
                table = name.decode("utf-8", "replace")
                if table not in written or not re.fullmatch(rb"-?\d{1,19}", number):
                    continue
                if INT64.min <= int(number) <= INT64.max:
                    keys, ids = of.setdefault(table, ([], []))
                    keys.append(key)
                    ids.append(int(number))
            for table, (keys, ids) in of.items():
                yield table, np.array(keys, object), np.array(ids, np.int64)
            if not cursor:
                return

    def _commit(self, delta: Delta) -> None:
        """Say that all of a delta is there, unless Redis was emptied or taken over meanwhile."""
        with self._client.pipeline() as pipeline:
            pipeline.watch(self._key("writer"))
            writer = pipeline.get(self._key("writer"))
            if writer != self._token:
                raise StorageError(f"{self.place}: it was emptied, or another writer has begun")
            pipeline.multi()
            pipeline.set(self._key("chain"), delta.checksum)
            pipeline.set(self._key("delta"), delta.number)
            pipeline.execute()
        self.number, self.checksum = delta.number, delta.checksum

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _row(self, table: str, row: int) -> str:
        return f"{self._prefix}{table}:{row}"

    def close(self) -> None:
        """End the connection."""
        self._client.close()


def follow_into(
    url: str | PathLike[str],
    rows: RedisRows,
    until: int | None = None,
    ends: threading.Event | None = None,
) -> None:
    """Keep Redis as new as what a job publishes, until `ends` is set or delta `until` is there.

    url: the folder. Goes on through failures of Redis, of the storage and of deltas, and tells them
    once. Raises TakenOverError if another process begins to write there, UserError.
    """
    ends = ends or threading.Event()
    with told():
        root = open_storage(fspath(url))
    walk: Walk | None = None
    trouble, begun = "", False
    while not ends.is_set():
        try:
            if not begun:
                rows.begin()
                begun = True
            elif not rows.find():
                logger.warning("%s has delta %d: it goes on there", rows.place, rows.number)
                walk = None
            walk = walk or Walk(root, rows.apply, until, rows.number, rows.checksum)
            before = time.monotonic()
            if walk.step():
                took = time.monotonic() - before
                logger.info("delta %d is in %s: %.1f s", rows.number, rows.place, took)
                trouble = ""
                continue
            trouble = ""
            if walk.ended:
                return
        except (TakenOverError, UserError):
            raise
        except (Error, rows.failures) as error:
            if (text := without_secrets(f"{type(error).__name__}: {error}")) != trouble:
                logger.warning("%s", text)
            trouble = text
        ends.wait(walk.pause if walk is not None else 1.0)
