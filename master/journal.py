"""The job's journal: events on disk before anybody is answered because of them.

Owns the SQLite file, its durability and the proof that it is whole. What an event
means is events.py's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sqlite3
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from shoal.config import RESUMABLE, RESUMABLE_IMAGES, JobConfig
from shoal.errors import UserError
from shoal.master.events import Event
from shoal.proto import faults

logger = logging.getLogger(__name__)

APPLICATION = 0x53484F4A
"""Marks the SQLite file as a journal of shoal ("SHOJ")."""

FORMAT = 1

RETRY_SECONDS = 1.0
"""Between attempts to write while the disk is full."""

_SCHEMA = (
    "CREATE TABLE job (configuration TEXT NOT NULL, checksum INTEGER NOT NULL)",
    """CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        wall REAL NOT NULL,
        time REAL NOT NULL,
        method TEXT NOT NULL,
        body TEXT NOT NULL,
        checksum INTEGER NOT NULL
    )""",
)


@dataclass(frozen=True)
class Entry:
    """An event and when it was written, in seconds of the wall clock."""

    wall: float
    event: Event


def _row(number: int, entry: Entry, before: int) -> tuple[int, float, float, str, str, int]:
    """A row of `events`; its checksum goes on from that of the row before."""
    event = entry.event
    content = {
        key: value
        for key, value in (
            ("arguments", event.arguments),
            ("heard", event.heard),
            ("task", event.task),
        )
        if value
    }
    body = json.dumps(content)
    wall, at = float(entry.wall), float(event.time)
    checksum = _checksum(number, wall, at, event.method, body, before)
    return number, wall, at, event.method, body, checksum


def _checksum(number: int, wall: float, time: float, method: str, body: str, before: int) -> int:
    text = f"{number} {wall!r} {time!r} {method} {body}"
    return zlib.crc32(text.encode(), before)


class Journal:
    """The events of one job, in order; shared by threads.

    `add` takes an event, `commit` returns once all events taken so far are on disk.
    Whoever commits writes what others have added meanwhile too, in one transaction: the
    disk is synced once for many answers.
    """

    def __init__(self, path: Path, config: JobConfig) -> None:
        """Open, or create for the job that `config` describes.

        Raises UserError, which names the file, if it is damaged, another program's,
        another version's, or another job's.
        """
        self.path = path
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._pending: list[Entry] = []
        self._added = 0
        self._checksum = 0
        if path.exists() and not _unfinished(path):
            stored, self.entries = read(path)
            # What a resumed job may change stands in the event that says so.
            changes = {name: getattr(config, name) for name in (*RESUMABLE, *RESUMABLE_IMAGES)}
            if dataclasses.replace(stored, **changes) != config:
                raise UserError(f"{path} is the journal of a job with another configuration")
        else:
            stored, self.entries = config, []
        self.config = stored
        for number, entry in enumerate(self.entries, 1):
            self._checksum = _row(number, entry, self._checksum)[-1]
        self._added = self._written = len(self.entries)
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode=WAL")
            # A commit is on the disk, not only in the page cache, when it returns.
            self._database.execute("PRAGMA synchronous=FULL")
            if not self._added:
                self._create(config)
        except sqlite3.Error as error:
            raise UserError(f"{path} cannot be used as the job's journal: {error}") from error

    def _create(self, config: JobConfig) -> None:
        text = config.to_json()
        with contextlib.closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            if not cursor.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchone():
                cursor.execute(f"PRAGMA application_id={APPLICATION}")
                cursor.execute(f"PRAGMA user_version={FORMAT}")
                for statement in _SCHEMA:
                    cursor.execute(statement)
                cursor.execute("INSERT INTO job VALUES (?, ?)", (text, zlib.crc32(text.encode())))
            cursor.execute("COMMIT")

    def close(self) -> None:
        """Write what is left, and close."""
        self.commit()
        self._database.close()

    def add(self, event: Event) -> None:
        """Take an event, to be written after those before it."""
        with self._adding:
            self._pending.append(Entry(time.time(), event))
            self._added += 1

    def commit(self) -> None:
        """Return once everything added so far is on disk.

        While it cannot be written (a full disk) it waits: nobody is answered until there
        is room, so nothing that was told is lost.
        """
        with self._adding:
            wanted = self._added
        if self._written >= wanted:
            return
        with self._writing:
            while self._written < wanted:
                with self._adding:
                    batch, self._pending = self._pending, []
                self._write(batch)
                self._written += len(batch)

    def _write(self, batch: list[Entry]) -> None:
        rows = []
        for number, entry in enumerate(batch, self._written + 1):
            rows.append(_row(number, entry, self._checksum))
            self._checksum = rows[-1][-1]
        faults.point("before-journal")
        while True:
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
                self._database.execute("COMMIT")
            except sqlite3.OperationalError as error:
                with contextlib.suppress(sqlite3.OperationalError):
                    self._database.execute("ROLLBACK")
                logger.error(
                    "the journal %s cannot be written (%s): the job waits for it", self.path, error
                )
                time.sleep(RETRY_SECONDS)
            else:
                break
        faults.point("after-journal")


def _unfinished(path: Path) -> bool:
    """Whether the file was made, but its first transaction never came to its end."""
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            return not database.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False  # `read` says what is wrong with it


def read(path: Path) -> tuple[JobConfig, list[Entry]]:
    """The job's configuration and all events of a journal, which may be in use.

    Raises UserError, which names the file, if it is damaged, another program's or
    another version's.
    """
    if not path.is_file():
        raise UserError(f"there is no journal {path}")
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with contextlib.closing(database):
            return _read(database, path)
    except (sqlite3.Error, ValueError, LookupError, TypeError) as error:
        raise UserError(f"{path} is damaged, or not a job's journal: {error}") from error


def _read(database: sqlite3.Connection, path: Path) -> tuple[JobConfig, list[Entry]]:
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
        raise UserError(f"{path} is not a journal of shoal")
    if (version := database.execute("PRAGMA user_version").fetchone()[0]) != FORMAT:
        raise UserError(f"{path} is a journal of format {version}; this version reads {FORMAT}")
    configuration, checksum = database.execute("SELECT * FROM job").fetchone()
    if zlib.crc32(configuration.encode()) != checksum:
        raise UserError(f"{path} is damaged: the configuration in it has changed")
    entries: list[Entry] = []
    before = 0
    rows = database.execute("SELECT * FROM events ORDER BY number")
    for number, wall, at, method, body, checksum in rows:
        before = _checksum(number, wall, at, method, body, before)
        if before != checksum or number != len(entries) + 1:
            raise UserError(f"{path} is damaged: event {number} is not as it was written")
        content = json.loads(body)
        event = Event(
            method,
            at,
            content.get("arguments", {}),
            content.get("heard", {}),
            content.get("task", 0),
        )
        entries.append(Entry(wall, event))
    return JobConfig.from_json(configuration), entries
