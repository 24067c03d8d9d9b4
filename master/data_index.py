"""The index of each source that a worker described, kept for the workers that read it.

An index says where the records of a file begin. It may be large, and decides nothing, so it is in
no event of the journal but in files of the job folder beside it: one for each report of a worker.
A file that is lost or damaged costs another pass over the sources in it.
"""

from __future__ import annotations

import logging
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import xxhash

from shoal.base.wholefile import reading, replacing
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)

ENDING = ".described"

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"SHI1"


@dataclass(frozen=True)
class _Place:
    """The place of a source's index on disk. source: the rest of the worker's report on it."""

    path: Path
    begin: int
    end: int
    checksum: int
    source: bytes


class DataIndex:
    """The sources that are known, by the kind of data and their names. For any thread.

    folder: of the files; it is made when something is to be kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._places: dict[tuple[str, str], _Place] = {}
        for path in sorted(folder.glob(f"*{ENDING}"), key=lambda each: each.stat().st_mtime_ns):
            try:
                with reading(path) as file:
                    magic, length, checksum = _HEAD.unpack(file.read(_HEAD.size))
                    head = file.read(length)
                    if magic != _MAGIC or xxhash.xxh3_64_intdigest(head) != checksum:
                        raise ValueError("it is damaged")
                    self._note(path, pb.IndexHead.FromString(head), _HEAD.size + length)
            except (OSError, ValueError, struct.error) as error:
                logger.warning("%s is not used: %s", path, error)

    def _note(self, path: Path, head: pb.IndexHead, begin: int) -> None:
        for entry in head.entries:
            end = begin + entry.bytes
            place = _Place(path, begin, end, entry.checksum, entry.source.SerializeToString())
            self._places[entry.data, entry.source.name] = place
            begin = end

    def put(self, name: str, data: pb.DataDescription) -> None:
        """Keep what a report says. name: of the report, unique in the job."""
        kinds = {
            "training": data.training,
            "validation": data.validation,
            "prediction": data.prediction,
        }
        head, content = pb.IndexHead(), []
        for kind, sources in kinds.items():
            for source in sources:
                checksum = xxhash.xxh3_64_intdigest(source.index)
                entry = head.entries.add(data=kind, bytes=len(source.index), checksum=checksum)
                entry.source.CopyFrom(source)
                entry.source.ClearField("index")
                content.append(source.index)
        if not head.entries:
            return
        packed = head.SerializeToString()
        path = self._folder / f"{name}{ENDING}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary, temporary.open("wb") as file:
                file.write(_HEAD.pack(_MAGIC, len(packed), xxhash.xxh3_64_intdigest(packed)))
                file.write(packed)
                file.writelines(content)
        except OSError as error:
            logger.warning("%s: %s; workers will find out again what it would tell", path, error)
            return
        with self._lock:
            self._note(path, head, _HEAD.size + len(packed))

    def stamps(self, data: str) -> dict[str, str]:
        """The stamps that tell the versions of the known sources, by name; "" without a stamp."""
        with self._lock:
            places = {name: place for (kind, name), place in self._places.items() if kind == data}
        return {name: pb.Source.FromString(each.source).stamp for name, each in places.items()}

    def get(self, data: str, name: str) -> pb.Source | None:
        """The known description of a source, with its index; None if there is none."""
        with self._lock:
            place = self._places.get((data, name))
        if place is None:
            return None
        try:
            with reading(place.path) as file:
                file.seek(place.begin)
                index = file.read(place.end - place.begin)
        except OSError as error:
            logger.warning("%s: %s", place.path, error)
            return None
        if xxhash.xxh3_64_intdigest(index) != place.checksum:
            logger.warning("%s: the index of %s is damaged", place.path, name)
            return None
        source = pb.Source.FromString(place.source)
        source.index = index
        return source
