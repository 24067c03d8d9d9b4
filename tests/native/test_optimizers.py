"""Update rules against Keras 3, dense and sparse, and the specification's own checks."""

import functools
import json
import pickle

import numpy as np
import pytest

from shoal.native.dense import DenseBlock
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import KINDS, OptimizerSpec
from shoal.native.rowstore import RowStore
from tests.native.strategies import exported, store

STEPS = 200
RATE = 0.05
DENSE = (103,)
TABLES = [(20, 5), (20, 16)]

# Class of keras.optimizers and its arguments.
CASES = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.8, "nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "adagrad, epsilon": ("Adagrad", {"epsilon": 0.1, "initial_accumulator_value": 0.5}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop momentum": ("RMSprop", {"momentum": 0.7, "rho": 0.95}),
    "rmsprop centered": ("RMSprop", {"centered": True, "epsilon": 1e-3}),
    "rmsprop centered momentum": (
        "RMSprop", {"centered": True, "momentum": 0.5, "epsilon": 1e-2}
    ),
    "adam": ("Adam", {}),
    "adam betas": ("Adam", {"beta_1": 0.7, "beta_2": 0.99, "epsilon": 1e-3}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.02}),
    "adamw amsgrad": ("AdamW", {"amsgrad": True}),
    "ftrl": ("Ftrl", {}),
    "ftrl l1 l2": (
        "Ftrl", {"l1_regularization_strength": 0.02, "l2_regularization_strength": 0.01}
    ),
    "ftrl shrinkage beta": (
        "Ftrl", {"l2_shrinkage_regularization_strength": 0.01, "beta": 0.5}
    ),
    "ftrl power": ("Ftrl", {"learning_rate_power": -0.7, "l1_regularization_strength": 0.01}),
    "sgd decay": ("SGD", {"weight_decay": 0.01}),
    "adagrad clipvalue": ("Adagrad", {"clipvalue": 0.3}),
    "sgd clipnorm": ("SGD", {"clipnorm": 1.5}),
    "adam decay clipvalue": ("Adam", {"weight_decay": 0.01, "clipvalue": 0.5}),
}  # fmt: skip

# clipnorm sees a row in a table, the whole vector in a dense block.
ELEMENTWISE = [case for case in CASES if "clipnorm" not in case]


def rate_at(step):
    """A schedule: the rate is passed with every update and may change."""
    return RATE * (1 + step % 3)


def keras_run(class_name, arguments, start, gradients, dtype="float32"):
    """The variable after all gradients, as Keras 3 applies them, and the specification."""
    import keras
    import tensorflow as tf

    optimizer = getattr(keras.optimizers, class_name)(learning_rate=RATE, **arguments)
    variable = keras.Variable(start, dtype=dtype)
    optimizer.build([variable])

    @tf.function
    def apply(gradient):
        optimizer.apply([gradient], [variable])

    for step, gradient in enumerate(gradients, 1):
        optimizer.learning_rate = rate_at(step)
        apply(keras.ops.convert_to_tensor(gradient, dtype))
    return np.asarray(variable), OptimizerSpec.from_keras(class_name, optimizer.get_config())


def assert_close(mine, theirs, tolerance=1e-6):
    """Within the tolerance relative to the largest weight, which is about 1."""
    assert np.isfinite(theirs).all()
    assert np.abs(mine - theirs).max() <= tolerance * np.abs(theirs).max()


def assert_equals_keras(mine, case, shape):
    """1e-6. FTRL subtracts nearly equal powers, and Keras in float32 loses 2e-6 there, so
    its rule is held to 1e-6 of Keras in float64, and loosely to the float32 one.
    """
    if CASES[case][0] == "Ftrl":
        assert_close(mine, keras_values(case, "float32")[shape], 5e-6)
        assert_close(mine, keras_values(case, "float64")[shape])
    else:
        assert_close(mine, keras_values(case, "float32")[shape])


@functools.cache
def keras_values(case, dtype):
    """Shape -> what Keras makes of its inputs. An elementwise rule is applied to all at once."""
    shapes = [DENSE, *TABLES] if case in ELEMENTWISE else [DENSE]
    starts, gradients = zip(*map(inputs, shapes), strict=True)
    whole = np.concatenate([start.reshape(-1) for start in starts])
    each = np.concatenate([gradient.reshape(STEPS, -1) for gradient in gradients], axis=1)
    values, _ = keras_run(*CASES[case], whole, each, dtype)
    parts = np.split(values, np.cumsum([start.size for start in starts])[:-1])
    return {shape: part.reshape(shape) for shape, part in zip(shapes, parts, strict=True)}


def inputs(shape, steps=STEPS):
    random = np.random.default_rng(5)
    start = random.uniform(-1, 1, shape).astype(np.float32)
    gradients = random.standard_normal((steps, *shape)).astype(np.float32)
    return start, gradients


@pytest.mark.parametrize("case", CASES)
def test_dense_equals_keras(case):
    start, gradients = inputs(DENSE)
    block = DenseBlock(start, OptimizerSpec.from_keras(*CASES[case]))
    for step, gradient in enumerate(gradients, 1):
        gradient.flags.writeable = False
        block.update(gradient, learning_rate=rate_at(step), step=step)
    assert np.abs(block.values - start).max() > 0.1
    assert_equals_keras(block.values, case, DENSE)


@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize("case", ELEMENTWISE)
def test_sparse_equals_keras_when_every_row_is_in_every_batch(case, shape):
    rows, dim = shape
    start, gradients = inputs(shape)
    spec = OptimizerSpec.from_keras(*CASES[case])
    table = RowStore(dim, spec, InitializerSpec("zeros"), 1)
    ids = np.arange(rows) * 1000 - 7
    table.assign(ids, start)
    order = np.random.default_rng(0)
    for step, gradient in enumerate(gradients, 1):
        mixed = order.permutation(rows)
        table.update(ids[mixed], gradient[mixed], learning_rate=rate_at(step), step=step)
    assert_equals_keras(table.lookup(ids), case, shape)


def test_clipnorm_goes_by_row_in_a_table():
    """A table clips each row as Keras clips a variable that is that row."""
    start, gradients = inputs((3, 6), steps=30)
    table = store(6, OptimizerSpec("adagrad", {"clipnorm": 1.5}), "zeros")
    table.assign(np.arange(3), start)
    for step, gradient in enumerate(gradients, 1):
        table.update(np.arange(3), gradient, learning_rate=rate_at(step), step=step)
    for row in range(3):
        expected, _ = keras_run("Adagrad", {"clipnorm": 1.5}, start[row], gradients[:, row])
        assert_close(table.lookup(np.array([row]))[0], expected)


def test_rowwise_adagrad_is_the_formula():
    """accumulator += mean(g^2); row -= rate g / sqrt(accumulator + epsilon)."""
    for dim in (1, 3, 16, 33):
        start, gradients = inputs((8, dim), steps=50)
        table = store(dim, "rowwise_adagrad", "zeros")
        table.assign(np.arange(8), start)
        values, accumulator = start.astype(np.float64), np.full((8, 1), 0.1)
        for step, gradient in enumerate(gradients, 1):
            table.update(np.arange(8), gradient, learning_rate=RATE, step=step)
            accumulator = accumulator + (gradient.astype(np.float64) ** 2).mean(1, keepdims=True)
            values = values - RATE * gradient / np.sqrt(accumulator + 1e-7)
        assert_close(table.lookup(np.arange(8)), values)
        slots = np.stack([row[1]["accumulator"] for row in exported(table).values()])
        assert slots.shape == (8, 1)


def test_rowwise_adagrad_of_dim_1_is_adagrad():
    start, gradients = inputs((50, 1), steps=50)
    tables = [store(1, kind, "zeros") for kind in ("adagrad", "rowwise_adagrad")]
    for table in tables:
        table.assign(np.arange(50), start)
        for step, gradient in enumerate(gradients, 1):
            table.update(np.arange(50), gradient, learning_rate=RATE, step=step)
    assert_close(*(table.lookup(np.arange(50)) for table in tables))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sgd"])
def test_rows_outside_the_batch_do_not_move(kind):
    table = store(4, kind)
    ids = np.arange(10)
    gradients = np.ones((10, 4), np.float32)
    table.update(ids, gradients, learning_rate=0.1, step=1)
    before = exported(table)
    table.update(ids[:5], gradients[:5], learning_rate=0.1, step=2)
    after = exported(table)
    for key in ids.tolist():
        same = (before[key][0] == after[key][0]).all()
        assert same == (key >= 5)
        if key >= 5:
            for name in table.slot_names:
                assert (before[key][1][name] == after[key][1][name]).all()


@pytest.mark.parametrize("case", ELEMENTWISE)
def test_dense_and_sparse_are_the_same_kernel(case):
    """Bit for bit, whatever the width."""
    spec = OptimizerSpec.from_keras(*CASES[case])
    for dim in (1, 7, 16, 128):
        start, gradients = inputs((9, dim), steps=5)
        table, block = (
            RowStore(dim, spec, InitializerSpec("zeros"), 1),
            DenseBlock(start.reshape(-1), spec),
        )
        table.assign(np.arange(9), start)
        for step, gradient in enumerate(gradients, 1):
            table.update(np.arange(9), gradient, learning_rate=RATE, step=step)
            block.update(gradient.reshape(-1), learning_rate=RATE, step=step)
        assert (table.lookup(np.arange(9)).reshape(-1) == block.values).all()


@pytest.mark.parametrize("make", [lambda s, o: DenseBlock(s, o)])
def test_gradient_scale_multiplies_the_gradient(make):
    start, gradients = inputs((64,), steps=3)
    spec = OptimizerSpec("adam", {"clipvalue": 0.4})
    scaled, plain = make(start, spec), make(start, spec)
    for step, gradient in enumerate(gradients, 1):
        scaled.update(gradient, learning_rate=RATE, step=step, gradient_scale=0.25)
        plain.update(gradient * np.float32(0.25), learning_rate=RATE, step=step)
    assert (scaled.values == plain.values).all()
    tables = [store(64, spec, "zeros") for _ in range(2)]
    tables[0].update(np.array([1]), gradients[:1], learning_rate=RATE, step=1, gradient_scale=0.25)
    tables[1].update(np.array([1]), gradients[:1] * np.float32(0.25), learning_rate=RATE, step=1)
    assert (tables[0].lookup(np.array([1])) == tables[1].lookup(np.array([1]))).all()


def test_dense_block_owns_its_memory():
    start = np.ones(10, np.float32)
    block = DenseBlock(start, OptimizerSpec("adagrad"))
    view, slots = block.values, block.slots
    block.update(np.ones(10, np.float32), learning_rate=1.0, step=1)
    assert (start == 1).all()
    assert (view < 1).all()
    assert slots["accumulator"] == pytest.approx(1.1)
    assert len(block) == 10
    empty = DenseBlock(np.empty(0, np.float32), OptimizerSpec("adam"))
    empty.update(np.empty(0, np.float32), learning_rate=1.0, step=1)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "gradient must have shape", (np.ones(3, np.float32), 0.1, 1)),
        (TypeError, "gradient must be of dtype", (np.ones(4), 0.1, 1)),
        (ValueError, "step must be at least 1", (np.ones(4, np.float32), 0.1, 0)),
        (ValueError, "learning_rate must be finite", (np.ones(4, np.float32), np.inf, 1)),
    ],
)
def test_dense_refusals(error, message, arguments):
    block = DenseBlock(np.ones(4, np.float32), OptimizerSpec("sgd"))
    gradient, rate, step = arguments
    with pytest.raises(error, match=message):
        block.update(gradient, learning_rate=rate, step=step)


@pytest.mark.parametrize("rate", [0.0, 1e-46, 1e-40, -1.0])
def test_ftrl_needs_a_rate(rate):
    table = store(2, "ftrl")
    with pytest.raises(ValueError, match="at least 1e-30 for ftrl"):
        table.update(np.array([1]), np.ones((1, 2), np.float32), learning_rate=rate, step=1)
    table.update(np.array([1]), np.ones((1, 2), np.float32), learning_rate=1e-30, step=1)
    assert np.isfinite(table.lookup(np.array([1]))).all()


# ---- the specification ----


@pytest.mark.parametrize("kind", KINDS)
def test_json_and_pickle_round_trip(kind):
    spec = OptimizerSpec(kind, {"weight_decay": 0.5})
    again = OptimizerSpec.from_json(spec.to_json())
    assert again == spec == pickle.loads(pickle.dumps(spec))
    assert hash(again) == hash(spec)
    assert spec != OptimizerSpec(kind)
    assert json.loads(spec.to_json())["kind"] == kind


def test_defaults_are_filled_in():
    explicit = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False}
    assert OptimizerSpec("adam") == OptimizerSpec("adam", explicit)
    assert OptimizerSpec("adam") == OptimizerSpec("adam", {"weight_decay": None, "clipnorm": None})


@pytest.mark.parametrize("class_name", sorted({name for name, _ in CASES.values()}))
def test_defaults_are_those_of_keras(class_name):
    import keras

    config = getattr(keras.optimizers, class_name)().get_config()
    assert OptimizerSpec.from_keras(class_name, config) == OptimizerSpec.from_keras(class_name, {})


@pytest.mark.parametrize(
    ("kind", "hyperparameters", "message"),
    [
        ("adan", {}, "unknown optimizer kind 'adan'"),
        ("sgd", {"momentum": 0.9}, "no hyperparameter momentum"),
        ("adam", {"beta_1": 1.0}, "'beta_1' must be at least 0 and below 1 as a float32, got 1.0"),
        ("adam", {"beta_2": 0.99999999}, "'beta_2' must be at least 0 and below 1"),
        ("rmsprop", {"epsilon": 0.0}, "'epsilon' must be above 0 as a float32"),
        ("adamw", {"epsilon": 1e-50}, "'epsilon' must be above 0 as a float32"),
        (
            "adagrad",
            {"epsilon": 0.0, "initial_accumulator_value": 0.0},
            "'epsilon' or 'initial_accumulator_value' must be above 0",
        ),
        ("ftrl", {"initial_accumulator_value": 0.0}, "must be above 0 as a float32"),
        ("adam", {"epsilon": -1e-7}, "'epsilon' must be at least 0"),
        ("adam", {"epsilon": float("nan")}, "'epsilon'"),
        ("adam", {"amsgrad": 1}, "'amsgrad' must be true or false"),
        ("adam", {"beta_1": True}, "'beta_1' must be a number"),
        ("adam", {"beta_1": "0.9"}, "'beta_1' must be a number"),
        ("adam", {"beta_1": None}, "'beta_1' must be a number"),
        ("ftrl", {"learning_rate_power": 0.5}, "'learning_rate_power' must be at most 0"),
        ("sgd", {"clipnorm": 1.0, "clipvalue": 1.0}, "clipvalue and clipnorm exclude each other"),
    ],
)
def test_bad_specifications_are_refused(kind, hyperparameters, message):
    with pytest.raises(ValueError, match=message):
        OptimizerSpec(kind, hyperparameters)


def test_bad_json_and_foreign_keras_options_are_refused():
    for text in ("[1]", '{"kind": "sgd"}', "{"):
        with pytest.raises(ValueError):  # noqa: PT011
            OptimizerSpec.from_json(text)
    with pytest.raises(ValueError, match=r"optimizer Lion is not supported.*nearest is AdamW"):
        OptimizerSpec.from_keras("Lion", {})
    with pytest.raises(ValueError, match="use_ema is not supported"):
        OptimizerSpec.from_keras("Adam", {"use_ema": True})


def test_slot_names_are_those_of_keras():
    expected = {
        "sgd": (), "momentum": ("momentum",), "adagrad": ("accumulator",),
        "adam": ("momentum", "velocity"), "ftrl": ("accumulator", "linear"),
    }  # fmt: skip
    for kind, names in expected.items():
        assert OptimizerSpec(kind).slot_names == names
        assert store(3, kind).slot_names == names
    assert OptimizerSpec("adam", {"amsgrad": True}).slot_names[-1] == "velocity_hat"
    centered = OptimizerSpec("rmsprop", {"momentum": 0.9, "centered": True})
    assert centered.slot_names == ("velocity", "momentum", "average_gradient")


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("rule", "newton", "the kernels know no 'newton'"),
        ("constants", {"momentum": 0.9}, "the kernels read 15 constants"),
        (
            "constants",
            {**dict.fromkeys(list(OptimizerSpec("sgd").constants)[1:], 0.0), "inertia": 0.9},
            "the kernels know no 'inertia'",
        ),
    ],
)
@pytest.mark.parametrize(
    "make", [lambda spec: store(4, spec), lambda spec: DenseBlock(np.zeros(4, np.float32), spec)]
)
def test_kernels_take_only_what_their_headers_list(attribute, value, message, make):
    """Rules and constants go to C by name: another name, or one too few, is no silent zero."""
    other = type("Other", (OptimizerSpec,), {"slot_names": (), attribute: value})
    with pytest.raises(ValueError, match=message):
        make(other("sgd"))
