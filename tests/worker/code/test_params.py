"""--model-params reach the functions of the module that have parameters of their names."""

import keras
import pytest

import shoal
from shoal.client.run.checks import check_model
from shoal.config.job import JobConfig
from shoal.config.model_params import params_of, text_of
from shoal.config.signatures import checked
from shoal.errors import UserError
from shoal.worker.code.module import load_module
from shoal.worker.outputs.prediction import check_processor

MODULE = """
import keras

seen = {}

def custom_model(dim=2, kind="deep"):
    seen["model"] = dim, kind
    return keras.Sequential([keras.Input([3]), keras.layers.Dense(dim)])

def loss(labels, predictions, weight=1.0):
    return weight * 2

def optimizer(rate=0.5):
    return keras.optimizers.SGD(rate)

def feed(dataset, mode, metadata, dim=2):
    return dataset, mode, metadata, dim

class PredictionOutputsProcessor:
    def __init__(self, table="t"):
        self.table = table
    def process(self, predictions, worker):
        return self.table
"""


def load(write_module, params, text=MODULE, name="custom_model"):
    return load_module(write_module(text), f"model.{name}", params)


def test_each_function_gets_the_values_that_it_takes(write_module):
    module = load(write_module, "dim=5, rate=0.25; weight=3, table='a,b'")
    assert module.build_model().output_shape == (None, 5)
    assert float(module.optimizer().learning_rate) == 0.25
    assert module.loss(None, None) == 6
    assert module.feed("d", "training", None) == ("d", "training", None, 5)
    check_processor(module.prediction_outputs_processor, module)
    assert module.prediction_outputs_processor().process(None, 0) == "a,b"


def test_a_class_of_a_model_and_each_of_several_losses_get_values_too(write_module):
    text = MODULE + (
        "\nclass Net(keras.Model):\n"
        "    def __init__(self, width=1, **kwargs):\n"
        "        super().__init__(**kwargs)\n"
        "        self.width = width\n"
        "\nloss = {'a': loss, 'b': 'mse', 'c': [loss]}\n"
    )
    module = load(write_module, "width=7,weight=3", text, "Net")
    assert module.build_model().width == 7
    assert module.loss["a"](None, None) == 6
    assert module.loss["b"] == "mse"
    assert module.loss["c"][0](None, None) == 6
    # What a class's **kwargs are for, its base class knows.
    with pytest.raises(UserError, match=r"no function of model\.py has a parameter widht"):
        load(write_module, "widht=7", text, "Net")


def test_a_function_that_takes_all_gets_what_nobody_names(write_module):
    text = MODULE + "\ndef all_model(**params):\n    seen['all'] = params\n"
    module = load(write_module, "rate=0.25,depth=3", text, "all_model")
    module.custom_model()
    assert module.custom_model.func.__globals__["seen"]["all"] == {"depth": 3}


@pytest.mark.parametrize(
    ("params", "more", "known"),
    [
        ("dimm=5", "", False),
        ("mode='x'", "", False),
        ("dim=5,rate=1,weight=2,table='x'", "", True),
        # Only running the module would tell.
        ("dimm=5", "\nfrom elsewhere import callbacks\n", True),
        ("dimm=5", "\ndef eval_metrics_fn(**all):\n    pass\n", True),
        ("dimm=5", "\nclass PredictionOutputsProcessor(Other):\n    pass\n", True),
    ],
)
def test_a_name_that_nobody_takes_is_refused_by_the_command_already(
    write_module, params, more, known
):
    config = JobConfig(
        model_def="model.custom_model",
        model_zoo=write_module(MODULE + more),
        training_data="t",
        model_params=params,
    )
    if known:
        check_model(config)
        return
    with pytest.raises(
        UserError, match=r"^--model-params: no function of model.py has a parameter"
    ):
        check_model(config)


def test_a_name_that_nobody_takes_and_a_value_that_is_missing_are_refused(write_module):
    with pytest.raises(UserError) as caught:
        load(write_module, "dimm=5")
    assert str(caught.value) == (
        "--model-params: no function of model.py has a parameter dimm (did you mean dim?); there "
        "are: dim, kind, rate, table, weight"
    )
    # What shoal itself gives is no parameter to be set.
    with pytest.raises(UserError, match="has a parameter mode"):
        load(write_module, "mode='x'")
    text = MODULE.replace("dim=2, kind", "dim, kind")
    with pytest.raises(UserError) as caught:
        load(write_module, "", text)
    assert str(caught.value) == (
        "custom_model() of model.py has a parameter dim without a default: give its value, "
        "--model-params dim=VALUE"
    )
    assert load(write_module, "dim=4", text).build_model().output_shape == (None, 4)


def test_a_module_is_loaded_as_before_without_values(write_module):
    module = load(write_module, "")
    assert module.custom_model.__globals__["seen"] == {}
    assert isinstance(module.optimizer(), keras.optimizers.SGD)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("a=1;b=2.5,c=True,d=None", {"a": 1, "b": 2.5, "c": True, "d": None}),
        (
            "layers=[64, 32], of=(1,2);m={'x': 1, 'y': 2}",
            {"layers": [64, 32], "of": (1, 2), "m": {"x": 1, "y": 2}},
        ),
        ("path=gs://bucket/x=y, kind=deep", {"path": "gs://bucket/x=y", "kind": "deep"}),
        ("""a='x,"y;', b="it's",c=don't""", {"a": 'x,"y;', "b": "it's", "c": "don't"}),
        ("a=,b=''", {"a": "", "b": ""}),
    ],
)
def test_values_are_literals_or_else_strings(text, values):
    assert params_of(text) == values
    assert params_of(text_of(values)) == values


@pytest.mark.parametrize("text", ["dim", "dim=1,8", "=3", "a b=1", "1a=2"])
def test_other_texts_are_refused(text):
    with pytest.raises(UserError, match=r"^--model-params must be name=value,name=value, and '"):
        JobConfig(model_def="m.f", training_data="t", model_params=text)


def test_a_name_given_twice_is_refused():
    with pytest.raises(UserError, match=r"^--model-params has a twice"):
        params_of("a=1,b=2,a=3")


def test_a_model_by_value_takes_none():
    with pytest.raises(UserError, match=r"^model_params is for a module, which model_def names"):
        shoal.train(model=keras.Sequential, model_params={"dim": 8}, training_data="t.csv")


def test_python_takes_a_dict():
    assert params_of(checked("model_params", {"dim": 8, "of": "a,b"}, str)) == {
        "dim": 8,
        "of": "a,b",
    }
    for wrong in ({"dim": object()}, {"not a name": 1}, {"rate": float("nan")}):
        with pytest.raises(UserError, match="cannot be kept in the job's configuration"):
            checked("model_params", wrong, str)
