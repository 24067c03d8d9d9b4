"""Update rules in PyTorch's form against torch.optim, dense and sparse."""

import numpy as np
import pytest

from shoal.checkpoints.slot_plan import slot_sources
from shoal.native.dense import DenseBlock
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from tests.native.test_optimizers import DENSE, TABLES, assert_close, inputs

torch = pytest.importorskip("torch")

# Class of torch.optim and its arguments.
CASES = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "nesterov": ("SGD", {"momentum": 0.8, "nesterov": True}),
    "adagrad": ("Adagrad", {}),
    "adagrad, epsilon": ("Adagrad", {"eps": 0.1, "initial_accumulator_value": 0.5}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop momentum": ("RMSprop", {"momentum": 0.7, "alpha": 0.95}),
    "adam": ("Adam", {}),
    "adam, epsilon": ("Adam", {"betas": (0.7, 0.99), "eps": 1e-3}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.02}),
    "adamw amsgrad": ("AdamW", {"amsgrad": True}),
}


def rate_at(step):
    return 0.05 * 0.99**step


def made(case, variable):
    name, arguments = CASES[case]
    return getattr(torch.optim, name)([variable], lr=rate_at(1), **arguments)


def spec_of(case):
    optimizer = made(case, torch.nn.Parameter(torch.zeros(1)))
    return OptimizerSpec.from_torch(type(optimizer).__name__, optimizer.defaults)


def by_torch(case, start, gradients):
    variable = torch.nn.Parameter(torch.tensor(start))
    optimizer = made(case, variable)
    for step, gradient in enumerate(gradients, 1):
        optimizer.param_groups[0]["lr"] = rate_at(step)
        variable.grad = torch.tensor(gradient)
        optimizer.step()
    return variable.detach().numpy()


@pytest.mark.parametrize("case", CASES)
def test_dense_equals_torch(case):
    start, gradients = inputs(DENSE)
    block = DenseBlock(start, spec_of(case))
    for step, gradient in enumerate(gradients, 1):
        block.update(gradient, learning_rate=rate_at(step), step=step)
    assert_close(block.values, by_torch(case, start, gradients))


@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize("case", CASES)
def test_sparse_equals_torch_when_every_row_is_in_every_batch(case, shape):
    start, gradients = inputs(shape)
    ids = np.arange(shape[0]) * 1000 - 7
    table = RowStore(shape[1], spec_of(case), InitializerSpec("zeros"), 1)
    table.assign(ids, start)
    for step, gradient in enumerate(gradients, 1):
        table.update(ids, gradient, learning_rate=rate_at(step), step=step)
    assert_close(table.lookup(ids), by_torch(case, start, gradients))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Adam", {"weight_decay": 0.1}, "no weight_decay; AdamW decays weights"),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, "no dampening"),
        ("SGD", {"maximize": True}, "no maximize"),
        ("Adagrad", {"lr_decay": 0.1}, "no lr_decay"),
        ("RMSprop", {"centered": True}, "no centered"),
        ("NAdam", {}, "the nearest is Adam"),
        ("LBFGS", {}, "not supported: the servers have SGD"),
    ],
)
def test_others_are_refused_by_name(name, arguments, message):
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))], **arguments)
    with pytest.raises(ValueError, match=message):
        OptimizerSpec.from_torch(name, optimizer.defaults)
    with pytest.raises(ValueError, match="torch's form has no centered"):
        OptimizerSpec("rmsprop", {"centered": True, "torch": True})


def test_slots_of_the_same_numbers_are_kept_between_the_forms():
    """A momentum that holds the rate is none that does not."""

    def plan(before, after):
        return slot_sources(before, after, rows=True)

    mine = OptimizerSpec("adagrad"), OptimizerSpec("rmsprop", {"momentum": 0.5})
    assert plan(mine[0], spec_of("adagrad")) == {"accumulator": "kept"}
    kept = {"velocity": "kept", "momentum_buffer": "initial"}
    assert plan(mine[1], spec_of("rmsprop momentum")) == kept
    assert set(plan(OptimizerSpec("adam"), spec_of("adam")).values()) == {"kept"}
    assert plan(OptimizerSpec("momentum"), spec_of("momentum")) == {"momentum_buffer": "initial"}
