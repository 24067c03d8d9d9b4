"""The graphs that TensorFlow makes of each model of the zoo are those that were recorded.

A change of the code around a model must not change what is computed, to the last bit, unless that
is meant. What a graph gives depends on the processor; the graph does not, but on the versions of
TensorFlow and Keras. To record graphs that are meant to be others:
SHOAL_RECORD_GRAPHS=1 python -m pytest tests/model_zoo/test_graphs.py
"""

import collections
import contextlib
import hashlib
import json
import os
import re
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from shoal.client.run.examples import examples
from shoal.config.job import JobConfig
from shoal.data import open_reader
from shoal.data.samples.analysis import analyze
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import load_module
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.input.data import JobData
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.local import LocalServers
from tests.model_zoo.test_training import data_of

RECORDED = Path(__file__).with_name("graphs.json")
VERSIONS = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
RECORDING = bool(os.environ.get("SHOAL_RECORD_GRAPHS"))

known = json.loads(RECORDED.read_text())

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not RECORDING and VERSIONS not in known, reason=f"no graphs are recorded of {VERSIONS}"
    ),
]

COUNTED = re.compile(
    r"(__(?:inference|forward|backward)_[^\"\s]*?_)\d+(?=[\"\s_])"
    r"|((?:PartitionedCall-|pyfunc_|hash_table_|table_))[\w-]*\d[\w-]*"
)
"""Names with numbers that TensorFlow counts up in a process: the part before the number."""

OF_GENERATORS = ("Dataset_from_generator", "Dataset_flat_map_flat_map_fn")
"""Names of functions of tf.data's own, which hold the number of a generator."""


def fingerprint(graph):
    """A hash of a graph's operations with their names, attributes, inputs and functions."""
    text = COUNTED.sub(lambda found: found[1] or found[2], str(graph.as_graph_def()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def described(graphs):
    """The hashes of graphs, in no order, by the name of the function that each was traced from."""
    found = collections.defaultdict(set)
    for graph in graphs:
        if not graph.name.startswith(OF_GENERATORS):
            found[re.sub(r"\d+", "", graph.name)].add(fingerprint(graph))
    return {name: sorted(each) for name, each in sorted(found.items())}


@contextlib.contextmanager
def noting_graphs():
    """In the body, a list of the graphs that TensorFlow has made in it so far."""
    graphs = []
    kind = tf.__internal__.FuncGraph
    begin = kind.__init__

    def noting(self, *arguments, **named):
        begin(self, *arguments, **named)
        graphs.append(self)

    kind.__init__ = noting
    try:
        yield graphs
    finally:
        kind.__init__ = begin


def graphs_of(config):
    """The description of all graphs that are made from reading a minibatch to predicting it."""
    keras.utils.clear_session(free_memory=False)
    with noting_graphs() as graphs:
        module = load_module(config.model_zoo, config.model_def)
        data = JobData(config, module)
        pipeline = data.pipeline("training")
        specs = pipeline.features_spec, pipeline.labels_spec
        model = ServedModel(config, module, LocalServers(), *specs, 0, Progress())
        model.register()
        (source,) = data.description().training
        records = pb.Range(source=source.name, end=min(config.batch_size, source.records))
        batch = next(pipeline.batches(records))
        model.compute(model.prepare(batch), 1)
        evaluator = Evaluator(model, module)
        evaluator.add(batch)
        model.predict_batch(batch.features)
    return described(graphs)


@pytest.mark.parametrize(
    "example",
    [each for each in examples() if each.engine == "tensorflow"],
    ids=lambda each: f"{each.data}-{each.model_def}",
)
def test_the_graphs_of_a_model_are_those_that_were_recorded(example, tmp_path, monkeypatch):
    config = JobConfig(
        model_def=example.model_def,
        model_zoo=str(example.folder),
        training_data=data_of(example.data),
        job_dir=str(tmp_path),
        batch_size=64,
    )
    if example.model_def == "retrieval.custom_model":
        found = analyze(open_reader(config.training_data, "--data", columns=["item"]))
        (tmp_path / "items.json").write_text(json.dumps(found))
        monkeypatch.setenv("ITEM_STATISTICS", str(tmp_path / "items.json"))
    name = f"{example.data}-{example.model_def}"
    found = graphs_of(config)
    if RECORDING:
        known.setdefault(VERSIONS, {})[name] = found
        RECORDED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    assert {"_training_step", "_trace", "_prediction", "_update_all"} < found.keys()
    assert found == known[VERSIONS][name]
