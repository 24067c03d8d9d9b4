"""The sums of slices: those of any parts, in any order, are those of all records at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.slices import KeyedRows, SliceSums
from tests.examples import examples


class Slices(SliceSums):
    def __init__(self, by, min_records=1, *, from_logits=False):
        self.begin(by, min_records, from_logits=from_logits)


def records(seed, size):
    draw = np.random.default_rng(seed)
    labels = (draw.random(size) < 0.4).astype(float)
    # At thresholds too.
    predictions = np.where(
        draw.random(size) < 0.5, draw.integers(0, 200, size) / 199, draw.random(size)
    )
    features = {
        "country": draw.choice(np.array([b"DE", b"FR", b"\xff", b""], object), size),
        "new": draw.random(size) < 0.5,
        "age": draw.integers(-3, 4, (size, 1)),
    }
    return labels, predictions, features


def by_hand(labels, predictions):
    """AUC by counting pairs of buckets, log loss, calibration and mean label."""
    scaled = np.ceil(np.float32(predictions) * np.float32(199))
    bucket = np.maximum(scaled - 1, 0)
    positive, negative = bucket[labels == 1], bucket[labels == 0]
    auc = math.nan
    if positive.size and negative.size:
        pairs = np.sign(positive[:, None] - negative[None]).astype(float)
        auc = (1 + pairs.mean()) / 2
    clipped = np.clip(predictions, 1e-7, 1 - 1e-7)
    loss = -np.where(labels == 1, np.log(clipped), np.log(1 - clipped)).mean()
    total = labels.sum()
    return [auc, loss, predictions.sum() / total if total else math.nan, labels.mean()]


def numbers(of):
    return [of.auc, of.log_loss, of.calibration, of.label_mean]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6))
def test_any_parts_merged_are_each_slice_by_itself(seed, sizes):
    by = ["country", "new", "age"]
    merged = KeyedRows()
    parts = [records(seed + i, size) for i, size in enumerate(sizes)]
    for labels, predictions, features in parts:
        part = Slices(by)
        half = len(labels) // 2
        for piece in (slice(0, half), slice(half, None)):
            part.add(
                labels[piece],
                predictions[piece],
                {name: values[piece] for name, values in features.items()},
            )
        merged.add(*part.rows.sparse())
    whole = Slices(by)
    whole.rows.add(*merged.sparse())
    labels, predictions = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    found = {(each.feature, each.value): each for each in whole.slices()}
    expected = 0
    for name in by:
        values = np.concatenate([part[2][name].reshape(-1) for part in parts])
        for value in set(values.tolist()):
            mine = values == value
            shown = value.decode("utf-8", "backslashreplace") if name == "country" else str(value)
            of = found[name, shown]
            assert of.records == mine.sum()
            assert numbers(of) == pytest.approx(
                by_hand(labels[mine], predictions[mine]), rel=1e-9, nan_ok=True
            )
            expected += 1
    assert len(found) == expected
    areas = [each.auc for each in whole.slices() if not math.isnan(each.auc)]
    assert areas == sorted(areas)
    assert whole.result() == areas[0] if areas else math.isnan(whole.result())


def test_small_slices_are_not_told_and_logits_become_chances():
    labels, features = np.array([0, 1, 0, 1, 1.0]), {"a": np.array([1, 1, 1, 1, 2])}
    logits = np.array([-1.0, 2.0, 0.5, 0.0, 3.0])
    metric = Slices(["a"], 2, from_logits=True)
    metric.add(labels, logits, features)
    (only,) = metric.slices()
    assert (only.value, only.records) == ("1", 4)
    chances = 1 / (1 + np.exp(-logits[:4]))
    assert numbers(only) == pytest.approx(by_hand(labels[:4], chances))
    metric.reset_state()
    assert (metric.slices(), math.isnan(metric.result())) == ([], True)


def test_a_prediction_that_is_no_number_makes_its_slices_alone_none():
    metric = Slices(["a"])
    metric.add(np.array([0, 1, 0, 1.0]), np.array([0.2, np.nan, 0.3, 0.9]), {"a": [1, 1, 2, 2]})
    first, second = metric.slices()
    assert (first.value, first.auc) == ("2", 1.0)
    assert all(map(math.isnan, (second.auc, second.log_loss, second.calibration)))


@pytest.mark.parametrize(
    ("labels", "predictions", "feature", "message"),
    [
        ([2.0], [0.5], [1], "labels 0 or 1"),
        ([1.0], [1.5], [1], r"between 0 and 1, and there is 1\.5.*from_logits"),
        ([1.0], [0.5, 0.5], [1], "1 labels came with 2 predictions"),
        ([1.0], [0.5], [1, 2], "'a' has 2 values in 1 records"),
        ([1.0], [0.5], [1.5], "'a' has float64 values"),
        ([1.0], [0.5], [[1, 2]], r"'a' has the shape \(1, 2\)"),
    ],
)
def test_what_cannot_be_sliced_is_named(labels, predictions, feature, message):
    with pytest.raises(ValueError, match=message):
        Slices(["a"]).add(np.array(labels), np.array(predictions), {"a": np.array(feature)})


@pytest.mark.parametrize(
    ("by", "least"), [("country", 1), ([], 1), ([1], 1), (["a", "a"], 1), (["a"], 0)]
)
def test_arguments_that_cannot_be_used_are_named(by, least):
    with pytest.raises(ValueError, match="Slices"):
        Slices(by, least)


def add(rows, keys, positions, values, width):
    rows.add(keys, np.array(positions, "<u4").tobytes(), np.array(values).tobytes(), width)


@pytest.mark.parametrize(
    "damaged",
    [
        (["a", "b"], [8], [1.0], 4),
        (["a"], [0, 1], [1.0], 4),
        (["a"], [0], [1.0], 5),
        (["a", "a"], [0], [1.0], 4),
    ],
)
def test_rows_that_do_not_fit_are_refused(damaged):
    rows = KeyedRows(4)
    add(rows, ["z"], [3], [2.0], 4)
    with pytest.raises(ValueError, match=r"fit|no row"):
        add(rows, *damaged)
    assert rows.table.tolist() == [[0, 0, 0, 2.0]]
