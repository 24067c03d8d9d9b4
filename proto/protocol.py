"""Which version of the wire a process speaks, and the refusal of another one.

Master, servers, workers and the command line may come from different images and installations.
Each says its number in the first exchange with the master; the number changes whenever a call, a
frame or a file between them changes in a way that an older one would misread.
"""

from __future__ import annotations

import functools

from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import from_outside

PROTOCOL = 12


@functools.cache
def _version() -> str:
    from importlib import metadata  # late: it takes every start a while

    try:
        return metadata.version("shoal")
    except metadata.PackageNotFoundError:
        return "of unknown version"


def own_protocol() -> pb.Protocol:
    """The protocol and version of this process."""
    return pb.Protocol(number=PROTOCOL, version=_version())


def mismatch(this: str, other: str, theirs: pb.Protocol) -> str:
    """The reason why this process and another one cannot speak with each other; "" if they can.

    this, other: the processes, in words. theirs: as the other one said, unset if it said nothing.
    """
    if theirs.number == PROTOCOL:
        return ""
    number = f"protocol {theirs.number}" if theirs.number else "without a protocol number"
    version = from_outside(theirs.version, 40) or "of an earlier build"
    return (
        f"{this} is shoal {_version()} (protocol {PROTOCOL}), {other} is shoal "
        f"{version} ({number}): use one version for the whole job, "
        "in its image and where the commands are given"
    )
