"""What the report says of a job that learned less than it could."""

import math
import random

import pytest

from shoal.client.show.learned import rise
from shoal.client.show.report import rows
from shoal.result import JobResult

DRAW = random.Random(5)


def noisy(values, deviation=0.02):
    return [value + DRAW.gauss(0, deviation) for value in values]


FALLING = [0.3 + 0.4 * math.exp(-at / 8) for at in range(40)]
RISING = [0.4 + 0.01 * abs(at - 20) for at in range(40)]


def told(tmp_path, **given):
    """The lines of a report, by name."""
    result = JobResult("swim", "train", "succeeded", tmp_path, **given)
    return {name: text.plain for name, text in rows(result)}


@pytest.mark.parametrize(
    ("updates", "mean", "told"), [(499, 2.1, True), (500, 2.1, False), (499, 2.0, False)]
)
def test_few_updates_with_much_staleness_are_told(tmp_path, updates, mean, told):
    result = JobResult(
        "swim",
        "train",
        "succeeded",
        tmp_path,
        ledger={"total": 5, "trained_once": 5, "repeated": 0, "failed": 0},
        staleness={"mean": mean},
        versions={"ps-0": updates, "ps-1": updates - 1},
    )
    found = {name: text.plain for name, text in rows(result)}
    expected = (
        "499, of gradients that are 2.1 updates old on average: one process may learn more; "
        "try --sync, or fewer workers"
    )
    assert found.get("few updates") == (expected if told else None)


@pytest.mark.parametrize("count", [6, 12, 40, 128])
@pytest.mark.parametrize("shape", [lambda at: 0.5, lambda at: 0.3 + 0.4 * math.exp(-8 * at)])
def test_noise_is_no_rise(shape, count):
    courses = [noisy(shape(at / count) for at in range(count)) for _ in range(200)]
    assert sum(rise(each) is not None for each in courses) <= 8


def test_a_rise_is_found_in_noise_and_without():
    assert rise(RISING) == pytest.approx((0.412, 0.57))
    assert sum(rise(noisy(RISING)) is not None for _ in range(100)) >= 95
    assert rise([0.7, 0.5, 0.45, 0.44, 0.46, 0.5, 0.55, 0.62]) == (0.44, 0.62)


def test_too_few_points_and_too_small_a_rise_say_nothing():
    assert rise([]) is rise([0.4, 0.5, 0.6, 0.7, 0.8]) is None
    assert rise([0.5, 0.41, 0.4, 0.4001, 0.4002, 0.4003]) is None


@pytest.mark.parametrize(
    ("staleness", "advice"),
    [(0.0, "a lower learning rate"), (2.1, "--sync, --staleness-bound or a lower learning rate")],
)
def test_a_loss_that_rose_in_training_is_told(tmp_path, staleness, advice):
    given = {"staleness": {"mean": staleness}}
    found = told(tmp_path, training_loss=RISING, **given)
    assert found["rising loss"] == f"in training from 0.4120 to 0.5700: try {advice}"
    assert "rising loss" not in told(tmp_path, training_loss=FALLING, **given)


def evaluations(**metrics):
    (count,) = {len(values) for values in metrics.values()}
    return [
        {
            "version": at,
            "epoch": at,
            "records": 9,
            "metrics": {name: values[at] for name, values in metrics.items()},
        }
        for at in range(count)
    ]


def test_metrics_of_the_validation_data_that_got_worse_are_told(tmp_path):
    larger = [0.7, 0.74, 0.75, 0.74, 0.73, 0.71, 0.69]
    smaller = [0.64, 0.61, 0.6, 0.61, 0.63, 0.66, 0.70]
    other = [1.0 + at for at in range(7)]  # nobody knows whether more of it is better
    for given, words in (
        ({"auc": larger}, "auc of the validation data went from 0.7500 to 0.6900"),
        ({"log_loss": smaller}, "log_loss of the validation data went from 0.6000 to 0.7000"),
    ):
        found = told(tmp_path, training_loss=FALLING, evaluations=evaluations(**given, width=other))
        assert found["rising loss"].startswith(f"{words}, and the loss in training did not rise: ")
    found = told(tmp_path, evaluations=evaluations(auc=sorted(larger), width=other))
    assert "rising loss" not in found


def test_an_evaluation_that_was_no_number_is_left_out(tmp_path):
    values = [0.7, None, 0.74, 0.75, 0.74, 0.73, 0.71, None, 0.69, None]
    assert (
        "from 0.7500 to 0.6900"
        in told(tmp_path, evaluations=evaluations(auc=values))["rising loss"]
    )
    assert "rising loss" not in told(tmp_path, evaluations=evaluations(auc=[None] * 9))
