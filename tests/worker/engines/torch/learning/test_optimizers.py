"""Optimizers of tables, and rates by version as a scheduler gives them."""

import pytest

from shoal.errors import UserCodeError, UserError
from shoal.worker.input.batch import Batch
from tests.worker.engines.torch.conftest import NET
from tests.worker.engines.torch.test_training import as_batch, batches

torch = pytest.importorskip("torch")

SCHEDULED = NET + "\ndef scheduler(optimizer):\n    return torch.optim.lr_scheduler.{}\n"


@pytest.mark.parametrize(
    "made",
    [
        "ExponentialLR(optimizer, 0.9)",
        "StepLR(optimizer, 3, 0.5)",
        "CosineAnnealingLR(optimizer, 8)",
        "LambdaLR(optimizer, lambda step: 1 / (1 + step))",
        "OneCycleLR(optimizer, 0.5, total_steps=20, cycle_momentum=False)",
        "SequentialLR(optimizer, [torch.optim.lr_scheduler.ConstantLR(optimizer, 0.1), "
        "torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [4])",
    ],
)
def test_rates_are_those_of_pytorch_at_each_version(served, made):
    model = served(SCHEDULED.replace("{}", made))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = eval(f"torch.optim.lr_scheduler.{made}", {"torch": torch, "optimizer": optimizer})
    expected = []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    found = [model.callbacks.learning_rates(version)[0] for version in (11, *range(12))]
    assert found == pytest.approx([expected[11], *expected])


def test_a_scheduler_steps_once_a_push(served):
    model = served(SCHEDULED.replace("{}", "ExponentialLR(optimizer, 0.5)"), accumulate=4)
    rates = [model.callbacks.learning_rates(version, 4)[0] for version in range(3)]
    assert rates == pytest.approx([0.1, 0.05, 0.025])


def test_a_scheduler_that_moves_the_momentum_is_refused(served):
    text = SCHEDULED.replace("{}", "OneCycleLR(optimizer, 0.5, total_steps=20)")
    text = text.replace("lr=0.1)", "lr=0.1, momentum=0.9)")
    model = served(text)
    with pytest.raises(UserError, match=r"changes more than the rate.*cycle_momentum=False"):
        model.callbacks.learning_rates(3)


def test_a_schedule_that_ends_is_the_users_error(served):
    text = "OneCycleLR(optimizer, 0.5, total_steps=3, cycle_momentum=False)"
    model = served(SCHEDULED.replace("{}", text))
    with pytest.raises(UserCodeError, match=r"scheduler\(\) of model\.py raised ValueError"):
        model.callbacks.learning_rates(9)


def test_each_table_may_have_its_own(served):
    text = NET.replace(
        "    return torch.optim.SGD(parameters, lr=0.1)",
        "    return {'default': torch.optim.Adam(parameters, lr=0.2),\n"
        "            'wi*': torch.optim.Adagrad(parameters, lr=0.3)}",
    ).replace(
        "shoal.torch.Embedding(4)",
        "shoal.torch.Embedding(4, optimizer=lambda p: torch.optim.SGD(p, lr=0.4, momentum=0.9))",
    )
    model = served(text)
    kinds = [model.optimizers.of(place).spec.kind for place in range(2)]
    assert (kinds, model.optimizers.default.spec.kind) == (["momentum", "adagrad"], "adam")
    assert model.callbacks.learning_rates(0) == (0.2, (0.4, 0.3))
    model.train_batch(as_batch(*next(batches(1))), 0)


def test_a_rule_for_a_table_that_is_not_there_is_refused(served):
    text = NET.replace(
        "    return torch.optim.SGD(parameters, lr=0.1)",
        "    return {'default': torch.optim.SGD(parameters), 'dep': torch.optim.SGD(parameters)}",
    )
    with pytest.raises(UserError, match=r"names the table 'dep' \(did you mean deep\?\)"):
        served(text)


def test_rows_that_are_not_trained_are_not_pushed(served):
    text = NET.replace(
        "self.last = torch.nn.Linear(5, 1)",
        "self.last = torch.nn.Linear(5, 1)\n        self.wide.requires_grad_(False)\n"
        "        self.last.bias.requires_grad_(False)",
    )
    model = served(text)
    assert [table.frozen for table in model.tables.values()] == [False, True]
    names = [each.name for each in model.spec.non_trainable]
    assert names == ["last.bias", "norm.running_mean", "norm.running_var"]
    batch: Batch = as_batch(*next(batches(1)))
    _, push = model.compute(model.prepare(batch), 0)
    assert list(push.tables) == [0]
    before = model.servers._dense[1].copy()
    model.servers.push(push)
    assert model.servers._dense[1][0] == before[0]


@pytest.mark.parametrize(
    "frozen",
    [
        "self.requires_grad_(False)",
        "[each.requires_grad_(False) for each in self.parameters()]",
    ],
)
def test_a_table_within_a_frozen_module_is_not_trained(served, frozen):
    text = NET.replace(
        "        self.hidden = torch",
        f"        {frozen}\n        self.hidden = torch",
    )
    model = served(text)
    assert [table.frozen for table in model.tables.values()] == [True, True]
    assert not any("rows" in each.name for each in model.spec.non_trainable)


def test_averages_of_minibatches_are_one_push(served):
    model = served(accumulate=2)
    pushes = [model.compute(model.prepare(as_batch(*each)), 0)[1] for each in batches(2)]
    made = model.average(pushes)
    expected = (pushes[0].dense[0] + pushes[1].dense[0]) / 2
    assert made.dense[0] == pytest.approx(expected, abs=1e-7)
