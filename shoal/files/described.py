"""Sources of data that were described, kept in files of a folder for other workers or other jobs.

An index says where the records of a source begin. It may be large, so it is read by itself: a file
has a head, and behind it the indexes of all that was told together. Anybody may remove any file:
what is missing or damaged costs another pass over the sources in it.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from shoal.errors import without_secrets
from shoal.files.storage import Storage
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

ENDING = ".described"

MOST_FILES = 64
"""From which on `tidy` makes them one."""

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"SHI1"


@dataclass(frozen=True)
class _Place:
    """The place of a source's index. source: the rest of what was told of it, as a message."""

    file: str
    begin: int
    size: int
    checksum: int
    stamp: str
    source: bytes


class DescribedSources:
    """Sources by their kind and name; the description that was told last counts. For any thread.

    storage: the folder; it is made when something is to be kept. Failures are logged.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], _Place] | None = None

    def _files(self) -> list[str]:
        return [name for name in self._storage.names() if name.endswith(ENDING)]

    def _known(self) -> dict[tuple[str, str], _Place]:
        """The places of all sources. Call under the lock."""
        if self._places is None:
            self._places = {}
            try:
                files = self._files()
            except OSError as error:
                self._failed("", error)
                files = []
            for name in files:
                try:
                    with self._storage.read(name) as file:
                        magic, length, checksum = _HEAD.unpack(file.read(_HEAD.size))
                        head = file.read(length)
                    if magic != _MAGIC or xxhash.xxh3_64_intdigest(head) != checksum:
                        raise ValueError("it is damaged")
                    self._note(name, pb.IndexHead.FromString(head), _HEAD.size + length)
                except (OSError, ValueError, struct.error) as error:
                    self._failed(name, error)
        return self._places

    def _failed(self, name: str, error: object) -> None:
        logger.warning("%s is not used: %s", self._storage.path(name), without_secrets(str(error)))

    def _note(self, name: str, head: pb.IndexHead, begin: int) -> None:
        assert self._places is not None
        for entry in head.entries:
            source = entry.source
            place = (name, begin, entry.bytes, entry.checksum, source.stamp)
            self._places[entry.data, source.name] = _Place(*place, source.SerializeToString())
            begin += entry.bytes

    def put(self, told: Iterable[tuple[str, pb.Source]]) -> bool:
        """Keep sources, with their kinds. Returns False if that failed."""
        head, content = pb.IndexHead(), []
        for kind, source in told:
            checksum = xxhash.xxh3_64_intdigest(source.index)
            entry = head.entries.add(data=kind, bytes=len(source.index), checksum=checksum)
            entry.source.CopyFrom(source)
            entry.source.ClearField("index")
            content.append(source.index)
        if not content:
            return True
        packed = head.SerializeToString()
        # In the order of the names, what was told last comes last.
        name = f"{time.time_ns()}-{secrets.token_hex(4)}{ENDING}"
        try:
            self._storage.make()
            with self._storage.write(name) as file:
                file.write(_HEAD.pack(_MAGIC, len(packed), xxhash.xxh3_64_intdigest(packed)))
                file.write(packed)
                for index in content:
                    file.write(index)
        except OSError as error:
            self._failed(name, error)
            return False
        with self._lock:
            if self._places is not None:
                self._note(name, head, _HEAD.size + len(packed))
        return True

    def stamps(self, kind: str) -> dict[str, str]:
        """The stamps that tell the versions of the known sources, by name; "" without a stamp."""
        with self._lock:
            return {name: each.stamp for (of, name), each in self._known().items() if of == kind}

    def get(self, kind: str, name: str, stamp: str | None = None) -> pb.Source | None:
        """The known description of a source, with its index; None if there is none.

        stamp: of the version that is wanted; "" is none that can be known. None: the last one.
        """
        with self._lock:
            place = self._known().get((kind, name))
        if place is None or stamp == "" or stamp not in (None, place.stamp):
            return None
        try:
            index = b""  # no store has a range for it
            if place.size:
                index = self._storage.read_part(place.file, place.begin, place.size)
        except OSError as error:
            self._failed(place.file, error)
            return None
        if xxhash.xxh3_64_intdigest(index) != place.checksum:
            self._failed(place.file, f"the index of {name} is damaged")
            return None
        source = pb.Source.FromString(place.source)
        source.index = index
        return source

    def tidy(self) -> None:
        """Make one file of many. For one process at a time."""
        try:
            files = self._files()
            if len(files) <= MOST_FILES:
                return
            with self._lock:
                self._places = None  # others may have written files meanwhile
                known = list(self._known())
            found = [(kind, self.get(kind, name)) for kind, name in known]
            if self.put((kind, source) for kind, source in found if source is not None):
                for name in files:
                    self._storage.discard(name)
        except OSError as error:
            self._failed("", error)
