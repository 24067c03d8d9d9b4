"""Writes clicks on a news site, made with a seed, as train.parquet and validation.parquet.

    python -m shoal.model_zoo.online.prepare OUTPUT_DIR

Over time new items come, and old ones are forgotten: demo.py trains that as it happens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

USERS, FACTORS = 500, 4

Columns = dict[str, npt.NDArray[np.int64]]


class World:
    """Users and items, of which some are shown at a time.

    shown: how many items are shown at once. A click has a probability that follows from the item's
    popularity and from what user and item have in common.
    """

    def __init__(self, seed: int = 1, shown: int = 200) -> None:
        self._draw = np.random.default_rng(seed)
        self._users = self._draw.normal(0, 0.7, (USERS, FACTORS))
        self._items = np.zeros((0, FACTORS + 1))
        self._shown = shown
        self._first = 0
        self.turn(shown)

    def turn(self, items: int) -> None:
        """So many new items come, and the oldest ones go."""
        new = self._draw.normal(0, 0.7, (items, FACTORS + 1))
        new[:, 0] *= 2  # popularity
        self._items = np.concatenate([self._items, new])
        self._first = len(self._items) - self._shown

    def records(self, count: int) -> Columns:
        """Columns user, item and click of so many items that were shown."""
        user = self._draw.integers(0, USERS, count)
        item = self._draw.integers(self._first, len(self._items), count)
        popularity, factors = self._items[item, 0], self._items[item, 1:]
        logit = popularity + (self._users[user] * factors).sum(1) - 1
        click = self._draw.random(count) < 1 / (1 + np.exp(-logit))
        return {"user": user, "item": item, "click": click.astype(np.int64)}


def write(folder: Path, name: str, columns: Columns) -> Path:
    """A Parquet file in a folder, whole when its name is there."""
    hidden = folder / f".{name}"
    pq.write_table(pa.table(columns), hidden)
    return hidden.rename(folder / name)


def prepare(output: Path) -> dict[str, int]:
    """Write the files of one day; returns their names -> records."""
    output.mkdir(parents=True, exist_ok=True)
    world, found = World(), {"validation.parquet": 5_000, "train.parquet": 20_000}
    for name, records in found.items():
        write(output, name, world.records(records))
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    print(prepare(parser.parse_args().folder))


if __name__ == "__main__":
    main()
