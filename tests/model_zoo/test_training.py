"""Every model of the zoo trains on its data, on real servers, and is better than a guess."""

import itertools
import json
from pathlib import Path

import keras
import pytest
import tensorflow as tf

from shoal.client.run.examples import examples
from shoal.config.job import JobConfig
from shoal.data import open_reader
from shoal.data.samples.analysis import analyze
from shoal.model_zoo.census import prepare as census
from shoal.model_zoo.criteo import prepare as criteo
from shoal.model_zoo.digits import prepare as digits
from shoal.model_zoo.iris import prepare as iris
from shoal.model_zoo.movielens import prepare as movielens
from shoal.model_zoo.movielens_1m import prepare as movielens_1m
from shoal.model_zoo.online import prepare as online
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.keras_internals import noting_crossentropies
from shoal.worker.code.module import load_module
from shoal.worker.engines.tensorflow.model.evaluation import Evaluator
from shoal.worker.input.data import JobData
from shoal.worker.model.model import ServedModel
from shoal.worker.model.silent_mistakes import of_data, of_loss
from shoal.worker.reports.progress import Progress
from tests.prepared import prepared_once

pytestmark = pytest.mark.slow

BUILD = Path(__file__).parents[2] / "build"
BATCH, STEPS, BATCHES = 256, 40, 8
"""Records of a batch, steps, and batches that are evaluated, of other records where the data
has a file for that."""

BASELINES = {
    "census": ("auc", 0.5, 0.8),
    "criteo": ("auc", 0.5, 0.53),
    "digits": ("accuracy", 0.11, 0.6),
    "iris": ("accuracy", 0.34, 0.8),
    "movielens": ("auc", 0.5, 0.58),
    "movielens_1m": ("auc", 0.5, 0.6),
    "online": ("auc", 0.5, 0.6),
    "movielens-retrieval.custom_model": ("recall_at_100", 100 / 1682, 0.12),
    "movielens-two_tower.custom_model": ("score_auc", 0.5, 0.58),
}
"""Data set, or one model of it -> metric, its value of a guess that knows the most frequent
label alone, and what must be reached in so few steps."""

PREPARED = {
    "census": ("zoo/census/train.csv", census.prepare),
    "criteo": (
        "zoo/criteo/train.parquet",
        lambda folder: criteo.prepared(folder, 2000, 10240, 2048),
    ),
    "digits": ("zoo/digits/train.parquet", digits.prepare),
    "iris": ("zoo/iris/iris.csv", iris.prepare),
    "movielens": ("movielens/train.parquet", movielens.prepare),
    "movielens_1m": ("movielens-1m/train.parquet", movielens_1m.prepare),
    "online": ("zoo/online/train.parquet", online.prepare),
}
"""Data set -> its file below build/, and what writes it there, as the last of its files."""


def data_of(name):
    file, prepare = PREPARED[name]
    path = BUILD / file
    return str(prepared_once(path.parent, path.name, prepare) / path.name)


def validation_of(name):
    """The file of other records beside the training data; iris has none."""
    path = Path(data_of(name))
    return str(path.with_name(path.name.replace("train", "validation")))


@pytest.mark.parametrize(
    "example",
    [each for each in examples() if each.engine == "tensorflow"],
    ids=lambda each: f"{each.data}-{each.model_def}",
)
def test_it_is_better_than_a_guess(example, server_group, tmp_path, monkeypatch):
    keras.utils.clear_session(free_memory=False)
    config = JobConfig(
        model_def=example.model_def,
        model_zoo=str(example.folder),
        training_data=data_of(example.data),
        validation_data=validation_of(example.data),
        job_dir=str(tmp_path),
        batch_size=BATCH,
    )
    if example.model_def == "retrieval.custom_model":
        found = analyze(open_reader(config.training_data, "--data", columns=["item"]))
        (tmp_path / "items.json").write_text(json.dumps(found))
        monkeypatch.setenv("ITEM_STATISTICS", str(tmp_path / "items.json"))
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
    (source,) = data.description().training
    (others,) = data.description().validation

    def batches(mode, name, records, count):
        end = min(records, count * BATCH)
        return list(data.pipeline(mode).batches(pb.Range(source=name, end=end)))

    with noting_crossentropies() as traced:
        for batch in itertools.islice(
            itertools.cycle(batches("training", source.name, source.records, STEPS)), STEPS
        ):
            model.train_batch(batch, 1)
    first = batches("training", source.name, source.records, STEPS)
    assert of_loss(model, batch, traced) == []
    assert of_data(model, first, source.name, source.records) == []
    evaluator = Evaluator(model, module)
    for batch in batches("evaluation", others.name, others.records, BATCHES):
        evaluator.add(batch)
    metrics = evaluator.finish(evaluator.states())
    name, guess, least = BASELINES.get(
        f"{example.data}-{example.model_def}", BASELINES[example.data]
    )
    assert guess < least <= metrics[name]
    assert tf.nest.flatten(model.predict_batch(batch.features))


def test_the_list_has_every_model_of_the_zoo():
    found = {(each.data, each.model_def) for each in examples()}
    assert {data for data, _ in found} == set(PREPARED)
    assert ("digits", "cnn.Cnn") in found
    assert ("movielens", "two_tower.custom_model") in found
    assert ("criteo", "dlrm_dcn_v2.custom_model") in found
    assert ("criteo", "dlrm_torch.DLRM") in found
    assert len(found) == 18
    assert all(each.about.endswith(".") for each in examples())
