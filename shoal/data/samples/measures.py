"""The measures of one column of two days, with the sentence that tells each.

Owns what is computed of the statistics that `shoal analyze` keeps. What of it is expected is
shoal/config/expected.py's; times are times.py's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Statistics = Mapping[str, Any]
"""Of a column, as in the file of `shoal analyze`."""

Told = dict[str, tuple[float, str, float]]
"""By measure: its value, a sentence, and how far beyond a limit may be chance."""

BINS = 10
"""Parts of the earlier day's values of as many each, of which PSI compares the shares."""

TOP = 20
"""Most frequent earlier values of which PSI compares the shares, and that of the rest."""

LEAST_SHARE = 1e-4
"""In PSI, the share of a part in which there is nothing."""

NOISE = 3.0
"""Times the PSI that two samples of one distribution have by chance, which is let pass."""

DEVIATIONS = 4.0
"""Standard deviations of a rate that are let pass."""

OFTEN = 20
"""Times that the earlier day has a value which is looked for today."""

MOST_LOOKED_FOR = 1000
"""Of them, the most frequent."""

LEAST_LOOKED_FOR = 5

RECORD_ID = 0.9
"""Different values by all values, from which on a column names records."""

MANY = 1000
"""From the least to the largest integer: if they are farther apart, they are taken for ids, whose
range may grow."""

FAR = 100.0
"""Widths of the earlier range outside of which no single value is expected."""

ALIKE = 0.15
"""Relative difference of the ratios of all deciles that are taken for one scale."""


def change(now: float, before: float) -> float:
    """The larger by the smaller number, less 1: 0.5 for a half more, and for a third less."""
    if now == before:
        return 0.0
    least, most = sorted((now, before))
    return most / least - 1 if least > 0 else math.inf


_LIST = re.compile(r"\w*list<\w+: (.*?)(?: not null)?>(?:\[\d+\])?")
_DICTIONARY = re.compile(r"dictionary<values=([^,>]*).*>")
_FAMILIES = {
    "text": ("string", "binary", "large_string", "large_binary"),
    "time": ("timestamp", "date"),
    "duration": ("time", "duration"),
    "integer": ("int", "uint"),
    "number": ("float", "double", "halffloat", "decimal"),
}


def kind_of(column: Statistics) -> str:
    """The family of a column's type: what a model would take alike."""
    kind = str(column["type"])
    if dictionary := _DICTIONARY.fullmatch(kind):
        kind = dictionary[1]
    if listed := _LIST.fullmatch(kind):
        return f"list of {kind_of({'type': listed[1]})}"
    return next((name for name, words in _FAMILIES.items() if kind.startswith(words)), kind)


def has_numbers(column: Statistics) -> bool:
    """True if there are quantiles of it."""
    return "quantiles" in column


def missing_share(column: Statistics) -> float:
    """The share of values that are missing."""
    total = column["values"] + column["missing"]
    return float(column["missing"] / total) if total else 0.0


def deviation(rate: float, now: Statistics, before: Statistics) -> float:
    """The standard deviation of the difference of two rates, by chance."""
    sizes = (max(each["values"] + each["missing"], 1) for each in (now, before))
    return math.sqrt(rate * (1 - rate) * sum(1 / size for size in sizes))


def share_of_others(column: Statistics) -> float:
    """The share of values that are not the most frequent one."""
    words = column.get("vocabulary")
    if words is not None:
        counts = words["counts"]
        return float(1 - counts[0] / column["values"]) if counts else 1.0
    _, counts = np.unique(np.asarray(column["quantiles"]), return_counts=True)
    return float(1 - counts.max() / counts.sum())


def only_value(column: Statistics) -> str:
    """The most frequent value, which may be the only one, as text."""
    words = column.get("vocabulary")
    return repr(words["values"][0]) if words is not None else f"{column['min']:.6g}"


def mean_lengths(now: Statistics, before: Statistics) -> tuple[float, float] | None:
    """The mean numbers of elements of lists on both days; None of other columns."""
    if "lengths" not in now or "lengths" not in before:
        return None
    return now["lengths"]["mean"], before["lengths"]["mean"]


def quantile_at(quantiles: list[float], rank: float) -> float:
    """The quantile at a rank, from 0 to 1, of those that are kept."""
    return float(quantiles[round(rank * (len(quantiles) - 1))])


def _below(quantiles: Floats, edges: Floats) -> Floats:
    """The shares of values up to each edge."""
    found: Floats = np.searchsorted(quantiles, edges, side="right") / quantiles.size
    return found


def _psi(shares: Sequence[Floats], now: Statistics, before: Statistics) -> Floats:
    """The population stability index of shares, today's and the earlier ones, by its terms."""
    # A part that has nothing may have nothing by chance: half a record.
    least = max(LEAST_SHARE, 0.5 / min(now["values"], before["values"]))
    is_now, was = (np.maximum(each, least) for each in shares)
    terms: Floats = (is_now - was) * np.log(is_now / was)
    return terms


def _chance(parts: int, now: Statistics, before: Statistics) -> float:
    """A PSI that two samples of one distribution hardly exceed."""
    return NOISE * (parts - 1) * float(1 / now["values"] + 1 / before["values"])


def is_rate(column: Statistics) -> bool:
    """True if all values are 0 or 1."""
    ends = column.get("min"), column.get("max")
    return column["distinct"] <= 2 and all(each in (0, 1) for each in ends)


def names_records(column: Statistics) -> bool:
    """True if nearly every record has a value of its own."""
    return "vocabulary" in column and column["distinct"] > RECORD_ID * column["values"]


def rate(now: Statistics, before: Statistics) -> Told:
    """The measure of a column of 0 and 1: how many times as many of the rarer value there are."""
    ones, was = float(now["mean"]), float(before["mean"])
    # Of the rarer of both values: 99 % that become 98 % are twice as many others.
    shares = (ones, was) if was <= 0.5 else (1 - ones, 1 - was)
    sentence = f"{ones:.2%} of the values are 1, and {was:.2%} were"
    if shares[1] * min(now["values"], before["values"]) < OFTEN:
        # Too few to say how many times as many there are.
        told = abs(ones - was), sentence, DEVIATIONS * deviation(max(shares), now, before)
        return {"rate_change": told}
    relative = [
        (1 - share) / (share * size)
        for share, size in (
            (max(shares[0], shares[1] / 2), now["values"]),
            (shares[1], before["values"]),
        )
    ]
    return {"rate_change": (change(*shares), sentence, DEVIATIONS * math.sqrt(sum(relative)))}


def frequent(now: Statistics, before: Statistics) -> Told:
    """The measures of the most frequent values: PSI, overlap, and their number."""
    if "vocabulary" not in now or "vocabulary" not in before:
        return {}
    told: Told = {}
    words, were = (
        dict(zip(each["vocabulary"]["values"], each["vocabulary"]["counts"], strict=True))
        for each in (now, before)
    )
    # Of those that came a few times, today's number says nothing: they were chosen by chance.
    top = [word for word, count in were.items() if count >= OFTEN][:TOP]
    shares = [
        np.array([each.get(word, 0) for word in top]) / column["values"]
        for each, column in ((words, now), (were, before))
    ]
    rests = [np.append(each, max(1 - each.sum(), 0.0)) for each in shares]
    terms = _psi(rests, now, before)
    value, far = float(terms.sum()), int(terms.argmax())
    name = repr(top[far]) if far < len(top) else "the rest of its values"
    if top:
        told["psi"] = (
            value,
            f"its values are distributed otherwise (PSI {value:.2f}): {rests[0][far]:.1%} are "
            f"{name}, and {rests[1][far]:.1%} were",
            _chance(len(top) + 1, now, before),
        )
    least = 0 if now["vocabulary"]["complete"] else 4 * min(words.values(), default=0)
    ratio = now["values"] / before["values"]
    sought = [
        word
        for word, count in were.items()
        if count >= OFTEN * max(1.0, 1 / ratio) and count * ratio >= least
    ][:MOST_LOOKED_FOR]
    if len(sought) >= LEAST_LOOKED_FOR:
        share = sum(words.get(word, 0) for word in sought) / now["values"]
        was = sum(were[word] for word in sought) / before["values"]
        sentence = (
            f"its {len(sought):,} most frequent earlier values are {share:.1%} of all, and were "
            f"{was:.1%}: were they named or hashed anew?"
        )
        told["overlap"] = (share / was, sentence, 0.0)
    counts = _sizes(now, before)
    expected = sorted((1.0, ratio))
    excess = max(
        counts[0] / (counts[1] * expected[1]), counts[1] * expected[0] / max(counts[0], 1e-9)
    )
    sentence = f"it has {counts[0]:,} different values, and had {counts[1]:,}"
    told["distinct_change"] = (max(excess - 1, 0.0), sentence, 2 / math.sqrt(max(counts[1], 1)))
    return told


def _sizes(now: Statistics, before: Statistics) -> tuple[int, int]:
    """The numbers of different values of both: of few, without those that are rare."""
    sizes = now["distinct"], before["distinct"]
    if max(sizes) <= 100:
        several = [
            sum(count >= 5 for count in each["vocabulary"]["counts"]) for each in (now, before)
        ]
        if all(several):
            return several[0], several[1]
    return sizes


def distribution(now: Statistics, before: Statistics) -> Told:
    """The PSI of the distribution of numbers."""
    if not (has_numbers(now) and has_numbers(before)):
        return {}
    quantiles, were = (np.asarray(each["quantiles"], np.float64) for each in (now, before))
    edges = np.unique(were[np.rint(np.arange(1, BINS) * (were.size - 1) / BINS).astype(int)])
    shares = [
        np.diff(np.concatenate([[0.0], _below(each, edges), [1.0]])) for each in (quantiles, were)
    ]
    value = float(_psi(shares, now, before).sum())
    middle, was = quantile_at(now["quantiles"], 0.5), quantile_at(before["quantiles"], 0.5)
    sentence = f"its numbers are distributed otherwise (PSI {value:.2f}): its median is "
    sentence += f"{middle:.6g}, and was {was:.6g}"
    return {"psi": (value, sentence, _chance(len(edges) + 1, now, before))}


def scale(now: Statistics, before: Statistics) -> Told:
    """The ratio of the numbers of both days, where it is the same for small and large ones."""
    if not (has_numbers(now) and has_numbers(before)):
        return {}
    ranks = np.arange(1, BINS) / BINS
    deciles, were = (
        np.array([quantile_at(each["quantiles"], rank) for rank in ranks]) for each in (now, before)
    )
    if not ((deciles > 0).all() and (were > 0).all() and np.isfinite([*deciles, *were]).all()):
        return {}
    ratios = deciles / were
    times = float(np.median(ratios))
    if np.abs(ratios / times - 1).max() > ALIKE:
        return {}
    sentence = f"its numbers are {times:.3g} times the earlier ones: has its unit changed?"
    return {"scale_change": (change(times, 1.0), sentence, 0.0)}


def outside(now: Statistics, before: Statistics) -> Told:
    """The share of numbers outside of the earlier day's range; 1 if a single one is far outside."""
    if not (has_numbers(now) and has_numbers(before)):
        return {}
    least, most = before["min"], before["max"]
    grows = "vocabulary" in now and most - least > MANY
    values = np.asarray(now["quantiles"], np.float64)[1:-1]  # the ends are exact, and few
    share = 0.0 if grows else float(((values < least) | (values > most)).mean())
    sentence = (
        f"{share:.1%} of its numbers are outside of the earlier ones, {least:.6g} to {most:.6g}: "
        f"they are from {now['min']:.6g} to {now['max']:.6g}"
    )
    width = FAR * max(most - least, abs(most), abs(least))
    if now["max"] > most + width or now["min"] < least - width:
        share = 1.0
        sentence = (
            f"it has numbers from {now['min']:.6g} to {now['max']:.6g}, and had from {least:.6g} "
            f"to {most:.6g}"
        )
    return {"outside": (share, sentence, OFTEN / min(now["values"], before["values"]))}
