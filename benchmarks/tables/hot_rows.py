"""Simulate copies of the hottest rows on several servers: the pulls of each server.

Ids are drawn from Zipf's distribution. A worker asks for each id of a minibatch once, however often
it comes in it, so the hottest row is asked for once a minibatch, as are all others of which each
minibatch has one. Printed is the load of the fullest server by that of the mean one, in ids that
pulls ask for: with the rows where their slots are; with slots moved by load (shoal rebalance); and
with the hottest rows on all servers, each of which answers an equal part of the pulls of them. The
share of the hottest row is by a server's mean load. Beside that, what it would be if a minibatch
asked for an id as often as it comes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal.master.job.moves.placement import balanced
from shoal.native.ids import slot_of
from shoal.proto.values.routing import SLOTS, Routing

Int64 = npt.NDArray[np.int64]

HOT = 1000
"""Rows that are on all servers."""

SERVERS = (2, 8, 32)

OUTPUT = Path("build/bench/tables/hot_rows.json")


def drawn(random: np.random.Generator, exponent: float, ids: int, count: int) -> Int64:
    """So many ids, below `ids`, the hottest first."""
    found = np.zeros(0, np.int64)
    while found.size < count:
        more = random.zipf(exponent, 2 * count)
        found = np.concatenate([found, more[more <= ids]])
    return found[:count] - 1


def _ratio(loads: npt.NDArray[np.float64]) -> float:
    return float(loads.max() / loads.mean())


def measured(minibatches: list[Int64], servers: int, key: Int64) -> dict[str, float]:
    """The load of the fullest server by that of the mean one. key: an id for each rank."""
    asked = np.concatenate(minibatches)
    hot = asked < HOT
    slots = slot_of(key[asked])
    owners = Routing.even(servers).owners
    weights = np.bincount(slots, minlength=SLOTS).astype(float)
    moved = balanced(owners, servers, weights, tolerance=0.05)
    spread = np.bincount(owners[slots[~hot]], minlength=servers) + hot.sum() / servers
    return {
        "as they are": _ratio(np.bincount(owners, weights, minlength=servers)),
        "rebalanced": _ratio(np.bincount(moved, weights, minlength=servers)),
        "hottest on all": _ratio(spread),
        "hottest row": float(np.bincount(asked).max() / asked.size * servers),
    }


def main() -> None:
    """Draw, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "output", type=Path, nargs="?", default=Path("build/bench/tables/hot_rows.json")
    )
    parser.add_argument("--exponent", type=float, default=1.2)
    parser.add_argument("--ids", type=int, default=100_000_000)
    parser.add_argument("--minibatch", type=int, default=4096 * 26, help="ids in a minibatch")
    parser.add_argument("--minibatches", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    all_ids = [
        drawn(random, given.exponent, given.ids, given.minibatch) for _ in range(given.minibatches)
    ]
    # As users' ids are: no row is next to another of its rank.
    key = np.arange(given.ids, dtype=np.int64) * 9973 + given.seed
    result = {}
    for name, minibatches in (
        ("each id once a minibatch", [np.unique(each) for each in all_ids]),
        ("each id as often as it comes", all_ids),
    ):
        sizes = np.mean([each.size for each in minibatches])
        print(f"{name}: {sizes:,.0f} ids a minibatch; fullest server by the mean one:")
        result[name] = {servers: measured(minibatches, servers, key) for servers in SERVERS}
        for servers, ratios in result[name].items():
            print(f"  {servers:2} servers: ", end="")
            print(", ".join(f"{what} {ratio:.3f}" for what, ratio in ratios.items()))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
