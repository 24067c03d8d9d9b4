"""The example of docs/guide/preprocessing.md, run as it stands there."""

import importlib
import random
import re
import shlex
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.data import as_columns, open_reader

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "preprocessing.md"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The guide's module measured.py, beside what the guide's command made of people.csv."""
    section = GUIDE.read_text().partition("## Statistics")[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    draw = random.Random(2)
    cities = ["Ulm", "Bonn", "Köln"]
    rows = [
        f"{draw.randrange(18, 90)},{draw.lognormvariate(7, 1):.2f},{draw.choice(cities)},{i % 2}"
        for i in range(2000)
    ]
    Path("people.csv").write_text("\n".join(["age,income,city,buys", *rows, "40,1.0,Rom,1\n"]))
    (command,) = re.findall(r"^    shoal (analyze .*)$", section, re.MULTILINE)
    done = CliRunner().invoke(main, shlex.split(command))
    assert done.exit_code == 0, done.output
    (module,) = re.findall(r"`measured\.py`.*?```python\n(.*?)```", section, re.DOTALL)
    Path("measured.py").write_text(module)
    yield importlib.import_module("measured")
    del sys.modules["measured"]


def test_the_example_of_statistics(measured):
    reader = open_reader("people.csv", "--data")
    (source,) = reader.sources()
    columns = as_columns(next(iter(reader.read(source.name, 0, source.records))))
    features, labels = measured.feed_batch(
        {name: tf.constant(column) for name, column in columns.items()}, "training", None
    )
    # Ten bins of about as many people, incomes around 0, and a city that is too rare.
    people = np.bincount(features["age"].numpy(), minlength=10)
    assert people.size == 10
    assert people.min() > 120
    income = features["income"].numpy()
    assert (income.mean(), income.std()) == (pytest.approx(0, abs=1e-4), pytest.approx(1, rel=1e-4))
    assert sorted(measured.cities) == ["Bonn", "Köln", "Ulm"]
    assert np.bincount(features["city"].numpy())[3:].tolist() == [1]

    model = measured.custom_model()
    model.compile(measured.optimizer(), loss=lambda y, p: keras.ops.mean(measured.loss(y, p)))
    assert model.train_on_batch(features, tf.cast(labels, tf.float32)) < 5
