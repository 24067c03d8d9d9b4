"""Estimate how many ids a whole stream has, from a sample of it.

The unit of the sample is a push: ids are counted by the pushes that contain them, as servers count
them for admission. So the sample is a few of all pushes, drawn without regard to their ids, and
each id has been in some number of them ("incidence data" in ecology, where the ids are species).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

FITTED = 20
"""Ids in more of the sampled pushes than this are known well enough: the fit has the others."""

RATES = 320
"""Points of the grid of rates, spaced by equal factors."""

LEAST_RATES = 40
"""Of these, how many are tried as the rate of the rarest id."""

MOST_RATES = 12
"""And how many as that of the most frequent one among those that are fitted."""

EXPONENTS = np.linspace(-1.0, 1.5, 26)
"""Of the density of log rates, rate**-exponent: 1 / s for ids by Zipf's law with exponent s."""

LIKELY = 7.8
"""Twice the loss of log-likelihood in the region of likely fits: 95 % of chi-squared with three
degrees of freedom."""

CURVATURE = 0.06
"""Of the ids that are extrapolated: how much further an interval goes for each doubling of the
sample, as real frequencies bend. docs/notes/planner.md has how often intervals hold with it."""


@dataclass(frozen=True)
class Expected:
    """A number of ids: the best estimate, and the interval that it likely is in."""

    low: float
    value: float
    high: float


class IdCounts:
    """In how many of the sampled pushes each id was.

    counts: int64 [ids], each from 1 to `sampled`. sampled: the number of those pushes.
    """

    def __init__(self, counts: Int64, sampled: int) -> None:
        """Raises ValueError if a count cannot be."""
        if counts.size and not 1 <= counts.min() <= counts.max() <= sampled:
            raise ValueError(f"counts are from 1 to the number of pushes, {sampled}")
        self._times, self._ids = np.unique(counts, return_counts=True)
        self._sampled = sampled

    @property
    def distinct(self) -> int:
        """Ids in the sample."""
        return int(self._ids.sum())

    def at_least(self, pushes: int, total: int, vocabulary: int = 0) -> Expected:
        """Estimate how many ids are in `pushes` or more of `total` pushes.

        vocabulary: the number of possible ids; 0: any number. The sample is among these pushes
        where they are more than it has, else they are among the sample's: then the expectation
        over all choices is known (rarefaction), and so is the number itself for the whole sample.

        Raises ValueError unless 1 <= pushes <= FITTED, and total is positive.
        """
        if not 1 <= pushes <= FITTED or total < 1:
            raise ValueError(f"pushes are 1 to {FITTED}, and total is at least 1")
        if not self._times.size:
            return Expected(0, 0, 0)
        if total <= self._sampled:
            found = self._rarefied(pushes, total)
        else:
            found = self._extrapolated(pushes, total)
        most = float(vocabulary) if vocabulary else np.inf
        return Expected(*(min(each, most) for each in (found.low, found.value, found.high)))

    def _rarefied(self, pushes: int, total: int) -> Expected:
        """Hurlbert's rarefaction, for any least count: hypergeometric tails."""
        factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, self._sampled + 1)))])

        def ways(of: Int64, chosen: Int64) -> Float64:
            fits = (chosen >= 0) & (chosen <= of)
            safe = np.where(fits, chosen, 0)
            found = factorials[of] - factorials[safe] - factorials[np.where(fits, of - safe, 0)]
            return np.where(fits, found, -np.inf)

        everything = np.int64(self._sampled)
        fewer = np.zeros(self._times.size)
        for i in range(pushes):
            fewer += np.exp(
                ways(self._times, np.full_like(self._times, i))
                + ways(everything - self._times, np.full_like(self._times, total - i))
                - ways(np.array([everything]), np.array([total]))
            )
        chance = np.clip(1 - fewer, 0, 1)
        value = float(self._ids @ chance)
        spread = 2 * float(np.sqrt(self._ids @ (chance * (1 - chance))))
        return Expected(max(value - spread, 0.0), value, value + spread)

    def _extrapolated(self, pushes: int, total: int) -> Expected:
        """Add to the ids seen in the sample those that a mixture of rates expects in other pushes.

        The density of ids by their rate is a power law between two rates (ids by Zipf's law, as a
        mixture of binomials), fitted to the numbers of ids that were in 1, 2, ... FITTED pushes. A
        power law that ends at a high rate is a vocabulary that is nearly seen, a short one ids that
        are all as frequent.
        """
        rest = total - self._sampled
        known = float(self._ids[self._times >= pushes].sum())
        few = self._times <= FITTED
        if not few.any():
            return Expected(known, known, known)
        most = min(FITTED, self._sampled)
        spectrum = np.zeros(most)
        spectrum[self._times[few] - 1] = self._ids[few]
        rates = np.geomspace(1e-2 / total, min(1.0, 4 * most / self._sampled), RATES)
        # Of each rate: the chance of c pushes of the sample, and of enough among the others.
        seen = np.stack([_binomial(c, self._sampled, rates) for c in range(1, most + 1)])
        enough = np.stack([_tail(pushes - c, rest, rates) for c in range(most + 1)])
        starts = np.linspace(0, RATES - 2, LEAST_RATES).astype(int)
        ends = np.linspace(RATES // 3, RATES - 1, MOST_RATES).astype(int)
        density = np.exp(-EXPONENTS[:, None] * np.log(rates / rates[-1]))
        places = np.arange(RATES)
        pairs = [(a, b) for a in starts for b in ends if a < b]
        between = np.stack([(places >= a) & (places <= b) for a, b in pairs])
        weights = (density[:, None, :] * between).reshape(-1, RATES)
        of_count = np.maximum(weights @ seen.T, 1e-300)  # [fits, most]
        share = of_count / of_count.sum(1, keepdims=True)
        likelihood = np.log(share) @ spectrum
        best = int(likelihood.argmax())
        # Real ids follow no law exactly: the region grows with the misfit, as quasi-likelihood.
        wanted = spectrum.sum() * share[best]
        misfit = float(((spectrum - wanted) ** 2 / np.maximum(wanted, 1)).sum()) / max(most - 3, 1)
        likely = 2 * (likelihood[best] - likelihood) <= LIKELY * max(1.0, misfit)
        # An id's further pushes, by how often it was seen, and those of ids not seen at all.
        later = (weights @ (seen * enough[1:]).T / of_count) @ spectrum
        scale = spectrum.sum() / of_count.sum(1)
        unseen = scale * (weights @ (_binomial(0, self._sampled, rates) * enough[0]))
        frequent = float(self._ids[~few & (self._times >= pushes)].sum())
        values = frequent + later + unseen
        # Each further push can bring no more new ids than pushes of the sample have, on average.
        limit = self.distinct + rest * float(self._times @ self._ids) / self._sampled
        values = np.minimum(values, limit)
        value = float(values[best])
        added = value - known
        slack = 2 * np.sqrt(max(value - frequent, 0.0)) + CURVATURE * added * np.log2(
            total / self._sampled
        )
        low, high = float(values[likely].min()) - slack, float(values[likely].max()) + slack
        return Expected(max(low, known), value, float(min(high, limit)))


def _binomial(count: int, trials: int, rates: Float64) -> Float64:
    """The chance of exactly `count` of `trials`, by rate."""
    if count > trials:
        return np.zeros(rates.size)
    ways = np.log(np.arange(trials - count + 1, trials + 1)).sum()
    ways -= np.log(np.arange(1, count + 1)).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        misses = (trials - count) * np.log1p(-rates) if trials > count else np.zeros(rates.size)
        found: Float64 = np.exp(ways + count * np.log(rates) + misses)
    return found


def _tail(least: int, trials: int, rates: Float64) -> Float64:
    """The chance of `least` or more of `trials`, by rate."""
    fewer = sum((_binomial(i, trials, rates) for i in range(least)), np.zeros(rates.size))
    return np.clip(1 - fewer, 0, 1)
