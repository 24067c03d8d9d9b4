"""Metrics by features: those of jobs whose validation data are files with one slice each."""

import random

import pytest

from tests.jobs.running import ENGINE, run

pytestmark = pytest.mark.job

MODULE = """
import keras
from shoal.layers import Embedding
from shoal.metrics import Calibration, LogLoss, Slices

def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in ("user", "country", "new")}
    return features if mode == "prediction" else (features, columns["label"])

def custom_model():
    inputs = {
        "user": keras.Input([], dtype="int64", name="user"),
        "country": keras.Input([], dtype="string", name="country"),
        "new": keras.Input([], dtype="int64", name="new"),
    }
    vector = Embedding(4, name="users")(inputs["user"])
    return keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(vector))

loss = "binary_crossentropy"

def optimizer():
    return keras.optimizers.Adam(0.05)

def eval_metrics_fn():
    return {
        "auc": keras.metrics.AUC(),
        "log_loss": LogLoss(),
        "calibration": Calibration(),
        "worst": Slices(["country", "new"], min_records=20),
    }
"""

TORCH = """
import torch
import shoal.torch
from shoal.torch.metrics import AUC, Calibration, LogLoss, Slices

def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in ("user", "country", "new")}
    return features if mode == "prediction" else (features, columns["label"])

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users = shoal.torch.Embedding(4)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, features):
        return self.last(self.users(features["user"]))[:, 0]

custom_model = Small
loss = torch.nn.BCEWithLogitsLoss()

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)

def eval_metrics_fn():
    return {
        "auc": AUC(from_logits=True),
        "log_loss": LogLoss(from_logits=True),
        "calibration": Calibration(from_logits=True),
        "worst": Slices(["country", "new"], min_records=20, from_logits=True),
    }
"""


def write(path, rows):
    path.write_text("user,country,new,label\n" + "".join(f"{','.join(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("engine", ["tensorflow", "jax", "torch"])
def test_slices_are_what_filtered_files_give(engine, tmp_path):
    chance = random.Random(3)
    # What engines other than TensorFlow's take are numbers.
    countries = ["DE", "FR", "IT"] if engine == "tensorflow" else ["49", "33", "39"]
    rows = []
    for _ in range(600):
        user, country = chance.randrange(40), chance.choice(countries)
        likely = 0.8 if user % 2 else 0.2
        if country == countries[2]:
            likely = 0.5
        label = chance.random() < likely
        rows.append((str(user), country, str(user % 5 // 4), f"{label:d}.0"))
    rows += (
        [("1", "99", "0", "1.0")] * 5 if engine != "tensorflow" else [("1", "LU", "0", "1.0")] * 5
    )
    text = TORCH if engine == "torch" else MODULE
    if engine == "jax":
        text = text.replace('dtype="string"', 'dtype="int64"')
    (tmp_path / "sliced.py").write_text(text)
    data = write(tmp_path / "all.csv", rows)
    fields = {
        "model_zoo": tmp_path,
        "model_def": "sliced.custom_model",
        "engine": engine,
        "batch_size": 32,
        "num_minibatches_per_task": 2,
    }
    whole = run(
        "train",
        tmp_path,
        "whole",
        training_data=data,
        validation_data=data,
        workers="2",
        epochs=4,
        output=tmp_path / "out",
        **fields,
    ).succeeded()
    slices = whole.result["slices"]
    assert {each["metric"] for each in slices} == {"worst"}
    found = {(each["feature"], each["value"]): each for each in slices}
    assert found.keys() == {("country", each) for each in countries} | {("new", "0"), ("new", "1")}
    areas = [each["auc"] for each in slices]
    assert areas == sorted(areas)
    assert whole.result["metrics"]["worst"] == pytest.approx(areas[0])
    assert f"worst slices      country={countries[2]}: auc {areas[0]:.4f}" in whole.out
    for feature, value in (("country", countries[0]), ("country", countries[2]), ("new", "1")):
        at = 1 if feature == "country" else 2
        mine = [row for row in rows if row[at] == value]
        alone = run(
            "evaluate",
            tmp_path,
            f"{feature}-{value}",
            validation_data=write(tmp_path / f"{feature}-{value}.csv", mine),
            restore_from=tmp_path / "out",
            **fields,
        )
        of = found[feature, value]
        assert of["records"] == len(mine)
        for name in ("auc", "log_loss", "calibration"):
            assert of[name] == pytest.approx(alone.result["metrics"][name], rel=2e-5), name
        assert of["label_mean"] == sum(float(row[3]) for row in mine) / len(mine)


def test_a_slice_by_what_is_no_feature_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.delenv(ENGINE, raising=False)
    (tmp_path / "sliced.py").write_text(MODULE.replace('["country", "new"]', '["country", "age"]'))
    data = write(tmp_path / "all.csv", [("1", "DE", "0", "1.0")] * 40)
    ended = run(
        "train",
        tmp_path,
        "wrong",
        model_zoo=tmp_path,
        model_def="sliced.custom_model",
        training_data=data,
        validation_data=data,
        batch_size=32,
    )
    assert ended.code == 2
    assert ended.ledger["total"] == ended.ledger["pending"]
    assert "Slices(by=('country', 'age')) needs a feature of the name 'age', but" in ended.err
