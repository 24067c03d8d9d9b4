"""Conditions in a line, as --publish-if has them."""

import math

import pytest

from shoal.config.conditions import Condition, check_metrics, conditions, unmet
from shoal.config.job import JobConfig
from shoal.errors import UserError

JOB = {"model_def": "m.custom_model", "training_data": "x.csv", "latest": "latest"}


STREAM = {"model_def": "m.custom_model", "training_data": "x/", "progressive_steps": 4}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"validation_data": "v.csv"}, "cannot be combined with --validation-data"),
        ({"epochs": 2}, "needs --epochs 1, not 2"),
        (
            {"progressive_steps": 0, "progressive_window": 9},
            "--progressive-window works only with --progressive-steps",
        ),
    ],
)
def test_progressive_metrics_have_the_evaluations_to_themselves(fields, why):
    JobConfig(**STREAM)
    with pytest.raises(UserError, match=why):
        JobConfig(**STREAM | fields)


def test_conditions_may_be_about_progressive_metrics():
    JobConfig(**STREAM, publish="live", publish_if="auc>=0.7")
    with pytest.raises(UserError, match="or --progressive-steps"):
        JobConfig(**STREAM | {"progressive_steps": 0}, publish="live", publish_if="auc>=0.7")


def test_several_are_written_with_commas_and_percentages():
    assert conditions("auc>=0.78, loss < 4e-1,auc_of a<=5%,", "--f", "a>1") == (
        Condition("auc", ">=", 0.78),
        Condition("loss", "<", 0.4),
        Condition("auc_of a", "<=", 0.05),
    )
    assert conditions(" ", "--f", "a>1") == ()


@pytest.mark.parametrize("text", ["auc", "auc=1", "auc==1", ">=1", "auc>=", "auc>=>1", "auc>1>2"])
def test_what_is_no_condition_is_named(text):
    with pytest.raises(UserError, match=f"^--publish-if: '{text}' is no condition: write .*auc>=0"):
        JobConfig(**JOB, validation_data="v.csv", publish_if=f"loss<=1,{text}")


@pytest.mark.parametrize("value", ["high", "%", "nan", "0,5x"])
def test_what_is_no_number_is_named(value):
    with pytest.raises(UserError, match=r"is no (number|condition)"):
        conditions(f"auc>={value}", "--f", "a>1")


@pytest.mark.parametrize(
    ("condition", "holds", "fails"),
    [
        ("a>=1", (1, 2, math.inf), (0.5, -math.inf, math.nan, None)),
        ("a>1", (1.5,), (1, math.nan, None)),
        ("a<=1", (1, 0), (2, math.nan, None)),
        ("a<1", (0,), (1, math.nan, None)),
    ],
)
def test_a_metric_that_is_no_number_never_holds(condition, holds, fails):
    (parsed,) = conditions(condition, "--f", condition)
    assert all(map(parsed.holds, holds))
    assert not any(map(parsed.holds, fails))


def test_each_that_does_not_hold_is_told_with_its_value():
    text = "auc>=0.78,first.auc>=0.7,loss<1,gone>0"
    assert unmet(text, {"auc": 0.8, "loss": 0.5, "gone": 1}, {"auc": 0.7}) == []
    assert unmet(text, {"auc": 0.77, "loss": None}, {"auc": 0.8}) == [
        "--publish-if auc>=0.78: auc is 0.77",
        "--publish-if loss<1: loss is no number",
        "--publish-if gone>0: gone is no number",
    ]
    # Where nothing was evaluated first, there is nothing that could be worse.
    assert unmet("first.auc>=0.7", None, None) == []
    assert unmet("first.auc>=0.7", None, {"auc": 0.6})[0].endswith("first.auc is 0.6")
    assert unmet("auc>=0.7", None, None) == ["--publish-if auc>=0.7: auc is no number"]


def test_a_metric_that_there_is_not_is_named_with_the_nearest():
    check_metrics("auc>0,first.loss<1", ["auc", "loss"])
    with pytest.raises(UserError, match=r"no metric 'acu' \(did you mean auc\?\); its metrics are"):
        check_metrics("first.acu>0", ["auc", "loss"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"evaluate_first": True, "latest": ""}, "--evaluate-first needs an earlier model"),
        ({"publish_if": "first.auc>0"}, "add --evaluate-first"),
        ({"publish_if": "auc>0"}, "auc>0 needs --validation-data"),
        ({"publish_if": "auc>0", "latest": "", "validation_data": "v"}, "only with --latest"),
    ],
)
def test_what_the_gate_lacks_is_told(fields, said):
    with pytest.raises(UserError, match=said):
        JobConfig(**{**JOB, **fields})
