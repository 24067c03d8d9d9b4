"""shoal.importance, of functions: against scikit-learn, and what it refuses."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from tests.examples import examples


@pytest.fixture(scope="module")
def people():
    """Records of which b tells most of the label, a something and noise nothing."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame(random.normal(size=(4000, 3)), columns=["a", "b", "noise"])
    chance = 1 / (1 + np.exp(-(0.6 * frame.a + 2 * frame.b)))
    frame["label"] = (random.random(4000) < chance).astype(int)
    return frame


def arrays(table):
    return np.column_stack([table[name].to_numpy() for name in ("a", "b", "noise")])


@pytest.mark.parametrize(("metric", "scoring"), [("auc", "roc_auc"), ("accuracy", "accuracy")])
def test_the_drops_are_those_of_scikit_learn(people, metric, scoring):
    linear = pytest.importorskip("sklearn.linear_model")
    inspection = pytest.importorskip("sklearn.inspection")
    features = people[["a", "b", "noise"]].to_numpy()
    model = linear.LogisticRegression().fit(features, people.label)
    repeats = 10
    theirs = inspection.permutation_importance(
        model, features, people.label, scoring=scoring, n_repeats=repeats, random_state=1
    )
    ours = shoal.importance(
        lambda table: model.predict_proba(arrays(table))[:, 1],
        people,
        metric=metric,
        repeats=repeats,
    ).to_pylist()
    assert [each["column"] for each in ours][:2] == ["b", "a"]
    for each in ours:
        at = ["a", "b", "noise"].index(each["column"])
        error = np.hypot(each["stddev"], theirs.importances_std[at]) / repeats**0.5
        assert abs(each["drop"] - theirs.importances_mean[at]) <= 3 * error
        # The spread itself, whose own error is a quarter of it with ten repeats.
        assert each["stddev"] == pytest.approx(theirs.importances_std[at], rel=1)
    assert {each["metric"] for each in ours} == {metric}


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_useless_column_is_the_last(people, seed):
    told = shoal.importance(
        lambda table: 1 / (1 + np.exp(-arrays(table) @ [0.6, 2, 0])), people, seed=seed
    )
    assert told["column"].to_pylist() == ["b", "a", "noise"]
    assert told["drop"].to_pylist()[2] == 0.0
    assert told.column_names == ["column", "metric", "drop", "stddev"]


@pytest.mark.parametrize("seed", range(20))
def test_a_useless_column_that_the_model_uses_a_little_is_the_last_too(people, seed):
    weights = [0.6, 2, 0.05]
    told = shoal.importance(
        lambda table: 1 / (1 + np.exp(-arrays(table) @ weights)), people, seed=seed
    )
    assert told["column"].to_pylist()[-1] == "noise"


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=4, max_size=30))
def test_metrics_are_those_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    labels = np.array([0, 1, *(label for label, _ in pairs)])
    chances = np.array([0.2, 0.2, *(chance / 5 for _, chance in pairs)])
    clipped = np.clip(chances, 1e-7, 1 - 1e-7)
    theirs = {
        "auc": metrics.roc_auc_score(labels, chances),
        "log_loss": -metrics.log_loss(labels, clipped),
        "accuracy": metrics.accuracy_score(labels, chances >= 0.5),
        "rmse": -metrics.root_mean_squared_error(labels, chances),
        "mae": -metrics.mean_absolute_error(labels, chances),
    }
    from shoal.api.importance import METRICS

    assert {name: score(labels, chances) for name, score in METRICS.items()} == pytest.approx(
        theirs
    )


def test_the_metric_follows_labels_and_predictions():
    data = {"x": [0.0, 1, 2, 3], "label": [0, 1, 2, 1]}
    told = [
        (lambda t: np.eye(3)[[0, 1, 2, 1]], "accuracy", data),
        (lambda t: t["x"].to_numpy(), "rmse", data),
        (lambda t: t["x"].to_numpy() / 3, "auc", data | {"label": [0, 1, 0, 1]}),
        (lambda t: t["x"].to_numpy() / 3, "auc", data | {"label": [False, True, False, True]}),
    ]
    for model, metric, given_data in told:
        assert shoal.importance(model, given_data)["metric"].to_pylist() == [metric]


def test_records_are_drawn_from_all_and_read_from_files(tmp_path):
    path = tmp_path / "many.csv"
    path.write_text("x,y\n" + "".join(f"{at},{at % 2}\n" for at in range(20_000)))
    seen = []

    def model(table):
        seen.append(table["x"].to_numpy())
        return table["x"].to_numpy() / 20_000

    shoal.importance(model, path, label="y", records=500, repeats=2)
    whole, *permuted = seen
    assert len(set(whole.tolist())) == 500
    assert (np.diff(whole) > 0).all()
    assert whole.max() > 19_000 > 1_000 > whole.min()
    assert [sorted(each.tolist()) for each in permuted] == [whole.tolist()] * 2
    assert permuted[0].tolist() != permuted[1].tolist() != whole.tolist()


def chances(table):
    return np.linspace(0, 1, table.num_rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label": "y"}, r"label: the data have no column 'y'"),
        ({"label": "text"}, "label: the column 'text' is of type string"),
        ({"label": "holes"}, "label: the column 'holes' has 1 missing values"),
        ({"columns": ["txet"]}, r"columns: .* no column 'txet' .*\(did you mean text\?\)"),
        ({"metric": "auk"}, r"metric: there is no 'auk' \(did you mean auc\?\)"),
        ({"metric": "auc", "label": "one"}, "metric: auc needs labels of both 0 and 1"),
        ({"repeats": 0}, "repeats must be a positive integer, not 0"),
        ({"records": 1.5}, "records must be a positive integer, not 1.5"),
        ({"workers": 2}, "shoal.importance has no argument workers for a function"),
        ({"model": lambda table: np.zeros(3)}, r"4 records have predictions of shape \(3,\)"),
        ({"model": lambda table: np.zeros([4, 2]), "metric": "rmse"}, "metric: rmse is of one"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(changes, message):
    data = pa.table(
        {
            "text": ["a", "b", "c", "d"],
            "holes": [1, None, 0, 1],
            "one": [1, 1, 1, 1],
            "label": [0, 1, 0, 1],
        }
    )
    arguments = {"model": chances, "data": data} | changes
    with pytest.raises(shoal.UserError, match=message):
        shoal.importance(**arguments)
