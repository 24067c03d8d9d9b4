"""The law of first rows, found by filling a weight that has no memory."""

import functools
import math

import pytest

from shoal.native.initializers import InitializerSpec
from shoal.torch.embedding import FIRST_ROWS, Embedding

torch = pytest.importorskip("torch")

init = torch.nn.init

LAWS = {
    "normal_": (init.normal_, InitializerSpec("normal", {"stddev": 1.0})),
    "normal_, std": (
        functools.partial(init.normal_, mean=1.0, std=0.01),
        InitializerSpec("normal", {"mean": 1.0, "stddev": 0.01}),
    ),
    "uniform_": (
        functools.partial(init.uniform_, a=-0.1, b=0.2),
        InitializerSpec("uniform", {"minval": -0.1, "maxval": 0.2}),
    ),
    "zeros_": (init.zeros_, InitializerSpec("zeros")),
    "ones_": (init.ones_, InitializerSpec("constant", {"value": 1.0})),
    "constant_": (
        functools.partial(init.constant_, val=3),
        InitializerSpec("constant", {"value": 3.0}),
    ),
    "xavier_normal_": (
        init.xavier_normal_,
        InitializerSpec("normal", {"stddev": math.sqrt(2 / (1 + 8))}),
    ),
    "kaiming_uniform_": (
        init.kaiming_uniform_,
        InitializerSpec("uniform", {"minval": -math.sqrt(6 / 8), "maxval": math.sqrt(6 / 8)}),
    ),
    "trunc_normal_, at two": (
        init.trunc_normal_,
        InitializerSpec("truncated_normal", {"stddev": 1.0}),
    ),
    "trunc_normal_, far away": (
        functools.partial(init.trunc_normal_, std=0.02),
        InitializerSpec("normal", {"stddev": 0.02}),
    ),
    "of its data": (
        lambda w: w.data.uniform_(-1, 1),
        InitializerSpec("uniform", {"minval": -1, "maxval": 1}),
    ),
    "scaled": (
        lambda w: w.normal_(1, 0.5).mul_(0.1),
        InitializerSpec("normal", {"mean": 0.1, "stddev": 0.05}),
    ),
    "moved": (
        lambda w: w.uniform_().sub_(0.5).div_(-2),
        InitializerSpec("uniform", {"minval": -0.25, "maxval": 0.25}),
    ),
    "filled twice": (lambda w: w.normal_().zero_(), InitializerSpec("zeros")),
}


@pytest.mark.parametrize("name", LAWS)
def test_what_fills_a_weight_is_its_law(name):
    function, law = LAWS[name]
    found = Embedding(8, init=function).init
    assert found.kind == law.kind
    assert found.parameters == pytest.approx(law.parameters)


def test_the_law_is_that_of_the_numbers_that_pytorch_draws():
    torch.manual_seed(0)
    for name, (function, _) in LAWS.items():
        weight = torch.empty(1, 20000)
        function(weight)
        law = Embedding(20000, init=function).init
        tolerance = 0.02 * max(1.0, float(weight.std()))
        assert float(weight.mean()) == pytest.approx(law.default_value, abs=tolerance), name
        if law.kind == "normal":
            assert float(weight.std()) == pytest.approx(law.parameters["stddev"], rel=0.05), name
        if law.kind == "uniform":
            assert float(weight.min()) >= law.parameters["minval"] - 1e-6, name
            assert float(weight.max()) <= law.parameters["maxval"] + 1e-6, name


def test_rows_begin_as_those_of_shoals_layer_without_a_law():
    assert Embedding(8).init == FIRST_ROWS == InitializerSpec("uniform")
