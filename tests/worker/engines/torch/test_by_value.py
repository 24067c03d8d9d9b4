"""A torch.nn.Module that a program gives by value, and its optimizer."""

import subprocess
import sys

import numpy as np
import pytest

from shoal.base.modules.by_value import MODEL_DEF
from shoal.client.by_value import engine_of, write_model
from shoal.errors import UserError
from shoal.worker.code.module import load_module

torch = pytest.importorskip("torch")

READS = f"""
import sys
from shoal.worker import engines
from shoal.worker.code.module import load_module
engines.choose_engine("torch")
module = load_module(sys.argv[1], {MODEL_DEF!r})
print(type(module.make_model()).__name__, *{{"keras", "tensorflow"}} & set(sys.modules))
"""


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, features):
        return self.linear(features["numbers"])[:, 0]


def given(model, **arguments):
    return {
        "model": model,
        "loss": torch.nn.BCEWithLogitsLoss(),
        "optimizer": torch.optim.Adagrad(model.parameters(), lr=0.25),
        **arguments,
    }


def loaded(folder, arguments):
    write_model(folder, arguments)
    return load_module(str(folder), MODEL_DEF)


def test_it_comes_with_its_values_and_its_optimizer(tmp_path):
    model = Doubled()
    module = loaded(tmp_path, given(model, label="clicked"))
    made = module.make_model()
    assert made is not model
    for mine, its in zip(model.parameters(), made.parameters(), strict=True):
        assert torch.equal(mine, its)
    optimizer = module.optimizer(made.parameters())
    assert isinstance(optimizer, torch.optim.Adagrad)
    assert optimizer.defaults["lr"] == 0.25
    assert isinstance(module.loss, torch.nn.BCEWithLogitsLoss)


def test_without_a_feed_all_columns_but_the_label_are_features(tmp_path):
    module = loaded(tmp_path, given(Doubled(), label="clicked"))
    columns = {"numbers": np.ones((3, 2), np.float32), "clicked": np.array([0.0, 1.0, 1.0])}
    features, labels = module.feed_batch(columns, "training", None)
    assert list(features) == ["numbers"]
    assert labels.dtype == np.float32
    assert list(module.feed_batch(columns, "prediction", None)) == ["numbers"]


def test_a_training_step_is_in_the_place_of_a_loss(tmp_path):
    def step(model, features, labels):
        return (model(features) - labels).square().mean()

    def halved(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    module = loaded(
        tmp_path, given(Doubled(), loss=None, training_step=step, scheduler=halved, label="clicked")
    )
    assert module.loss is None
    assert module.scheduler.__name__ == "halved"
    assert module.training_step(lambda x: x, torch.ones(2), torch.zeros(2)) == 1
    for missing, message in (
        ({"loss": None}, "^loss is missing: give the argument loss, or training_step$"),
        ({"optimizer": None}, "^optimizer is missing: .* or a function of the parameters$"),
        ({"scheduler": 3}, "^scheduler must be a function, not int$"),
        ({"optimizer": "adagrad"}, "^optimizer is the name 'adagrad'.*optim.Adagrad.parameters"),
        ({"optimizer": {"default": "sgd"}, "model": Doubled}, "name 'sgd'.*torch.optim.SGD"),
    ):
        with pytest.raises(UserError, match=message):
            write_model(tmp_path, given(Doubled()) | missing)


def test_its_engine_is_torch():
    assert engine_of({"model": Doubled()}, "auto") == "torch"
    assert engine_of({"model": Doubled}, "torch") == "torch"
    with pytest.raises(UserError, match=r"--engine jax: model is a torch\.nn\.Module"):
        engine_of({"model": Doubled()}, "jax")


def test_an_optimizer_with_options_by_group_is_refused(tmp_path):
    model = Doubled()
    groups = [{"params": [model.linear.weight]}, {"params": [model.linear.bias], "lr": 1.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with pytest.raises(UserError, match=r"optimizer has 2 groups .* give a function"):
        write_model(tmp_path, given(model, optimizer=optimizer))
    same = torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.1)
    write_model(tmp_path, given(model, optimizer=same))


def test_a_worker_reads_it_without_keras(tmp_path):
    write_model(tmp_path, given(Doubled(), label="clicked"))
    done = subprocess.run([sys.executable, "-c", READS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Doubled"]
