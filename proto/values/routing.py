"""The routing table as NumPy arrays: which server owns which of 16,384 slots.

An id's slot is computed in native/ids. Owns the even, contiguous default, the conversion
from and to the message, and how flat vectors are cut; who issues a new table is the
master's affair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from shoal.proto import shoal_pb2 as pb

SLOTS = 16384


@dataclass(frozen=True)
class Routing:
    """owners: uint16 [16384], index of the server that owns each slot.

    dense: how many servers, the first ones, have slices of the dense variables; 0 stands for all.
    Where servers keep each other's logs, these keep them.
    absent: servers that were told to end and have given away all that they had: nobody calls them
    until a later table has them again. They have no slots, and come after the first `dense`.
    """

    epoch: int
    servers: int
    owners: npt.NDArray[np.uint16]
    dense: int = 0
    absent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dense", self.dense or self.servers)

    @cached_property
    def present(self) -> list[int]:
        """The servers but for those that are absent, by index."""
        return [server for server in range(self.servers) if server not in self.absent]

    def dense_slice(self, size: int, server: int) -> slice:
        """The elements of a flat vector of `size` that a server holds."""
        return slice_of(size, server, self.dense)

    def slots(self, server: int) -> int:
        """The number of a server's slots."""
        return int((self.owners == server).sum())

    @classmethod
    def even(cls, servers: int, epoch: int = 1) -> Routing:
        """Contiguous ranges of equal length, the default.

        Raises ValueError unless 1 <= servers <= 16384.
        """
        if not 1 <= servers <= SLOTS:
            raise ValueError(f"servers must be from 1 to {SLOTS}, not {servers}")
        owners = (np.arange(SLOTS, dtype=np.int64) * servers // SLOTS).astype(np.uint16)
        return cls(epoch, servers, owners)

    @classmethod
    def from_message(cls, message: pb.RoutingTable) -> Routing:
        """Raises ValueError if the message is not a whole table."""
        owners = np.frombuffer(message.owners, "<u2").astype(np.uint16)
        if owners.shape != (SLOTS,) or owners.max() >= message.servers:
            raise ValueError(
                f"a routing table has {SLOTS} owners below {message.servers}, "
                f"not {owners.size} up to {owners.max(initial=0)}"
            )
        if message.dense > message.servers:
            raise ValueError(f"{message.dense} of {message.servers} servers have dense values")
        absent = tuple(message.absent)
        first = message.dense or message.servers
        if any(each < first or (owners == each).any() for each in absent):
            raise ValueError(f"of the servers {absent}, which are absent, one has something")
        return cls(message.epoch, message.servers, owners, message.dense, absent)

    def to_message(self) -> pb.RoutingTable:
        """The table as it travels."""
        return pb.RoutingTable(
            epoch=self.epoch,
            servers=self.servers,
            owners=self.owners.astype("<u2").tobytes(),
            # So that tables of servers that are all alike stay as they were.
            dense=self.dense if self.dense < self.servers else 0,
            absent=self.absent,
        )


def to_bits(slots: npt.NDArray[np.bool_]) -> bytes:
    """Slots, bool [16384], as they travel."""
    return np.packbits(slots, bitorder="little").tobytes()


def from_bits(bits: bytes | memoryview) -> npt.NDArray[np.bool_]:
    """The slots that `to_bits` gave. Raises ValueError if they are none."""
    if len(bits) != SLOTS // 8:
        raise ValueError(f"{SLOTS // 8} bytes of slots, not {len(bits)}")
    packed = np.frombuffer(bits, np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(bool)


def slice_of(size: int, server: int, servers: int) -> slice:
    """The elements of a flat vector of `size` that server `server` of `servers` holds.

    None of a server beyond them.
    """
    if server >= servers:
        return slice(size, size)
    return slice(server * size // servers, (server + 1) * size // servers)


@lru_cache(maxsize=16)
def slice_offsets(size: int, servers: int, count: int) -> npt.NDArray[np.int64]:
    """The beginnings of the slices of `count` servers, and the end, int64 [count + 1].

    Slices of a flat vector of `size` that the first `servers` have, as `slice_of` cuts it. Not
    to be written to: other calls get the same array.
    """
    offsets = np.minimum(np.arange(count + 1), servers) * size // servers
    offsets.flags.writeable = False
    return offsets


def holder_index(server: int, first: int) -> int:
    """Which server keeps another one's log of updates. first: how many keep logs, Routing.dense."""
    return (server + 1) % first if server < first else server % first


def flat_size(variables: Sequence[pb.VariableSpec]) -> int:
    """Elements of the flat vector that holds `variables`."""
    sizes: list[int] = [math.prod(variable.shape) for variable in variables]
    return sum(sizes)
