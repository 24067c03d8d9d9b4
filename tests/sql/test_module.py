"""Generated modules: each function of COLUMN against Keras's layers by hand, and shoal check.

The one file of tests/sql/ that has TensorFlow.
"""

import importlib.util
import math
import subprocess
import sys

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.config.groups.data_format import text_of
from shoal.config.job import JobConfig
from shoal.data.opening import open_reader
from shoal.data.samples.analysis import analyze
from shoal.layers import lookup_with
from shoal.preprocessing import Discretization, Hashing
from shoal.sql import module
from shoal.sql.columns import SelectSchema
from shoal.sql.models.plan import Plan
from shoal.sql.models.select import said
from shoal.worker.inspect import check
from tests.sql.statements import Terms, planned_of

TABLE = pa.table(
    {
        "age": pa.array([20, None, 40, 60], pa.int64()),
        "share": [0.5, -1.0, 0.25, 3.0],
        "member": [True, False, True, True],
        "user": pa.array([7, 3, 7, 0], pa.int32()),
        "sex": ["m", "f", "m", ""],
        "tags": pa.array([[1, 2], [], [5], [2, 2, 0]], pa.list_(pa.int64())),
        "words": [["a", "b"], ["a"], [], ["c"]],
        "pair": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int64(), 2)),
        "spelled": ["3,1", "", "2", "0,0"],
        "weighted": ["3:0.5,1:2", "", "2", "0:-1"],
        "vector": ["1,2.5", "0,0", "-1,3", "4,4"],
        "lists": pa.array([[1.0, 2.0], [0.5, 1.5], [3.0, 4.0], [7.0, 8.0]]),
        "fixed": pa.array([[1.0, 2], [0.5, 1.5], [3, 4], [7, 8]], pa.list_(pa.float32(), 2)),
        "semicolons": ["1;2", "0;0", "-1;3", "4;4"],
        "income": [0, 1, 0, 1],
    }
)
FILLED = TABLE.set_column(0, "age", pa.array([20, 40, 40, 60]))


@pytest.fixture(scope="module")
def statistics(tmp_path_factory):
    path = tmp_path_factory.mktemp("select") / "select.parquet"
    pq.write_table(TABLE, path)
    return analyze(open_reader(str(path), "--data"))


def tensors(table):
    """The columns of a minibatch, as feed_batch is given them."""
    found = {"age_missing": tf.constant([False, True, False, False])}
    for name in table.column_names:
        values = table[name].to_pylist()
        kind = table.schema.field(name).type
        ragged = pa.types.is_list(kind)
        integers = pa.types.is_integer(kind.value_type if ragged else kind)
        dtype = tf.int64 if integers and name != "user" else None
        found[name] = (tf.ragged if ragged else tf).constant(values, dtype)
    found["lists"] = tf.cast(found["lists"], tf.float64)
    found["share"] = tf.cast(found["share"], tf.float64)
    found["tags"] = tf.cast(found["tags"], tf.int64)
    return found


COLUMNS = tensors(FILLED)


def imported(text, folder, name="model"):
    """The module of a text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def rows(layer, ids):
    """Rows of a table as numbers that tell the id: the n-th element is sin((id % 1009) * n)."""
    numbers = tf.cast(tf.math.floormod(ids, 1009), tf.float32)
    return tf.sin(numbers[..., None] * tf.range(1.0, layer.output_dim + 1))


def looked_up(ids, dim):
    layer = keras.layers.Layer()
    layer.output_dim = dim
    return rows(layer, tf.cast(ids, tf.int64))


def pooled(ragged, dim, combiner="sum", weights=None):
    """The rows of lists, one list after the other."""
    found = []
    for at, ids in enumerate(ragged.to_list()):
        vectors = looked_up(np.array(ids, np.int64), dim).numpy().reshape(-1, dim)
        scale = np.ones(len(ids)) if weights is None else np.array(weights[at])
        total = (vectors * scale[:, None]).sum(axis=0)
        divisor = {"sum": 1, "mean": scale.sum(), "sqrtn": math.sqrt((scale**2).sum())}[combiner]
        found.append(total / (divisor or 1))
    return np.array(found)


def given_to_the_first_layer(made, columns=COLUMNS):
    """The numbers that the deep part of a model is given for a minibatch."""
    with lookup_with(rows):
        model = made.custom_model()
        first = next(each for each in model.layers if isinstance(each, keras.layers.Dense))
        features = made.feed_batch(columns, "prediction", None)
        return keras.Model(model.input, first.input)(features).numpy()


t = Terms()
LISTS = tf.ragged.constant([[3, 1], [], [2], [0, 0]], dtype=tf.int64)
WEIGHTS = [[0.5, 2], [], [1], [-1]]
MEAN, STDDEV = 40, math.sqrt(800 / 3)


def normalized(column, mean, stddev):
    layer = keras.layers.Normalization(axis=None, mean=mean, variance=stddev**2)
    return layer(tf.cast(COLUMNS[column], tf.float32))[:, None]


def strings(*columns):
    return tf.strings.join(columns, "\x1f")


def encoded(ids, size, mode="multi_hot"):
    """Keras's own, list by list."""
    layer = keras.layers.CategoryEncoding(size, mode)
    return np.array(
        [layer(np.array(each, np.int64)) if each else np.zeros(size) for each in ids.to_list()]
    )


AGES = tf.cast(COLUMNS["age"], tf.float32)
ROWS = {
    "age": lambda: tf.concat(
        [normalized("age", MEAN, STDDEV), [[0.0], [1.0], [0.0], [0.0]]], axis=1
    ),
    "share": lambda: normalized("share", 0.6875, np.std([0.5, -1, 0.25, 3])),
    "member": lambda: normalized("member", 0.75, math.sqrt(3 / 16)),
    "user": lambda: normalized("user", 4.25, np.std([7, 3, 7, 0])),
    t.NUMERIC("user"): lambda: normalized("user", 4.25, np.std([7, 3, 7, 0])),
    "sex": lambda: looked_up(Hashing()(COLUMNS["sex"]), 8),
    "tags": lambda: pooled(COLUMNS["tags"], 8),
    "words": lambda: pooled(Hashing()(COLUMNS["words"]), 8),
    "fixed": lambda: COLUMNS["lists"].to_tensor(),
    t.EMBEDDING("user", 4): lambda: looked_up(COLUMNS["user"], 4),
    t.EMBEDDING("sex", 4): lambda: looked_up(Hashing()(COLUMNS["sex"]), 4),
    t.EMBEDDING("member", 4): lambda: looked_up([1, 0, 1, 1], 4),
    t.EMBEDDING("tags", 4, "mean"): lambda: pooled(COLUMNS["tags"], 4, "mean"),
    t.EMBEDDING("pair", 4, "sum"): lambda: pooled(tf.ragged.constant(TABLE["pair"].to_pylist()), 4),
    t.EMBEDDING(t.CATEGORY_ID("user", 8), 4): lambda: looked_up(COLUMNS["user"], 4),
    t.EMBEDDING(t.CATEGORY_ID("spelled", 8), 4): lambda: pooled(LISTS, 4),
    t.EMBEDDING(t.SEQ_CATEGORY_ID("spelled", 8), 4, "sqrtn"): lambda: pooled(LISTS, 4, "sqrtn"),
    t.EMBEDDING(t.SPARSE("spelled", 8, "COMMA"), 4): lambda: pooled(LISTS, 4),
    t.EMBEDDING(t.CATEGORY_HASH("sex", 10), 4): lambda: looked_up(Hashing(10)(COLUMNS["sex"]), 4),
    t.CATEGORY_HASH("sex"): lambda: looked_up(Hashing()(COLUMNS["sex"]), 8),
    t.EMBEDDING(t.CATEGORY_HASH(t.SPARSE("spelled", 9, ",", "string"), 10), 4): lambda: pooled(
        Hashing(10)(tf.ragged.constant([["3", "1"], [], ["2"], ["0", "0"]])), 4
    ),
    t.EMBEDDING(
        t.WEIGHTED_CATEGORY(t.SPARSE("weighted", 9, ",", "int", ":", "float")), 4
    ): lambda: (
        pooled(LISTS, 4, weights=[[0.5, 2], [], [1], [-1]], combiner="sum") * [[1], [1], [1], [1]]
    ),
    t.EMBEDDING(t.CATEGORY_ID(t.SPARSE("weighted", 9, ",", "int", ":", "float"), 9), 4): lambda: (
        pooled(tf.ragged.constant([[3, 1], [], [2], [0]], dtype=tf.int64), 4)
    ),
    t.INDICATOR(t.CATEGORY_ID("user", 8)): lambda: keras.layers.CategoryEncoding(8, "one_hot")(
        COLUMNS["user"]
    ),
    t.INDICATOR(t.CATEGORY_ID("tags", 6)): lambda: encoded(COLUMNS["tags"], 6),
    t.INDICATOR(t.CATEGORY_ID("pair", 9)): lambda: encoded(
        tf.ragged.constant(TABLE["pair"].to_pylist()), 9
    ),
    t.INDICATOR(t.BUCKET("age", [25, 50])): lambda: keras.layers.CategoryEncoding(3, "one_hot")(
        keras.layers.Discretization([25, 50])(AGES)
    ),
    t.EMBEDDING(t.BUCKET("age", [25, 50]), 4): lambda: looked_up(
        keras.layers.Discretization([25.0, 50.0])(AGES), 4
    ),
    t.INDICATOR(t.BUCKET("share", 2)): lambda: keras.layers.CategoryEncoding(2, "one_hot")(
        keras.layers.Discretization([0.25])(tf.cast(COLUMNS["share"], tf.float32))
    ),
    t.CROSS(["sex", "user"]): lambda: looked_up(
        Hashing()(strings(COLUMNS["sex"], tf.strings.as_string(COLUMNS["user"]))), 1
    ),
    t.EMBEDDING(t.CROSS(["sex", t.BUCKET("age", [30]), "member"], 100), 4): lambda: looked_up(
        Hashing(100)(
            strings(
                COLUMNS["sex"],
                tf.strings.as_string(Discretization([30])(AGES)),
                ["true", "false", "true", "true"],
            )
        ),
        4,
    ),
    t.DENSE("vector", 2): lambda: [[1, 2.5], [0, 0], [-1, 3], [4, 4]],
    t.DENSE("semicolons", [2, 1], ";", "int"): lambda: [[1, 2], [0, 0], [-1, 3], [4, 4]],
    t.DENSE("lists", 2): lambda: COLUMNS["lists"].to_tensor(),
    t.DENSE("pair", 2): lambda: TABLE["pair"].to_pylist(),
}
"""Terms of COLUMN, and the numbers that Keras's layers by hand make of COLUMNS."""


def planned(statistics, label, *terms, **parts):
    return planned_of(SelectSchema.of(TABLE.schema), statistics, label, *terms, **parts)


@pytest.mark.parametrize(
    "term", ROWS, ids=lambda term: term if isinstance(term, str) else said(term)
)
def test_a_term_is_what_keras_makes_by_hand(term, statistics, tmp_path):
    made = imported(module.text(planned(statistics, "income", term), "DNNClassifier"), tmp_path)
    expected = np.asarray(ROWS[term](), np.float32)
    np.testing.assert_allclose(given_to_the_first_layer(made), expected, atol=1e-5)


@pytest.mark.slow
def test_all_terms_together_are_the_same_in_a_graph(statistics, tmp_path):
    plan = planned(statistics, "income", *ROWS)
    assert Plan.from_json(plan.to_json()) == plan
    made = imported(module.text(plan), tmp_path)
    features, labels = tf.function(lambda: made.feed_batch(COLUMNS, "training", None))()
    assert labels.numpy().tolist() == [0, 1, 0, 1]
    eager = made.feed_batch(COLUMNS, "prediction", None)
    assert eager.keys() == features.keys()
    for name, value in eager.items():
        assert tf.reduce_all(tf.equal(value, features[name])).numpy(), name


@pytest.mark.parametrize("model", module.known_models)
def test_the_text_is_as_a_formatter_and_a_linter_want_it(model, statistics, tmp_path):
    label = "share" if model.endswith("Regressor") else "income"
    terms = [each for each in ROWS if "share" not in str(each)]
    dropout = {"model.dropout": 0.1} if "model.dropout" in module.known_attributes(model) else {}
    text = module.text(planned(statistics, label, *terms), model, dropout)
    path = tmp_path / "model.py"
    path.write_text(text)
    for command in (["check", "--select", "E,F,B,W,UP,RET,SIM"], ["format", "--check", "--diff"]):
        line = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--line-length",
            "100",
            "--isolated",
            str(path),
        ]
        done = subprocess.run(line, capture_output=True, text=True)
        assert done.returncode == 0, text + done.stdout + done.stderr


# ------------------------------------------------------------ whole models


def trained_once(made, columns, label):
    """The outputs of a model for a minibatch, and the loss, by Keras."""
    with lookup_with(rows):
        model = made.custom_model()
        features, labels = made.feed_batch(columns, "training", None)
        outputs = model(features)
    loss = keras.losses.get(made.loss)(labels, outputs)
    assert np.isfinite(np.asarray(loss)).all()
    made.optimizer()
    for metric in made.eval_metrics_fn().values():
        metric.update_state(labels, outputs)
        assert math.isfinite(float(metric.result()))
    return outputs.numpy()


@pytest.mark.parametrize("model", module.known_models)
def test_each_model_computes_what_its_label_wants(model, statistics, tmp_path):
    label = "share" if model.endswith("Regressor") else "income"
    plan = planned(statistics, label, "age", "user", "sex", "tags", t.CROSS(["sex", "user"]))
    outputs = trained_once(imported(module.text(plan, model), tmp_path), COLUMNS, label)
    assert outputs.shape == (4,)
    if label == "income":
        assert ((outputs > 0) & (outputs < 1)).all()


def deep_and_cross(made):
    model = made.custom_model()
    first, second = [each for each in model.layers if isinstance(each, keras.layers.Dense)][:2]
    return model, first, second


def test_deepfm_adds_the_products_of_all_pairs(statistics, tmp_path):
    plan = planned(statistics, "income", "sex", t.EMBEDDING("user", 4), "share")
    made = imported(module.text(plan, "DeepFM"), tmp_path)
    made.HIDDEN_UNITS = (1,)
    with lookup_with(rows):
        model = made.custom_model()
        for layer in model.layers:
            if isinstance(layer, keras.layers.Dense):  # the deep part and numbers give nothing
                layer.set_weights([np.zeros_like(each) for each in layer.get_weights()])
        chances = model(made.feed_batch(COLUMNS, "prediction", None)).numpy()
    ids = Hashing()(COLUMNS["sex"]), COLUMNS["user"]
    products = tf.reduce_sum(looked_up(ids[0], 4) * looked_up(ids[1], 4), axis=1)
    weights = sum(looked_up(each, 1)[:, 0] for each in ids)
    np.testing.assert_allclose(chances, tf.sigmoid(products + weights), rtol=1e-5)


def test_dcn_crosses_with_its_first_layer(statistics, tmp_path):
    plan = planned(statistics, "income", "share", "user")
    made = imported(module.text(plan, "DCN", {"model.cross_layers": 1}), tmp_path)
    model, cross, _ = deep_and_cross(made)
    cross.set_weights([np.eye(2), np.ones(2)])
    features = made.feed_batch(COLUMNS, "prediction", None)
    joined = next(each for each in model.layers if isinstance(each, keras.layers.Concatenate))
    numbers = features["numbers"].numpy()
    crossed = keras.Model(model.input, joined.input[0])(features).numpy()
    np.testing.assert_allclose(crossed, numbers * (numbers + 1) + numbers, rtol=1e-5)


def test_a_linear_model_has_a_weight_an_id_and_a_number(statistics, tmp_path):
    plan = planned(statistics, "income", "share", "sex", "tags")
    made = imported(module.text(plan, "LinearClassifier"), tmp_path)
    with lookup_with(rows):
        model = made.custom_model()
        (dense,) = [each for each in model.layers if isinstance(each, keras.layers.Dense)]
        dense.set_weights([np.array([[2.0]]), np.array([0.5])])
        features = made.feed_batch(COLUMNS, "prediction", None)
        chances = model(features).numpy()
    weights = looked_up(Hashing()(COLUMNS["sex"]), 1)[:, 0] + pooled(COLUMNS["tags"], 1)[:, 0]
    logits = weights + 2 * features["numbers"][:, 0] + 0.5
    np.testing.assert_allclose(chances, tf.sigmoid(logits), rtol=1e-5)
    assert {layer.name for layer in model.layers if hasattr(layer, "output_dim")} == {
        "linear_sex",
        "linear_tags",
    }


def test_a_combined_model_has_its_columns_where_for_says(statistics, tmp_path):
    plan = planned(
        statistics,
        "income",
        linear_feature_columns=[t.CROSS(["sex", "user"]), "share"],
        dnn_feature_columns=[t.EMBEDDING("sex", 4), "age"],
    )
    text = module.text(plan, "DNNLinearCombinedClassifier", {"linear_optimizer": "SGD"})
    made = imported(text, tmp_path)
    with lookup_with(rows):
        model = made.custom_model()
    tables = {each.name: each.output_dim for each in model.layers if hasattr(each, "output_dim")}
    assert tables == {"linear_sex_user": 1, "sex_vectors": 4}
    made_optimizers = made.optimizer()
    assert isinstance(made_optimizers["linear_*"], keras.optimizers.SGD)
    assert isinstance(made_optimizers["default"], keras.optimizers.Adagrad)


@pytest.mark.slow
@pytest.mark.parametrize("model", module.known_models)
def test_shoal_check_finds_nothing_at_fault(model, statistics, tmp_path):
    label = "share" if model.endswith("Regressor") else "income"
    terms = ["age", "user", "sex", "tags", t.INDICATOR(t.CATEGORY_ID("pair", 9))]
    plan = planned(statistics, label, *terms)
    name = f"of_{model.lower()}"
    (tmp_path / f"{name}.py").write_text(module.text(plan, model))
    pq.write_table(TABLE, tmp_path / "data.parquet")
    config = JobConfig(
        command="check",
        model_def=f"{name}.custom_model",
        model_zoo=str(tmp_path),
        training_data=str(tmp_path / "data.parquet"),
        job_dir=str(tmp_path / "checks"),
        fill_missing=text_of(plan.fill_missing),
        missing_mask=",".join(plan.missing_mask),
        # A model is exported as any other: one of each form of the label is enough.
        export="auto" if model.startswith("DNNLinear") else "none",
    )
    report = check.inspect(config)
    assert report.faults == []


# ------------------------------------------------------------ labels


SPECIES = pa.table(
    {
        "length": [1.0, 2.0, 3.0, 4.0],
        "species": ["iris", "rose", "iris", "aster"],
        "sign": [-1, 1, 1, -1],
        "member": [True, False, True, True],
        "rank": [0, 2, 1, 2],
    }
)


@pytest.fixture(scope="module")
def of_species(tmp_path_factory):
    path = tmp_path_factory.mktemp("species") / "select.parquet"
    pq.write_table(SPECIES, path)
    return analyze(open_reader(str(path), "--data"))


@pytest.mark.parametrize(
    ("label", "labels", "predictions", "answers"),
    [
        ("species", [1, 2, 1, 0], [[0.2, 0.3, 0.5], [0.8, 0.1, 0.1]], ["rose", "aster"]),
        ("sign", [0, 1, 1, 0], [0.1, 0.5], [-1, 1]),
        ("member", [1, 0, 1, 1], [0.4, 0.9], [False, True]),
        ("rank", [0, 2, 1, 2], [[0.2, 0.3, 0.5], [0.8, 0.1, 0.1]], [2, 0]),
        ("length", [1, 2, 3, 4], [1.5, -2], [1.5, -2]),
    ],
)
def test_a_label_is_learned_as_a_number_and_told_as_itself(
    label, labels, predictions, answers, of_species, tmp_path
):
    plan = planned_of(SelectSchema.of(SPECIES.schema), of_species, label)
    made = imported(module.text(plan), tmp_path)
    columns = {name: tf.constant(SPECIES[name].to_pylist()) for name in SPECIES.column_names}
    assert made.feed_batch(columns, "training", None)[1].numpy().tolist() == labels
    assert module.numbers(plan, "", SPECIES[label]).to_pylist() == labels
    assert module.answers(plan, "", np.array(predictions)).to_pylist() == answers
    assert plan.default_model == ("DNNRegressor" if label == "length" else "DNNClassifier")
    outputs = trained_once(made, columns, label)
    assert len(module.answers(plan, "", outputs)) == 4


@pytest.mark.parametrize(
    ("label", "value", "message"),
    [
        ("species", "tulip", "the label must be one of CLASSES, not.*tulip"),
        ("sign", 7, "the label must be one of CLASSES, not.*7"),
        ("rank", 3, "rank must be below 3, and not.*3"),
    ],
)
def test_a_label_that_is_no_class_fails_its_record(label, value, message, of_species, tmp_path):
    plan = planned_of(SelectSchema.of(SPECIES.schema), of_species, label, "length")
    made = imported(module.text(plan), tmp_path)
    columns = {"length": tf.constant([1.0, 2.0])}
    columns[label] = tf.constant([value, SPECIES[label][0].as_py()])
    feed = tf.function(lambda: made.feed_batch(columns, "training", None))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        feed()


@pytest.mark.parametrize(
    ("term", "column", "value", "message"),
    [
        (t.EMBEDDING(t.CATEGORY_ID("user", 8), 4), "user", [8], "user must be below 8, and not.*8"),
        (t.CATEGORY_ID("spelled", 4), "spelled", ["1,-2"], "spelled must be below 4, and not.*-2"),
        (t.DENSE("vector", 2), "vector", ["1,2,3"], "vector must have 2 numbers, not.*3"),
        (t.CATEGORY_ID("spelled", 4), "spelled", ["1,x"], "x"),
    ],
)
def test_a_bad_value_fails_its_record_by_name(term, column, value, message, statistics, tmp_path):
    made = imported(module.text(planned(statistics, "income", term)), tmp_path)
    feed = tf.function(lambda: made.feed_batch({column: tf.constant(value)}, "prediction", None))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        feed()


def test_more_classes_than_the_rows_have_may_be_predicted(of_species):
    plan = planned_of(SelectSchema.of(SPECIES.schema), of_species, "rank")
    predictions = np.array([[0.1, 0.1, 0.1, 0.7]])
    assert module.answers(plan, "DNNClassifier", predictions).to_pylist() == [3]


def test_a_regressor_predicts_in_the_units_of_its_label(of_species, tmp_path):
    plan = planned_of(SelectSchema.of(SPECIES.schema), of_species, "length", "rank")
    made = imported(module.text(plan), tmp_path)
    model = made.custom_model()
    for layer in model.layers:
        layer.set_weights([np.zeros_like(each) for each in layer.get_weights()])
    assert model({"numbers": np.zeros([2, 1])}).numpy().tolist() == [2.5, 2.5]
