"""Initial values: a pure function of (seed, id, column) with the right distribution."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings

from shoal.native.initializers import KINDS, SCHEMES, InitializerSpec, variance_scaling
from tests.native.strategies import dims, id_arrays, store

RANDOM = ["uniform", "normal", "truncated_normal"]


def sample(spec, rows=40_000, dim=5, seed=1):
    return store(dim, "sgd", spec, seed).lookup(np.arange(rows))


@pytest.mark.parametrize("kind", RANDOM)
@settings(max_examples=25, deadline=None)
@given(ids=id_arrays(), dim=dims)
def test_pure_function_of_seed_and_id(kind, ids, dim):
    """Independent of order, of neighbours, of the optimizer, of whether the row exists."""
    table = store(dim, "sgd", kind, seed=11)
    values = table.lookup(ids)
    other = store(dim, "adam", kind, seed=11)
    other.insert(ids[::-1].copy())
    assert (other.lookup(ids) == values).all()
    for position in range(0, len(ids), 50):
        assert (table.lookup(ids[position : position + 1])[0] == values[position]).all()


@pytest.mark.parametrize("kind", RANDOM)
def test_wider_rows_begin_alike_and_seeds_differ(kind):
    narrow, wide = sample(kind, 100, 5), sample(kind, 100, 33)
    assert (narrow == wide[:, :5]).all()
    assert (sample(kind, 100, seed=2) != narrow).mean() > 0.999
    assert (sample(kind, 100, seed=-1) == sample(kind, 100, seed=2**64 - 1)).all()


def test_known_values():
    """Pinned: a checkpoint's untouched rows are drawn again after a restart, perhaps by
    another version or on another machine, and must not change.
    """
    ids = np.array([0, -1])
    found = {kind: store(2, "sgd", kind, 42).lookup(ids).reshape(-1) for kind in RANDOM}
    assert {kind: [v.hex() for v in values.tolist()] for kind, values in found.items()} == PINNED


PINNED = {
    "uniform": [
        "-0x1.971dae0000000p-6",
        "-0x1.9d96060000000p-6",
        "0x1.60b9fc0000000p-6",
        "0x1.be34000000000p-14",
    ],
    "normal": [
        "-0x1.1251e20000000p-5",
        "-0x1.176a3e0000000p-5",
        "0x1.d20a760000000p-6",
        "0x1.179d5e0000000p-13",
    ],
    "truncated_normal": [
        "-0x1.03f5d60000000p-5",
        "-0x1.08b61e0000000p-5",
        "0x1.ba95040000000p-6",
        "0x1.0ae4640000000p-13",
    ],
}


def quantiles(kind, values):
    """Sorted samples mapped through the distribution's own function: uniform if right."""
    normal, parameters = NormalDist(), KINDS[kind]
    if kind == "uniform":
        low, high = parameters["minval"], parameters["maxval"]
        return (values - low) / (high - low)
    z = [(v - parameters["mean"]) / parameters["stddev"] for v in values.tolist()]
    p = np.array([normal.cdf(x) for x in z])
    if kind == "truncated_normal":
        low = normal.cdf(-2)
        p = (p - low) / (1 - 2 * low)
    return p


@pytest.mark.parametrize("kind", RANDOM)
def test_distribution(kind):
    """Kolmogorov-Smirnov distance of 200,000 values below the 0.1% critical value."""
    values = np.sort(sample(kind).reshape(-1).astype(np.float64))
    p = quantiles(kind, values)
    expected = (np.arange(len(p)) + 0.5) / len(p)
    assert np.abs(p - expected).max() < 1.95 / np.sqrt(len(p))
    assert len(np.unique(values)) > 0.98 * len(values)


@pytest.mark.parametrize("kind", RANDOM)
def test_columns_and_neighbouring_ids_are_independent(kind):
    values = sample(kind).astype(np.float64)
    pairs = [(values[:, i], values[:, j]) for i in range(5) for j in range(i)]
    pairs.append((values[1:, 0], values[:-1, 0]))
    pairs.append((values[:, 0], sample(kind, seed=2)[:, 0]))
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.025


def test_normal_tails_are_those_of_the_exact_quantile():
    """Far out, where the rational approximation changes its branch."""
    values = np.sort(sample(InitializerSpec("normal", {"stddev": 1.0}), 400_000).reshape(-1))
    count = len(values)
    for rank in (20, 200, 2000, 60_000):
        share = rank / count
        spread = 6 * np.sqrt(rank) / count
        assert abs(NormalDist().cdf(float(values[rank])) - share) < spread
        assert abs(1 - NormalDist().cdf(float(values[-rank])) - share) < spread
    assert 4.3 < values[-1] < 6.3


def test_truncated_normal_stays_within_two_deviations():
    values = sample("truncated_normal")
    assert np.abs(values).max() <= 0.1
    assert np.abs(values).max() > 0.0999


def test_constants():
    assert (sample("zeros", 10) == 0).all()
    assert (sample(InitializerSpec("constant", {"value": 2.5}), 10) == 2.5).all()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (InitializerSpec("zeros"), 0.0),
        (InitializerSpec("constant", {"value": 3.0}), 3.0),
        (InitializerSpec("uniform", {"minval": 1.0, "maxval": 2.0}), 1.5),
        (InitializerSpec("normal", {"mean": -1.0}), -1.0),
    ],
)
def test_default_rows_are_expected_values(spec, expected):
    assert spec.default_value == expected
    found = store(3, "sgd", spec).lookup(np.array([5, 6]), missing="default")
    assert (found == expected).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_variance_scaling_equals_keras(scheme):
    """The same standard deviation as Keras's own initializer draws."""
    import keras

    scale, mode, distribution = SCHEMES[scheme]
    spec = variance_scaling(300, 200, scale=scale, mode=mode, distribution=distribution)
    name = "".join(part.capitalize() for part in scheme.split("_"))
    theirs = np.asarray(getattr(keras.initializers, name)(seed=1)((300, 200)))
    mine = sample(spec)
    assert mine.std() == pytest.approx(theirs.std(), rel=0.02)
    assert np.abs(mine).max() == pytest.approx(np.abs(theirs).max(), rel=0.02)


def test_untruncated_scaling_and_refusals():
    assert variance_scaling(4, 9, distribution="untruncated_normal").parameters["stddev"] == 0.5
    for options in ({"mode": "fan"}, {"distribution": "cauchy"}, {"scale": 0.0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            variance_scaling(4, 9, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind):
    spec = InitializerSpec(kind)
    assert InitializerSpec.from_json(spec.to_json()) == spec
    assert hash(InitializerSpec.from_json(spec.to_json())) == hash(spec)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("glorot", {}, "unknown initializer kind"),
        ("zeros", {"value": 1.0}, "no parameter value"),
        ("uniform", {"minval": 1.0, "maxval": 0.0}, "minval is above maxval"),
        ("normal", {"stddev": -1.0}, "stddev must be at least 0"),
        ("normal", {"mean": float("inf")}, "mean must be finite"),
        ("normal", {"mean": "0"}, "mean must be a number"),
    ],
)
def test_bad_specifications_are_refused(kind, parameters, message):
    with pytest.raises(ValueError, match=message):
        InitializerSpec(kind, parameters)


def test_bad_json_is_refused():
    with pytest.raises(ValueError, match="not an initializer"):
        InitializerSpec.from_json("{}")
