"""A reader of deltas that keeps rows in dictionaries: the rules of a follower in plain Python."""

from __future__ import annotations

import numpy as np

from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.deltas import chain, shares
from shoal.deltas.schema import slots_of
from shoal.files.storage import Storage
from shoal.native.ids import slot_of


class Reader:
    """The state of a job as its deltas tell it.

    number: of the last delta taken; 0: none. rows: of each table, the bytes of each id's row.
    dense: the two vectors, by "trainable" and "state": the element at each place.
    """

    def __init__(self, root: Storage) -> None:
        self.root = root
        self.number, self.checksum = 0, ""
        self.rows: dict[int, dict[int, bytes]] = {}
        self.dense: dict[str, dict[int, float]] = {"trainable": {}, "state": {}}

    def take(self, number: int) -> bool:
        """Take a delta if it can be understood; damage raises CheckpointError."""
        if not chain.exists(self.root, number):
            return False
        delta = chain.read_delta(self.root, number)
        follows = number == self.number + 1 and delta.manifest["previous"] == self.checksum
        if number <= self.number or not (follows or delta.manifest["base"]):
            return False
        folder = self.root.child(chain.delta_name(number))
        found = [
            (each, list(shares.read(folder, each["file"]))) for each in delta.manifest["shares"]
        ]
        told: set[tuple[int, int]] = set()
        pages = [page for _, pages in found for page in pages]
        for page in pages:
            if page.kind == "removed":
                for key in page.ids.tolist():
                    self.rows.setdefault(page.table, {}).pop(key, None)
        for page in pages:
            if page.kind == "rows":
                table = self.rows.setdefault(page.table, {})
                for key, row in zip(page.ids.tolist(), page.values, strict=True):
                    table[key] = row.tobytes()
                    told.add((page.table, key))
            elif page.kind != "removed":
                places = range(page.first, page.first + page.values.size)
                self.dense[page.kind].update(zip(places, page.values.tolist(), strict=True))
        for share, _ in found:
            whole = slots_of("whole", share["whole"])
            for position, table in self.rows.items():
                ids = np.array(list(table), np.int64)
                for key in ids[whole[slot_of(ids)]].tolist() if ids.size else ():
                    if (position, key) not in told:
                        del table[key]
        self.number, self.checksum = number, delta.checksum
        return True

    def catch_up(self) -> None:
        """Take all deltas that follow, and bases where one is missing or damaged."""
        newest = chain.newest(self.root)
        while newest is not None and self.number < newest.number:
            numbers = range(self.number + 1, newest.number + 1)
            if not any(map(self._taken, numbers)):
                return

    def _taken(self, number: int) -> bool:
        try:
            return self.take(number)
        except CheckpointError:
            return False
