"""A job's whole state as bytes, and the job that they were made of.

A pickle that may name classes of the decisions in master/ only, and a few plain containers:
loading it calls nothing else. Its checksum is the journal's to check. It is read by the
version of shoal that made it alone; another one does the events again (journal.py).
"""

from __future__ import annotations

import enum
import functools
import io
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from google.protobuf.message import Message

from shoal.errors import UserError
from shoal.master.journal.events import Entry, RecordedJob
from shoal.master.journal.records import Header
from shoal.proto import shoal_pb2 as pb

_PLAIN = {
    "builtins": ("set", "frozenset", "object"),
    "collections": ("Counter", "defaultdict", "deque"),
    "shoal.config.job": ("JobConfig",),
    __name__: ("_message",),
}
"""What may be named beside the classes of shoal.master."""

_LEVEL = 1


@functools.cache
def version() -> str:
    """The version of a state: the release of shoal, and a digest of the master's code."""
    from importlib import metadata  # late: it takes every start a while

    digest = xxhash.xxh3_64()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    try:
        release = metadata.version("shoal")
    except metadata.PackageNotFoundError:
        release = "?"
    return f"{release} {digest.hexdigest()}"


def _message(name: str, content: bytes) -> Message:
    message: Message = getattr(pb, name).FromString(content)
    return message


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Messages of the wire by their bytes, enums by value; all else as pickle has it."""
        if isinstance(value, Message):
            return _message, (value.DESCRIPTOR.name, value.SerializeToString(deterministic=True))
        if isinstance(value, enum.Enum):
            # Python before 3.11.4 would name getattr, which a state may not.
            return type(value), (value.value,)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A class that may be there. Raises pickle.UnpicklingError for any other."""
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        if module.startswith("shoal.master."):
            found = super().find_class(module, name)
            if isinstance(found, type):
                return found
        raise pickle.UnpicklingError(f"a job's state has no {module}.{name}")


def dump(job: RecordedJob) -> bytes:
    """The state of a job. The caller sees to it that nothing changes it meanwhile."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(job)
    return zlib.compress(file.getbuffer(), _LEVEL)


def load(content: bytes, note: Callable[[Entry], object]) -> RecordedJob:
    """The job of a state; it tells `note` of its changes. Raises UserError."""
    try:
        job = _Unpickler(io.BytesIO(zlib.decompress(content))).load()
    except (pickle.UnpicklingError, zlib.error, EOFError, AttributeError, ImportError) as error:
        raise UserError(f"the state of the job cannot be read: {error}") from error
    if not isinstance(job, RecordedJob):
        raise UserError("the state is not that of a job")
    job.listen(note)
    # What was to be done in the world was begun, or is found again by `master_restarted`.
    job.take_instructions()
    return job


def usable(header: Header) -> bool:
    """True if the segment has a state of the job that this version of shoal can begin with."""
    return bool(header.state) and header.version == version()


def job_of(header: Header) -> RecordedJob:
    """The job at the beginning of a segment whose state is usable, or that is the first."""
    if header.index == 1:
        return RecordedJob(header.config, lambda _: None)
    return load(header.state, lambda _: None)
