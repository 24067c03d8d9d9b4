"""Every model of the zoo trains on its data, on real servers, and the loss falls."""

import itertools
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from shoal.config import JobConfig
from shoal.examples import examples
from shoal.model_zoo.census import prepare as census
from shoal.model_zoo.criteo import prepare as criteo
from shoal.model_zoo.digits import prepare as digits
from shoal.model_zoo.iris import prepare as iris
from shoal.model_zoo.movielens import prepare as movielens
from shoal.worker.data import JobData
from shoal.worker.evaluation import Evaluator
from shoal.worker.heartbeat import Progress
from shoal.worker.model import ServedModel
from shoal.worker.module import load_module

BUILD = Path(__file__).parents[2] / "build"
STEPS = 12

PREPARED = {
    "census": ("zoo/census/train.csv", census.prepare),
    "criteo": ("zoo/criteo/train.parquet", lambda folder: criteo.prepared(folder, 2000, 8192, 64)),
    "digits": ("zoo/digits/train.parquet", digits.prepare),
    "iris": ("zoo/iris/iris.csv", iris.prepare),
    "movielens": ("movielens/train.parquet", movielens.prepare),
}
"""Data set -> its file below build/, and what writes it there, once."""


def data_of(name):
    file, prepare = PREPARED[name]
    path = BUILD / file
    if not path.exists():
        prepare(path.parent)
    return str(path)


@pytest.mark.parametrize(
    "example", list(examples()), ids=lambda each: f"{each.data}-{each.model_def}"
)
def test_the_loss_falls(example, server_group, tmp_path):
    keras.utils.clear_session()
    config = JobConfig(
        model_def=example.model_def,
        model_zoo=str(example.folder),
        training_data=data_of(example.data),
        job_dir=str(tmp_path),
        minibatch_size=128,
    )
    module = load_module(config.model_zoo, config.model_def)
    data = JobData(config, module)
    pipeline = data.pipeline("training")
    model = ServedModel(
        config,
        module,
        server_group(servers=2),
        pipeline.features_spec,
        pipeline.labels_spec,
        0,
        Progress(),
    )
    model.register()
    records = data.first_range("training")
    (source,) = data.description().training
    records.end = min(source.records, STEPS * config.minibatch_size)
    evaluator = Evaluator(model, module)

    def loss():
        evaluator.reset()
        evaluator.add(first)
        return evaluator.finish(evaluator.states())["loss"]

    batches = list(pipeline.batches(records))
    first = batches[0]
    before = loss()
    for batch in itertools.islice(itertools.cycle(batches), STEPS):
        model.train_batch(batch, 1)
    assert loss() < 0.999 * before
    assert tf.nest.flatten(model.predict_batch(first.features))


def test_the_list_has_every_model_of_the_zoo():
    found = {(each.data, each.model_def) for each in examples()}
    assert {data for data, _ in found} == set(PREPARED)
    assert ("digits", "cnn.Cnn") in found
    assert ("movielens", "two_tower.custom_model") in found
    assert len(found) == 13
    assert all(each.about.endswith(".") for each in examples())
