"""A whole job on data of every type that the page of data names, present and missing."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.config.job import JobConfig
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import load_module
from shoal.worker.input.data import JobData
from tests.jobs.running import ZOO, run
from tests.typed_data import ALL, GAP, filled, table

pytestmark = pytest.mark.job

RECORDS = 80


def test_a_job_trains_every_type_once_and_its_saved_model_answers_as_its_evaluation(tmp_path):
    path = tmp_path / "data.parquet"
    # Half of their values are missing; those without any would be more of the same to trace.
    records = pa.concat_tables([table(ALL)] * (RECORDS // 2)).drop_columns(ALL)
    pq.write_table(records, path, row_group_size=10)
    data = {
        "model_def": "typed.custom_model",
        "training_data": str(path),
        "validation_data": str(path),
        "fill_missing": filled(ALL)["fill_missing"],
        "missing_mask": "bool" + GAP,
    }
    ended = run(
        "train",
        tmp_path,
        "typed",
        output=tmp_path / "out",
        export="savedmodel",
        batch_size=5,
        num_minibatches_per_task=2,
        workers="2",
        servers="2",
        **data,
    ).succeeded()
    assert ended.ledger["total"] == ended.ledger["trained_once"] == RECORDS
    config = JobConfig(model_zoo=str(ZOO), batch_size=RECORDS, **data)
    module = load_module(config.model_zoo, config.model_def)
    pipeline = JobData(config, module).pipeline("evaluation")
    (batch,) = pipeline.batches(pb.Range(source=pipeline.first_source, end=RECORDS))
    saved = tf.saved_model.load(str(tmp_path / "out" / "saved_model"))
    losses = module.loss(batch.labels, saved.serve(batch.features))
    assert np.mean(losses) == pytest.approx(ended.result["metrics"]["loss"], rel=1e-5)
    for name in ("words", "numbers"):
        assert pq.read_table(tmp_path / "out" / "tables" / f"{name}.parquet").num_rows > 1
