"""User modules and data for the worker's tests."""

import dataclasses
import itertools
import textwrap
from importlib.util import cache_from_source
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.worker.code.module import load_module
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.first_rows import write_first_rows
from shoal.worker.reports.progress import Progress
from tests.worker.exported import Exports
from tests.worker.networks import CONFIG, LABELS_SPEC, SPEC, network, served_embedding

MODULE = """
import keras
import tensorflow as tf

def custom_model():
    return keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def optimizer():
    return keras.optimizers.SGD(0.1)

def feed(dataset, mode, metadata):
    def parse(record):
        features = tf.cast(record["x"], tf.float32)[None]
        if mode == "prediction":
            return features
        return features, tf.cast(record["y"], tf.float32)[None]
    return dataset.map(parse)
"""


@pytest.fixture
def write_module(tmp_path):
    """Write a module file below tmp_path/zoo and return the folder."""

    def write(text=MODULE, name="model", **replacements):
        for old, new in replacements.items():
            text = text.replace(old, new)
        folder = tmp_path / "zoo"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        # Python would take one of the same length, written in the same second, for this one.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
        return str(folder)

    return write


@pytest.fixture(scope="session")
def exports(tmp_path_factory):
    """Exports of the tests so far, which one process without shoal loads at the end."""
    return Exports(tmp_path_factory.mktemp("exports"))


@pytest.fixture
def module(write_module):
    """The module of MODULE, or of the text given."""

    def load(text=MODULE, function="custom_model"):
        return load_module(write_module(text), f"model.{function}")

    return load


@pytest.fixture
def parquet(tmp_path):
    """Write columns to a Parquet file and return its path."""

    def write(name="data.parquet", **columns):
        path = str(tmp_path / name)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=16)
        return path

    return write


@pytest.fixture
def numbers(parquet):
    """100 records with x = 0..99 and y = 2x."""
    return parquet(x=np.arange(100), y=2 * np.arange(100))


@pytest.fixture
def served(module, server_group, cluster, tmp_path):
    """A ServedModel of a build function and optimizer; its servers have the rows that it brings."""
    folders = (tmp_path / f"checkpoints-{number}" for number in itertools.count())

    def make(
        build=None,
        optimizer=None,
        servers=2,
        group=None,
        spec=SPEC,
        worker=0,
        incarnation=0,
        labels_spec=LABELS_SPEC,
        config=CONFIG,
        loss=keras.losses.binary_crossentropy,
        loss_weights=None,
        weights_spec=None,
        class_weight=None,
    ):
        # Names count anew, as in a worker's own process. Without the collection of garbage,
        # which takes longer than the building of a model.
        keras.utils.clear_session(free_memory=False)
        loaded = module()
        object.__setattr__(loaded, "custom_model", build or (lambda: network(served_embedding)))
        object.__setattr__(loaded, "optimizer", optimizer or (lambda: keras.optimizers.SGD(0.5)))
        object.__setattr__(loaded, "loss", loss)
        object.__setattr__(loaded, "loss_weights", loss_weights)
        object.__setattr__(loaded, "class_weight", class_weight)
        config = dataclasses.replace(config, checkpoint_dir=str(next(folders)))
        if group is None:
            group = server_group(cluster(servers, first_rows=config.first_rows))
        made = ServedModel(
            *(config, loaded, group, spec, labels_spec, worker, Progress(), incarnation),
            weights_spec=weights_spec,
        )
        if config.first_rows and any(True for _ in made.given_rows()):
            write_first_rows(made, config)
        made.register()
        made.let_go()
        made.group = group
        return made

    return make
