"""Modules in ElasticDL's form run after the edits of moving-from-elasticdl.md, and no others."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from shoal.config import JobConfig
from shoal.data import RecordIOWriter
from shoal.worker import check
from tests.elasticdl.modules import MODULES
from tests.jobs.running import run

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "moving-from-elasticdl.md"


def edits():
    """The table of the section "The module": text of ElasticDL, text of shoal."""
    section = GUIDE.read_text().partition("## The module")[2].partition("##")[0]
    rows = re.findall(r"^\| `(.*)` \| (?:`(.*)` )?\|$", section, re.MULTILINE)
    assert len(rows) >= 8
    return rows


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
        (folder / f"{name}.py").write_text(edited(text))
    for kind in ("images", "clicks"):
        with RecordIOWriter(str(folder / f"{kind}.recordio")) as file:
            for record in examples(kind):
                file.write(record)
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_each_module_reads_trains_and_is_evaluated(prepared, name):
    report = check.inspect(
        JobConfig(
            command="check",
            model_def=f"{name}.{MODULES[name][1]}",
            model_zoo=str(prepared),
            job_dir=str(prepared),
            training_data=str(prepared / f"{name.rpartition('_')[2]}.recordio"),
            minibatch_size=32,
        )
    )
    assert report.faults == []
    assert any("metrics of the batch" in line and "accuracy" in line for line in report.lines)


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
        minibatch_size=16,
        num_epochs=3,
        num_workers=2,
        num_ps=2,
    ).succeeded()
    # Six minibatches an epoch; MaxSteps ends the training with the second.
    assert ended.ledger["total"] == 2 * 96
    assert {"loss", "logits_accuracy", "probs_auc"} == set(ended.result["metrics"])
    manifest = json.loads((tmp_path / "output" / "manifest.json").read_text())
    assert [table["rows"] for table in manifest["tables"]] == [50, 50]
