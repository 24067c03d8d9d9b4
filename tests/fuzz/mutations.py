"""Inputs made from whole ones, by a seed: cut, flipped, repeated, spliced, with extreme numbers."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

NUMBERS = (0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, -(2**63))
MOST = 4


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One of the seeds with a few changes."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, MOST)):
        chance.choice(CHANGES)(data, seeds, chance)
    return bytes(data)


def _place(data: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(data)) if data else 0


def _flip(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_place(data, chance)] ^= 1 << chance.randrange(8)


def _set(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if data:
        data[_place(data, chance)] = chance.randrange(256)


def _cut(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    begin = _place(data, chance)
    del data[begin : begin + chance.choice((1, 2, 4, 8, 64, len(data)))]


def _repeat(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    begin = _place(data, chance)
    piece = data[begin : begin + chance.choice((1, 4, 8, 64))]
    data[begin:begin] = piece * chance.choice((1, 2, 100))


def _splice(data: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    other = chance.choice(seeds)
    begin = chance.randrange(len(other)) if other else 0
    data[_place(data, chance) :] = other[begin:]


def _number(data: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    """An extreme number of 1, 2, 4 or 8 bytes, or as text, as in JSON."""
    number, place = chance.choice(NUMBERS), _place(data, chance)
    size = chance.choice((1, 2, 4, 8, 0))
    if size:
        piece = struct.pack("<q", number)[:size] if number < 2**63 else b""
        data[place : place + size] = piece
    else:
        data[place : place + 1] = str(number).encode()


CHANGES = (_flip, _set, _cut, _repeat, _splice, _number)
