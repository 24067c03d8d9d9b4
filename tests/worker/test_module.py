"""The user's module: what it must have, and whose fault an error is."""

import keras
import pytest
import tensorflow as tf

from shoal.errors import UserCodeError, UserError
from shoal.worker.module import load_module, summary
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


@pytest.mark.parametrize("name", ["loss", "optimizer", "feed"])
def test_a_missing_function_is_named(write_module, name):
    folder = write_module(MODULE.replace(f"def {name}(", f"def not_{name}("))
    with pytest.raises(UserError, match=rf"has no function {name}\(\)"):
        load_module(folder, "model.custom_model")


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
