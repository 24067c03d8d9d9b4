"""Predictions in files and with the user's processor: each record's own, once."""

import json
from collections import OrderedDict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.config.job import JobConfig
from shoal.errors import UserCodeError, UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.module import load_module
from shoal.worker.engines.tensorflow.input.feed import InputPipeline
from shoal.worker.input.data import open_reader
from shoal.worker.input.modes import PREDICTION
from shoal.worker.outputs.prediction import PredictedRecords, PredictionWriter, _columns
from shoal.worker.outputs.prediction_output import begin_output, finish_output
from tests.worker.conftest import MODULE
from tests.worker.storage import patience

PROCESSOR = """
class PredictionOutputsProcessor:
    calls = []
    def process(self, PARAMETERS):
        self.calls.append((PARAMETERS))
    def commit(self, records):
        self.calls.append(records)
"""


@pytest.fixture
def output(tmp_path):
    return str(tmp_path / "out")


def config(output, in_order=False, token="", **more):
    return JobConfig(
        model_def="model.f",
        prediction_data="p",
        restore_from="r",
        command="predict",
        output=output,
        in_order=in_order,
        token=token,
        **more,
    )


@pytest.fixture
def writer(write_module, output):
    def make(more="", *, in_order=False):
        module = load_module(write_module(MODULE + more), "model.custom_model")
        begin_output(config(output, in_order))
        return PredictionWriter(config(output, in_order), module, 5, patience())

    return make


@pytest.fixture
def finished(output):
    """Complete the output; what is then in it."""

    def finish(total):
        finish_output(config(output), total)
        return predictions(output)

    return finish


def manifest(output):
    with open(f"{output}/_manifest.json") as file:
        return json.load(file)


def predictions(output):
    table = pq.read_table(output)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("in_order", [False, True], ids=["parts", "one file"])
def test_the_folder_is_in_the_inputs_order_and_complete_when_all_is_there(
    writer, output, in_order, tmp_path
):
    write = writer(in_order=in_order).write
    tasks = [("/b/part.csv", 0, 2, 2), ("/a/part.csv", 0, 1, 0), ("/a/part.csv", 1, 2, 1)]
    for source, start, end, position in tasks:
        values = tf.range(position, position + end - start, dtype=tf.float32)[:, None]
        write(pb.Range(source=source, start=start, end=end), position, [values])
    assert not (tmp_path / "out").exists()
    # What a killed worker left of a part and of the manifest.
    for left in (".part-000000000000000.parquet.7.partial", "._manifest.json.8.partial"):
        (tmp_path / ".out.shoal-partial" / left).write_bytes(b"PAR")
    for _ in range(2):  # a worker may die when it has done so
        finish_output(config(output, in_order), 4)
        assert predictions(output) == [
            ("/a/part.csv", 0, 0.0),
            ("/a/part.csv", 1, 1.0),
            ("/b/part.csv", 0, 2.0),
            ("/b/part.csv", 1, 3.0),
        ]
        files = manifest(output)["files"]
        assert manifest(output)["complete"] is True
        assert len(files) == (1 if in_order else 3)
        there = {path.name for path in (tmp_path / "out").iterdir()}
        assert there == {*files, "_manifest.json"}
    begin_output(config(output, in_order))  # by a worker that comes late
    assert manifest(output)["complete"] is True
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def test_earlier_predictions_stay_until_all_of_the_new_ones_are_there(writer, output):
    def write(value):
        begin_output(given)
        PredictionWriter(given, made._module, 5, patience()).write(
            pb.Range(source="s", start=0, end=1), 0, [tf.constant([value])]
        )

    made, given = writer(), config(output)
    write(0.5)
    finish_output(given, 1)
    given = config(output, token="another job")
    with pytest.raises(UserError, match=r"is not empty; .* replace it with --overwrite"):
        begin_output(given)
    given = config(output, token="another job", overwrite=True)
    write(0.75)
    assert predictions(output) == [("s", 0, 0.5)]
    finish_output(given, 1)
    assert predictions(output) == [("s", 0, 0.75)]


def test_a_folder_that_is_not_shoals_is_never_filled(writer, output, tmp_path):
    """As on Kubernetes, where the client sees no folder of the pods, and checks none."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"--output: .*shoal did not write its content"):
            begin_output(config(output, overwrite=overwrite))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_a_range_written_twice_is_there_once(writer, finished):
    write = writer().write
    for value in (0.5, 0.75):
        write(pb.Range(source="s", start=3, end=4), 0, [tf.constant([value])])
    assert finished(1) == [("s", 3, 0.75)]


def test_a_missing_part_is_told(writer, output):
    write = writer().write
    for position in (0, 2, 3):
        write(pb.Range(source="s", start=position, end=position + 1), position, [tf.zeros(1)])
    with pytest.raises(UserError, match="predictions of the records from 1 on are not in"):
        finish_output(config(output), 4)


def test_outputs_by_name_of_further_axes_and_ragged(writer, output, finished):
    ragged = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
    none = tf.ones([2, 0, 3])
    writer().write(
        pb.Range(source="s", start=0, end=2),
        0,
        [{"b": tf.constant([[1.0], [2.0]]), "a": tf.ones([2, 3]), "c": ragged, "d": none}],
    )
    assert finished(2) == [
        ("s", 0, [1.0] * 3, 1.0, [1, 2], []),
        ("s", 1, [1.0] * 3, 2.0, [], []),
    ]
    assert pq.read_table(output).column_names == ["source", "record", "a", "b", "c", "d"]


@pytest.mark.parametrize("in_order", [False, True])
def test_the_type_of_an_output_is_that_of_its_dtype_in_each_task(writer, output, in_order):
    """Also where all lists are empty, and where the values would pass for another type."""
    write = writer(in_order=in_order).write
    for position, lists in enumerate(([[[0.5], []]], [[]], [[[]]])):
        write(
            pb.Range(source="s", start=position, end=position + 1),
            position,
            [
                {
                    "lists": tf.ragged.constant(lists, tf.float32, ragged_rank=2),
                    "words": tf.ragged.constant([["a"] * position], tf.string),
                    "small": tf.constant([position + 0.5], tf.bfloat16),
                    "sparse": tf.sparse.from_dense([[0.0, float(position)]]),
                }
            ],
        )
    finish_output(config(output, in_order), 3)
    table = pq.read_table(output).sort_by("record")
    kinds = [str(table.schema.field(name).type.value_type) for name in ("words", "sparse")]
    assert kinds == ["binary", "float"]
    assert table.schema.field("lists").type.value_type.value_type == pa.float32()
    assert table["lists"].to_pylist() == [[[0.5], []], [], [[]]]
    assert table["words"].to_pylist() == [[], [b"a"], [b"a", b"a"]]
    assert table["small"].to_pylist() == [0.5, 1.5, 2.5]
    assert table["sparse"].to_pylist() == [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"source": tf.ones(1)}, "the output 'source' has the name of a column that tells"),
        ({"record": tf.ones(1)}, "the output 'record' has the name of a column that tells"),
        (tf.ones(1, tf.complex64), "the output 'prediction' cannot be written as Parquet"),
    ],
)
def test_outputs_that_no_column_holds_are_told_by_name(writer, outputs, message):
    with pytest.raises(UserError, match=message):
        writer().write(pb.Range(source="s", start=0, end=1), 0, [outputs])


@pytest.mark.parametrize("outputs", [[], [tf.constant([0.5])]], ids=["all", "one"])
def test_a_feed_that_drops_records_is_refused(writer, outputs):
    with pytest.raises(UserError, match=r"feed\(\) of model.py gave . elements for the 2 records"):
        writer().write(pb.Range(source="s", start=3, end=5), 0, outputs)


def test_a_feed_that_shuffles_is_refused(write_module, numbers):
    text = MODULE.replace("dataset.map(parse)", "dataset.map(parse).shuffle(9).prefetch(1)")
    module = load_module(write_module(text), "model.custom_model")
    flag = "--prediction-data"
    with pytest.raises(UserError, match=r"feed\(\) of model.py shuffles in mode 'prediction'"):
        InputPipeline(open_reader(numbers, flag), module, PREDICTION, flag, 10)


@pytest.mark.parametrize(
    "parameters", ["predictions, worker_id", "predictions, worker_id, records"]
)
def test_a_processor_gets_batches_with_their_records_and_commits(writer, parameters):
    made = writer(PROCESSOR.replace("PARAMETERS", parameters))
    batches = [tf.constant([0.25, 0.5]), tf.constant([0.75])]
    made.write(pb.Range(source="s", start=4, end=7), 104, batches)
    *processed, committed = made._processor._process.__self__.calls
    assert committed == PredictedRecords("s", 4, 7, 104)
    assert [len(call[0]) for call in processed] == [2, 1]
    assert {call[1] for call in processed} == {5}
    if "records" in parameters:
        expected = [PredictedRecords("s", 4, 6, 104), PredictedRecords("s", 6, 7, 106)]
        assert [call[2] for call in processed] == expected
        assert len(expected[0]) == 2


def test_a_processor_without_process_or_of_other_parameters_is_refused(writer):
    with pytest.raises(UserError, match="has no method process"):
        writer("class PredictionOutputsProcessor: pass")
    with pytest.raises(UserError, match=r"must take \(predictions, worker_id\) or"):
        writer(PROCESSOR.replace("PARAMETERS", "predictions"))


def test_an_exception_in_commit_is_the_users(writer, output):
    text = PROCESSOR.replace("PARAMETERS", "predictions, worker_id")
    made = writer(text.replace("self.calls.append(records)", "raise OSError('no database')"))
    with pytest.raises(UserCodeError, match=r"commit\(\) of model.py raised OSError: no database"):
        made.write(pb.Range(source="s", start=0, end=1), 0, [tf.zeros(1)])


def test_the_columns_of_an_ordered_dict_are_its_own():
    outputs = OrderedDict(b=tf.constant([1.0, 2.0]), a=tf.constant([3.0, 4.0]))
    columns = _columns([outputs, outputs])
    found = {name: column.to_pylist() for name, column in columns.items()}
    assert found == {"a": [3.0, 4.0] * 2, "b": [1.0, 2.0] * 2}
