"""Compare estimates of a stream's ids with the truth: `python benchmarks/planner.py [FOLDER...]`.

Each stream is cut into pushes of 256 records; 1 % and 10 % of them are the sample, SEEDS times. The
estimator of `shoal plan` (shoal/data/samples/extrapolation.py) stands against three others, all of
the ids that are in 1, 2, 3 and 5 pushes or more. FOLDER: Parquet or CSV files, of which each column
of integers or text is a stream; names as of python -m shoal.model_zoo.movielens.prepare.
"""

import statistics
import sys
from pathlib import Path

import numpy as np

from shoal.data import open_reader
from shoal.data.samples.extrapolation import IdCounts

PUSH = 256
SEEDS = 5
LEAST = (1, 2, 3, 5)
DRAWS = 2_000_000
ZIPF = ((1.05, 2_000_000), (1.05, 200_000), (0.8, 100_000), (1.3, 10_000_000), (0.0, 1_000_000))


def synthetic():
    draw = np.random.default_rng(0)
    for exponent, ids in ZIPF:
        weights = np.cumsum(np.arange(1, ids + 1) ** -exponent)
        stream = np.searchsorted(weights, draw.random(DRAWS) * weights[-1])
        yield f"Zipf {exponent}, {ids:,} ids", stream


def real(path):
    reader = open_reader(str(path), "FOLDER")
    columns = {}
    for source in reader.sources():
        for chunk in reader.read(source.name, 0, source.records):
            for name in chunk.schema.names:
                columns.setdefault(name, []).append(chunk[name])
    for name, pieces in columns.items():
        if str(pieces[0].type) in ("int64", "string"):
            values = np.concatenate([np.asarray(each) for each in pieces])
            yield f"{path.parent.name} {name}", np.unique(values, return_inverse=True)[1]


def counts_of(pushes):
    return np.unique(np.concatenate(pushes), return_counts=True)[1]


def planner(counts, sampled, total):
    return [IdCounts(counts, sampled).at_least(k, total) for k in LEAST]


def slope(counts, sampled, total):
    """Heaps' law: the sample's curve goes on with the slope that it has at its end."""
    ids = IdCounts(counts, sampled)
    found = []
    for k in LEAST:
        whole, half = (ids.at_least(k, n).value for n in (sampled, max(1, sampled // 2)))
        power = np.log2(whole / half) if half and whole else 1.0
        found.append(whole * (total / sampled) ** min(power, k))
    return found


def chao(counts, sampled, total):
    """Chao2's number of ids, of which the curve sees its share (Chao and others, 2014)."""
    ones, twos = (counts == 1).sum(), (counts == 2).sum()
    unseen = ones * (ones - 1) / 2 / (twos + 1)
    if not unseen:
        return [counts.size] + [None] * 3
    left = (1 - ones / (sampled * unseen + ones)) ** (total - sampled)
    return [counts.size + unseen * (1 - left)] + [None] * 3


def scaled(counts, sampled, total):
    """Each id has its share of the pushes, and none is unseen."""
    return [float((counts * total / sampled >= k).sum()) for k in LEAST]


def main():
    streams = list(synthetic())
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).glob("train.*")):
            streams += real(path)
    others = {"slope": slope, "Chao2": chao, "scaled": scaled}
    errors = {name: {} for name in ("planner", *others)}
    inside = {}
    for name, stream in streams:
        pushes = [np.unique(stream[i : i + PUSH]) for i in range(0, stream.size, PUSH)]
        truth = [(counts_of(pushes) >= k).sum() for k in LEAST]
        group = "power law" if name.startswith(("Zipf", "Uniform")) else "real"
        for share in (0.01, 0.1):
            line = {k: [] for k in LEAST}
            for seed in range(SEEDS):
                draw = np.random.default_rng(seed)
                sampled = max(2, round(share * len(pushes)))
                chosen = draw.choice(len(pushes), sampled, replace=False)
                counts = counts_of([pushes[i] for i in chosen])
                for k, true, found in zip(
                    LEAST, truth, planner(counts, sampled, len(pushes)), strict=True
                ):
                    if true:
                        line[k].append(found.value / true - 1)
                        key = (group, share, k)
                        inside.setdefault(key, []).append(found.low <= true <= found.high)
                        errors["planner"].setdefault(key, []).append(
                            abs(np.log(max(found.value, 1) / true))
                        )
                for other, estimate in others.items():
                    for k, true, value in zip(
                        LEAST, truth, estimate(counts, sampled, len(pushes)), strict=True
                    ):
                        if true and value is not None:
                            errors[other].setdefault((group, share, k), []).append(
                                abs(np.log(max(value, 1) / true))
                            )
            told = "  ".join(f">={k}: {statistics.mean(line[k]):+.1%}" for k in LEAST if line[k])
            print(f"{name}, {truth[0]:,} distinct, sample {share:.0%}: {told}")
    print("\nmedian and 90th percentile of |log(estimate / truth)|, and intervals that hold it")
    for key in sorted(inside):
        cells = [
            f"{name} {np.median(each[key]):.2f} {np.quantile(each[key], 0.9):.2f}"
            for name, each in errors.items()
            if key in each
        ]
        print(*key, *cells, f"inside {np.mean(inside[key]):.0%} of {len(inside[key])}", sep=" | ")


if __name__ == "__main__":
    main()
