"""Every type that the page of data names, in every form, as features and labels."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.config.job import JobConfig
from shoal.data.frames import is_path, write_data
from shoal.data.shaped import MASK
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import load_module
from shoal.worker.input.data import JobData
from shoal.worker.inspect import check
from tests.typed_data import FORMS, GAP, NUMBERS, TEXTS, filled, parts, table

pytestmark = pytest.mark.slow

ZOO = str(Path(__file__).parents[1] / "jobs" / "zoo")


def config_of(form, folder):
    """The configuration of `shoal check` for data in a form, and the columns."""
    data, names = FORMS[form](folder)
    if not is_path(data):
        path = folder / "written.parquet"
        write_data("training_data", data, path, lambda _: None)
        data = path
    given = {"model_def": "typed.custom_model", "model_zoo": ZOO, "training_data": str(data)}
    return JobConfig(command="check", **given, **filled(names)), names


def fits(name, spec):
    """Whether a column's tensors are of the type and rank that the page says."""
    shape, kind = parts(name)
    rank = {"": 0, "list_": 1, "lists_": 2, "fixed_": 1}[shape]
    if kind in NUMBERS:
        kinds = {tf.as_dtype(kind)}
    elif kind in TEXTS:
        kinds = {tf.string}
    else:
        kinds = {tf.float64} if kind == "cents" else {tf.int32, tf.int64}
    return spec.dtype in kinds and spec.shape.rank == rank + 1


@pytest.mark.parametrize("form", FORMS)
def test_every_type_is_a_feature_and_a_label(tmp_path, form):
    config, names = config_of(form, tmp_path)
    module = load_module(config.model_zoo, config.model_def)
    pipeline = JobData(config, module).pipeline("training")
    (batch,) = pipeline.batches(pb.Range(source=pipeline.first_source, start=0, end=2))
    specs = pipeline.features_spec
    assert pipeline.labels_spec == specs
    for columns in (batch.features, batch.labels):
        assert sorted(columns) == sorted(
            name + end for name in names for end in ("", GAP, GAP + MASK)
        )
        for name in names:
            assert fits(name, specs[name]), (name, specs[name])
            assert fits(name, specs[name + GAP]), (name, specs[name + GAP])
            assert repr(columns[name + GAP]) == repr(columns[name]), name
            assert specs[name + GAP + MASK].dtype == tf.bool


def test_check_trains_a_batch_of_types_of_every_row(tmp_path):
    """As features and labels, with values that are missing; the model is the same in each form."""
    path = tmp_path / "data.parquet"
    names = ["bool", "uint64", "float16", "string", "cents", "time", "list_bool", "fixed_string"]
    pq.write_table(table(names), path)
    given = {"model_def": "typed.custom_model", "model_zoo": ZOO, "training_data": str(path)}
    config = JobConfig(command="check", export="none", **given, **filled(names))
    assert check.inspect(config).faults == []
