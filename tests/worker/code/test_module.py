"""The user's module: what it must have, and whose fault an error is."""

import keras
import pytest
import tensorflow as tf

from shoal.errors import UserCodeError, UserError
from shoal.worker.code.keras_internals import compiled_with
from shoal.worker.code.module import load_module, summary
from tests.worker.conftest import MODULE


def test_a_whole_module_is_loaded(write_module):
    module = load_module(write_module(), "model.custom_model")
    assert module.build_model().count_params() == 2
    assert module.eval_metrics_fn is None
    assert module.describe("feed") == "feed() of model.py"


def test_a_model_class_is_instantiated(write_module):
    text = MODULE + ("\nclass Net(keras.Model):\n    def call(self, x):\n        return x\n")
    module = load_module(write_module(text), "model.Net")
    assert type(module.build_model()).__name__ == "Net"


NEEDED = "needs loss and optimizer, or a model that is compiled with them, and feed or feed_batch;"


@pytest.mark.parametrize("name", ["loss", "optimizer", "feed"])
def test_a_missing_function_is_named(write_module, name):
    folder = write_module(MODULE.replace(f"def {name}(", f"def not_{name}("))

    def load():
        module = load_module(folder, "model.custom_model")
        module.as_compiled(compiled_with(module.build_model()))

    with pytest.raises(UserError, match=rf"has no (function )?{name}\b.*: a model module {NEEDED}"):
        load()


def test_what_the_model_was_compiled_with_counts_where_the_module_has_none(write_module):
    text = MODULE.replace("def loss(", "def not_loss(").replace("def optimizer(", "def other(")
    text = text.replace("    return keras.Sequential(", "    model = keras.Sequential(").replace(
        "Dense(1)])\n",
        "Dense(1)])\n    model.compile('sgd', 'binary_crossentropy', metrics=['accuracy', 'auc'])\n"
        "    return model\n",
    )
    module = load_module(write_module(text), "model.custom_model")
    found = module.as_compiled(compiled_with(module.build_model()))
    assert found.loss == "binary_crossentropy"
    assert isinstance(found.optimizer(), keras.optimizers.SGD)
    accuracy, auc = found.eval_metrics_fn().values()
    assert isinstance(accuracy, keras.metrics.BinaryAccuracy)
    assert isinstance(auc, keras.metrics.AUC)
    own = load_module(write_module(text + "\nloss = 'mse'\n"), "model.custom_model")
    assert own.as_compiled(compiled_with(own.build_model())).loss == "mse"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("'adam'", keras.optimizers.Adam),
        ("keras.optimizers.Adagrad(0.5)", keras.optimizers.Adagrad),
        ("{'default': 'adam'}", dict),
    ],
)
def test_an_optimizer_may_be_a_value(write_module, line, kind):
    module = load_module(write_module(f"{MODULE}\noptimizer = {line}\n"), "model.custom_model")
    assert isinstance(module.optimizer(), kind)


def test_metrics_and_callbacks_may_be_values(write_module):
    text = (
        "\nloss = 'mse'\neval_metrics_fn = {'error': 'mae', 'two': [keras.metrics.AUC()]}\n"
        "callbacks = [keras.callbacks.Callback()]\n"
    )
    module = load_module(write_module(MODULE + text), "model.custom_model")
    found = module.eval_metrics_fn()
    assert list(found) == ["error", "two"]
    assert callable(found["error"])
    assert len(module.callbacks()) == 1


def test_an_optimizer_that_keras_does_not_have_is_named(write_module):
    with pytest.raises(UserError, match=r"^optimizer: Keras has no optimizer 'adamm'$"):
        load_module(write_module(MODULE + "\noptimizer = 'adamm'\n"), "model.custom_model")


def test_a_missing_model_function_is_named(write_module):
    with pytest.raises(UserError, match="no function or class 'my_model'"):
        load_module(write_module(), "model.my_model")


def test_a_missing_file_is_named(write_module):
    with pytest.raises(UserError, match=r"there is no file .*modle\.py"):
        load_module(write_module(), "modle.custom_model")


def test_a_function_that_is_none_is_named(write_module):
    with pytest.raises(UserError, match=r"loss in .* must be a function, not int"):
        load_module(write_module(MODULE + "\nloss = 3\n"), "model.custom_model")


def test_a_syntax_error_is_told_with_its_line(write_module):
    with pytest.raises(UserError, match=r"model\.py, line 2: .*: def broken"):
        load_module(write_module("import keras\ndef broken(:\n"), "model.custom_model")


def test_an_error_while_importing_keeps_its_traceback(write_module):
    with pytest.raises(UserCodeError) as caught:
        load_module(write_module("import no_such_library\n"), "model.custom_model")
    assert "importing" in caught.value.message
    assert "no_such_library" in caught.value.message
    assert "line 1, in <module>" in caught.value.traceback


def test_a_model_function_that_gives_no_model_is_told(write_module):
    module = load_module(write_module(MODULE + "\ndef nothing():\n    return 5\n"), "model.nothing")
    with pytest.raises(UserError, match=r"nothing\(\) of model.py returned int"):
        module.build_model()


def test_a_module_may_import_its_neighbour(write_module):
    write_module("RATE = 0.25\n", name="neighbour_of_model")
    folder = write_module(
        MODULE.replace("SGD(0.1)", "SGD(RATE)") + "\nfrom neighbour_of_model import RATE\n"
    )
    module = load_module(folder, "model.custom_model")
    assert float(module.optimizer().learning_rate) == 0.25


class Refusing(keras.layers.Layer):
    def call(self, x):
        raise ZeroDivisionError("no such thing\nand more")


def refuse(x):
    raise ZeroDivisionError("no such thing\nand more")


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        refuse,
        lambda x: Refusing()(x),
        lambda x: tf.py_function(refuse, [x], tf.float32),
    ],
    ids=["function", "layer", "py_function"],
)
def test_what_the_user_raised_is_named_however_it_was_wrapped(function, traced):
    with pytest.raises(Exception, match="no such thing") as caught:
        (tf.function(function) if traced else function)(tf.ones([2, 3]))
    assert summary(caught.value) == "ZeroDivisionError: no such thing"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError(), "ValueError"),
        (ValueError("\n\n"), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (OSError("path: gone"), "OSError: path: gone"),
        (ValueError("in user code:\n\n"), "ValueError"),
    ],
)
def test_plain_errors_are_named_as_they_are(error, line):
    assert summary(error) == line


def test_the_summary_of_a_failure_in_a_graph_is_what_failed():
    text = (
        "Graph execution error:\n\nDetected at node StringToNumber defined at (most recent "
        'call last):\n  File "model.py", line 5, in feed\n\nStringToNumberOp could not '
        "correctly convert string: oops\n\t [[{{node StringToNumber}}]] [Op:__inference_f_6]"
    )
    told = "ValueError: StringToNumberOp could not correctly convert string: oops"
    assert summary(ValueError(text)) == told
