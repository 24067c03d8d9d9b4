"""Jobs of modules that are made of plans: they learn what modules by hand learn."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

import shoal
from shoal.model_zoo.census import prepare as census
from shoal.model_zoo.iris import prepare as iris
from shoal.sql import module
from tests.jobs.conftest import ROOT
from tests.jobs.running import MODELS, run
from tests.prepared import prepared_once
from tests.sql.statements import Terms, planned

pytestmark = pytest.mark.job

SERIAL = {"workers": 1, "servers": 1, "pipeline_depth": 0, "seed": 3}
"""One worker, whose pulls have all of its pushes: the same course each time."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sql")


@pytest.fixture(scope="module")
def people():
    return prepared_once(ROOT / "build" / "zoo" / "census", "train.csv", census.prepare)


@pytest.fixture(scope="module")
def earns(folder, people):
    """The result of a job whose module is made of a plan, and that job's folder."""
    t = Terms()
    plan = planned(
        people / "train.csv",
        "income",
        t.EMBEDDING("occupation", 8),
        t.EMBEDDING(t.CROSS(["education", "occupation"]), 8),
        "age",
        "hours_per_week",
    )
    (folder / "earns.py").write_text(module.text(plan))
    data = {
        "training_data": people / "train.csv",
        "validation_data": people / "validation.csv",
        "output": folder / "earns-export",
    }
    fields = SERIAL | data | MODELS | {"model_zoo": folder, "model_def": "earns.custom_model"}
    ended = run("train", folder, "earns", **fields).succeeded()
    return ended.result["metrics"], folder / "earns"


def test_a_made_module_learns_what_one_by_hand_learns(earns, folder, people):
    data = {
        "training_data": people / "train.csv",
        "validation_data": people / "validation.csv",
    }
    ended = run(
        "train", folder, "by-hand", model_def="census_by_hand.custom_model", **SERIAL, **data
    )
    metrics = ended.succeeded().result["metrics"]
    assert metrics["auc"] == pytest.approx(earns[0]["auc"], abs=1e-6)
    assert metrics["auc"] > 0.8


def test_importance_by_a_job_is_that_of_the_exported_model(earns, people):
    result = shoal.JobResult.read(earns[1] / "result.json")
    data = people / "validation.csv"
    used = ["occupation", "education", "age", "hours_per_week"]
    looked_at = {"label": "income", "columns": [*used, "sex"], "records": 2000}
    told = shoal.importance(result, data, **looked_at)
    rows = {each["column"]: each for each in told.to_pylist()}
    model = result.load()
    spec = importlib.util.spec_from_file_location("earns", earns[1].with_name("earns.py"))
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)

    def predict(table):
        columns = {name: tf.constant(table[name].to_pylist()) for name in table.column_names}
        return model.predict(made.feed_batch(columns, "prediction", None), 2000, verbose=0)

    again = shoal.importance(predict, data, **looked_at)
    assert told["column"].to_pylist() == again["column"].to_pylist()
    np.testing.assert_allclose(told["drop"].to_numpy(), again["drop"].to_numpy(), atol=1e-5)
    assert {name for name, each in rows.items() if each["drop"]} == {*used}
    assert all(rows[name]["drop"] > 0.001 for name in used)
    assert {each["metric"] for each in rows.values()} == {"auc"}


def test_three_classes_are_learned_as_by_hand(folder):
    flowers = prepared_once(ROOT / "build" / "zoo" / "iris", "iris.csv", iris.prepare) / "iris.csv"
    (folder / "flowers.py").write_text(module.text(planned(flowers, "species")))
    told = []
    for zoo, name in ((folder, "flowers"), (None, "iris_by_hand")):
        fields = {"model_def": f"{name}.custom_model", "epochs": 4, "batch_size": 10}
        fields |= {"training_data": flowers, "validation_data": flowers} | SERIAL
        fields |= {"model_zoo": zoo} if zoo else {}
        told.append(run("train", folder, name, **fields).succeeded().result["metrics"])
    assert told[0] == pytest.approx(told[1], abs=1e-6)
    assert told[0]["accuracy"] > 0.8
