"""Modules in ElasticDL's form run after the edits of moving-from-elasticdl.md, and no others."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from shoal.client.run.checks import check_model
from shoal.config.job import JobConfig
from shoal.data import RecordIOWriter
from shoal.errors import UserError
from shoal.worker.code.module import load_module
from shoal.worker.inspect import check
from tests.elasticdl.modules import MODULES
from tests.jobs.running import run

pytestmark = pytest.mark.slow

DATA = {"images": "images.recordio", "clicks": "clicks.recordio", "table": "table.csv"}

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "moving-from-elasticdl.md"


def edits():
    """The table of the section "The module": text of ElasticDL, text of shoal."""
    section = GUIDE.read_text().partition("## The module")[2].partition("##")[0]
    rows = re.findall(r"^\| `(.*)` \| (?:`(.*)` )?\|$", section, re.MULTILINE)
    assert len(rows) >= 8
    return rows


def recipes():
    """The functions of the section "Recipes"."""
    section = GUIDE.read_text().partition("## Recipes")[2].partition("## The commands")[0]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(found) == 2
    return "\n\n".join(found)


def edited(text):
    for old, new in edits():
        text = text.replace(old, new)
    assert "elasticdl" not in text
    return text


def examples(kind, count=96):
    """Serialized tf.train.Examples of 8x8 images, or of ten ids with a planted rule."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        if kind == "images":
            label = int(rng.integers(10))
            image = rng.normal(label, 1.0, 64)
            feature = {"image": tf.train.Feature(float_list=tf.train.FloatList(value=image))}
        else:
            ids = rng.integers(0, 50, 10) * 10**12
            label = int(ids[0] % 2 == 0 and ids[1] > 0)
            feature = {"feature": tf.train.Feature(int64_list=tf.train.Int64List(value=ids))}
        feature["label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        yield example.SerializeToString()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with the edited modules, and RecordIO files of both kinds."""
    folder = tmp_path_factory.mktemp("elasticdl")
    for name, (text, _) in MODULES.items():
        recipe = recipes() if name in ("hashed_clicks", "odps_table") else ""
        (folder / f"{name}.py").write_text(recipe + edited(text))
    for kind in ("images", "clicks"):
        with RecordIOWriter(str(folder / f"{kind}.recordio")) as file:
            for record in examples(kind):
                file.write(record)
    # As a table of ODPS, whose reader gives columns: the label and ten ids.
    names = ["label", *(f"id_{i}" for i in range(10))]
    rows = [",".join(str(i * 10**12 + row) for i in range(1, 11)) for row in range(96)]
    lines = [f"{row % 2},{ids}" for row, ids in enumerate(rows)]
    (folder / "table.csv").write_text("\n".join([",".join(names), *lines, ""]))
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_each_module_reads_trains_and_is_evaluated(prepared, name):
    report = check.inspect(
        JobConfig(
            command="check",
            model_def=f"{name}.{MODULES[name][1]}",
            model_zoo=str(prepared),
            job_dir=str(prepared),
            training_data=str(prepared / DATA[name.rpartition("_")[2]]),
            batch_size=32,
        )
    )
    assert report.faults == []
    assert any("metrics of the batch" in line and "accuracy" in line for line in report.lines)


def test_an_import_of_elasticdl_s_says_what_there_is_instead(tmp_path):
    for line, word in (
        ("from elasticdl.python.common.constants import Mode", "'training'"),
        ("from elasticdl_preprocessing.layers import Hashing", "from shoal.preprocessing"),
        ("from elasticai_api.pytorch.controller import create_elastic_controller", "has the loop"),
        ("import elasticdl.python.data.reader.odps_reader", "custom_data_reader"),
        ("from elasticdl.python.common.log_utils import default_logger", "not needed"),
    ):
        (tmp_path / "old.py").write_text(f"import os\n{line}\n\ndef custom_model(): ...\n")
        config = JobConfig(command="check", model_def="old.custom_model", model_zoo=str(tmp_path))
        with pytest.raises(UserError, match=r"old.py, line 2: elastic.*moving-from") as caught:
            check_model(config)
        assert word in str(caught.value)
        with pytest.raises(UserError, match="module of ElasticDL, which is not installed"):
            load_module(str(tmp_path), "old.custom_model")
    # One that the module can do without is not refused.
    (tmp_path / "old.py").write_text(
        "try:\n    import elasticdl\nexcept ImportError:\n    elasticdl = None\n"
        "def custom_model(): ...\ndef loss(a, b): ...\ndef optimizer(): ...\n"
        "def feed(d, m, x): ...\n"
    )
    assert check_model(config)
    load_module(str(tmp_path), "old.custom_model")


def test_several_inputs_without_names_are_told_to_be_named(prepared, tmp_path):
    text = (prepared / "backend_clicks.py").read_text()
    text = text.replace("Model(inputs, ", "Model([inputs, tf.keras.Input((1,))], ")
    (tmp_path / "unnamed_clicks.py").write_text(text)
    report = check.inspect(
        JobConfig(
            command="check",
            model_def="unnamed_clicks.custom_model",
            model_zoo=str(tmp_path),
            job_dir=str(tmp_path),
            training_data=str(prepared / "clicks.recordio"),
        )
    )
    assert "2 inputs without names: call them as the features" in report.faults[0]


@pytest.mark.job
def test_one_of_them_as_a_whole_job(prepared, tmp_path):
    ended = run(
        "train",
        tmp_path,
        "elasticdl",
        model_zoo=prepared,
        model_def="functional_clicks.custom_model",
        training_data=prepared / "clicks.recordio",
        validation_data=prepared / "clicks.recordio",
        output=tmp_path / "output",
        batch_size=16,
        epochs=3,
        workers="2",
        servers="2",
    ).succeeded()
    # Six minibatches an epoch; MaxSteps ends the training with the second.
    assert ended.ledger["total"] == 2 * 96
    assert {"loss", "logits_accuracy", "probs_auc"} == set(ended.result["metrics"])
    manifest = json.loads((tmp_path / "output" / "manifest.json").read_text())
    assert [table["rows"] for table in manifest["tables"]] == [50, 50]
