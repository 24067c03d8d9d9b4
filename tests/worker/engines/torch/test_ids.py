"""Ids that a module looks up, found before the step, or refused by name."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from shoal.errors import UserCodeError, UserError
from tests.worker.engines.torch.conftest import NET

torch = pytest.importorskip("torch")

HEAD = """
import torch, shoal.torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = shoal.torch.Embedding(4)
        self.linear = torch.nn.Linear(2, 1)
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer("offsets", torch.tensor([0, 1000, 2000]))

    def forward(self, features):
        ids, x = features["ids"], features["x"]
        {}
        return self.linear(x)[:, 0] + found.flatten(1).sum(1)
"""

TAIL = NET[NET.index("def feed_batch") :]


def module(lines):
    body = textwrap.indent(textwrap.dedent(lines), " " * 8).strip()
    return HEAD.replace("{}", body) + TAIL


def features(size=5, seed=0):
    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.integers(-(2**62), 2**62, (size, 3)))
    return {"ids": ids, "x": torch.from_numpy(rng.normal(size=(size, 2)).astype(np.float32))}


def looked_up(model, given):
    (calls,) = model.built.ids.by_table(given)
    return calls


TAKEN = {
    "as they are": ("found = self.table(ids)", lambda ids: [ids]),
    "of another shape": ("found = self.table(ids[:, None].flatten(1))", lambda ids: [ids]),
    "shifted by a buffer": (
        "found = self.table(ids + self.offsets)",
        lambda ids: [np.add(ids, [0, 1000, 2000])],
    ),
    "computed": (
        "found = self.table((ids // 7) * 31 + torch.arange(3))",
        lambda ids: [(ids // 7) * 31 + np.arange(3)],
    ),
    "of a column each": (
        "found = sum(self.table(ids[:, i]) for i in range(3))",
        lambda ids: [ids[:, i] for i in range(3)],
    ),
    "transposed": ("found = self.table(ids.t()).sum(0)", lambda ids: [ids.T]),
    "changed in place": (
        "ids = ids.clone()\nids[:, 0] += 5\nids.clamp_(min=0)\nfound = self.table(ids)",
        lambda ids: [np.maximum(np.add(ids, [5, 0, 0]), 0)],
    ),
    "changed themselves": ("ids += 5\nfound = self.table(ids)", lambda ids: [ids + 5]),
    "numbers of a shape": (
        "found = self.table(torch.arange(len(ids)) % self.linear.weight.shape[1])",
        lambda ids: [np.arange(len(ids)) % 2],
    ),
    "of a length": (
        "found = self.table((ids + 1).reshape(len(ids), 3) + len(ids))",
        lambda ids: [ids + 1 + len(ids)],
    ),
    "chosen by a mask": (
        "found = self.table(torch.where(ids > 0, ids, 0))",
        lambda ids: [np.maximum(ids, 0)],
    ),
    "beside numbers that are drawn": (
        "x = torch.nn.functional.dropout(x + torch.rand_like(x), 0.5, True)\n"
        "found = self.table(ids)",
        lambda ids: [ids],
    ),
    "twice": (
        "found = self.table(ids) + self.table(ids * 2)",
        lambda ids: [ids, ids * 2],
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_ids_that_follow_from_features(served, name):
    lines, expected = TAKEN[name]
    model = served(module(lines))
    for size in (1, 2, 5, 64):
        given = features(size, size)
        wanted = expected(given["ids"].numpy())
        calls = looked_up(model, given)
        assert len(calls) == len(wanted)
        for found, each in zip(calls, wanted, strict=True):
            np.testing.assert_array_equal(found, each.reshape(-1))


WITHOUT_COMPILER = """
import sys
import numpy as np
from shoal.worker import engines
engines.choose_engine("torch")
engines.import_framework()
from shoal.config.job import JobConfig
from shoal.worker.code.module import load_module
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.model import ServedModel
from shoal.worker.reports.progress import Progress
from shoal.worker.servers.local import LocalServers
spec = {"ids": ArraySpec((None, 3), np.dtype("int64")), "x": ArraySpec((None, 2), np.dtype("f4"))}
config = JobConfig(model_def="model.Net", training_data="unused", engine="torch")
module = load_module(sys.argv[1], "model.Net")
ServedModel(config, module, LocalServers(), spec, None, 0, Progress())
heavy = ("keras", "tensorflow", "sympy", "torch._dynamo", "torch._inductor")
print([name for name in heavy if name in sys.modules])
"""


def test_a_worker_imports_no_compiler_for_ids_that_are_features(write_module):
    folder = write_module(module("found = self.table(ids)"))
    command = [sys.executable, "-c", WITHOUT_COMPILER, folder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_ids_that_are_a_feature_are_read_without_a_call(served):
    assert served(module("found = self.table(ids)")).built.ids.operations == []
    assert served(module("found = self.table(ids + 1)")).built.ids.operations


def test_a_trace_of_other_sizes_leaves_the_model_that_another_thread_trains(served):
    model = served(module("found = self.table(ids.reshape(len(ids), 3) + len(ids))"))
    model.model.train()

    def touched(*_):
        raise AssertionError("the mode of the model is changed")

    model.model.train = model.model.eval = model.model.forward = touched
    given = features(7)
    np.testing.assert_array_equal(looked_up(model, given)[0], (given["ids"] + 7).reshape(-1))
    assert model.model.training


REFUSED = {
    "weights": (
        "found = self.table((self.linear(x) * 10).long())",
        r"ids of embedding 'table' are computed from linear\.\w+, which is being trained",
    ),
    "statistics": (
        "found = self.table((torch.nn.functional.batch_norm(x, self.norm.running_mean,"
        " self.norm.running_var) * 10).long())",
        r"computed from norm\.running_\w+, which is being trained",
    ),
    "rows": (
        "found = self.table(self.table(ids)[:, :, 0].long())",
        "computed from the rows of table 'table'",
    ),
    "chance": (
        "found = self.table(torch.randint(0, 9, ids.shape))",
        "computed from random numbers drawn inside the model",
    ),
    "a branch": (
        "found = self.table(ids)\nif x.sum() > 0:\n    found = self.table(ids + 1)",
        r"chooses what to compute by the values of a tensor \(model.py, line 15\)",
    ),
    "an item": (
        "found = self.table(ids * int(ids.max()))\nfound = found if int(ids.max()) > 3 else -found",
        "chooses what to compute by the values of a tensor",
    ),
    "numbers of NumPy": (
        "found = self.table(torch.from_numpy(ids.numpy() + 1))",
        r"forward\(\) cannot be traced.*model.py, line 14.*in feed_batch",
    ),
    "floats": ("found = self.table(x)", r"embedding 'table' was called with torch.float32 ids"),
    "bools": ("found = self.table(ids > 0)", r"embedding 'table' was called with torch.bool ids"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ids_that_do_not_are_refused(served, name):
    lines, message = REFUSED[name]
    with pytest.raises(UserError, match=message):
        served(module(lines))


def test_an_error_of_the_module_is_the_users(served):
    with pytest.raises(UserCodeError, match=r"calling the model of model.py raised KeyError: 'no'"):
        served(module("found = self.table(features['no'])"))


def test_other_ids_in_the_step_than_before_it_are_never_trained(served):
    model = served(module("found = self.table(ids + (1 if self.training else 0))"))
    with pytest.raises(UserError, match="called with other ids in the step than were looked up"):
        model.train_batch(batch(features()), 0)
    model = served(module("found = self.table(ids + 1 if self.training else ids)"))
    with pytest.raises(UserError, match="called with other ids in the step than were looked up"):
        model.train_batch(batch(features()), 0)
    model = served(module("found = self.table(ids)\nif self.training: found = self.table(ids)"))
    with pytest.raises(UserError, match="was called once more in the step"):
        model.train_batch(batch(features()), 0)
    model = served(module("found = x\nif not self.training: found = self.table(ids)"))
    with pytest.raises(UserError, match="forward did not call its embedding"):
        model.train_batch(batch(features()), 0)


def batch(given):
    from shoal.worker.input.batch import Batch

    size = len(given["ids"])
    return Batch(given, torch.ones(size), size, 0, size)


BAGS = """
import torch, shoal.torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = shoal.torch.EmbeddingBag(3, mode="sqrtn", padding_idx=7)

    def forward(self, features):
        return self.bag(features["values"], features["offsets"]).sum(1)
"""


def test_bags_by_offsets_are_looked_up_by_their_values(served):
    from shoal.worker.input.spec import ArraySpec

    integers = np.dtype(np.int64)
    spec = {"values": ArraySpec((None,), integers), "offsets": ArraySpec((None,), integers)}
    model = served(BAGS + TAIL, spec=spec)
    given = {"values": torch.tensor([5, 7, 9, 5, 2]), "offsets": torch.tensor([0, 2, 2])}
    np.testing.assert_array_equal(looked_up(model, given)[0], [5, 7, 9, 5, 2])
    rows = model.servers.rows(0, np.array([5, 9, 2]))
    expected = [rows[0].sum(), 0, (rows[1] + rows[0] + rows[2]).sum() / 3**0.5]
    np.testing.assert_allclose(model.predict_batch(given), expected, atol=1e-6)


def test_ids_outside_of_a_plain_table_are_named(served):
    plain = module("found = self.table(ids)").replace(
        "shoal.torch.Embedding(4)", "torch.nn.Embedding(100, 4)"
    )
    model = served(plain, embedding_threshold=0)
    given = features()
    given["ids"] = given["ids"] % 100
    looked_up(model, given)
    given["ids"][1, 2] = 100
    with pytest.raises(UserError, match="'table' was given the id 100: its ids go from 0 to 99"):
        looked_up(model, given)


OF_FLOATS = {
    "whole": "found = self.table(x.long())",
    "shifted": "found = self.table(x.to(torch.int32) + 5)",
    "a column": "found = self.table(x[:, 0].long())[:, None]",
    "written to": "y = x.clone()\ny[:, 1] = 0\nfound = self.table(x.flatten(1).long() + y.long())",
    "by sizes": "found = self.table(x.long() + torch.arange(len(x))[:, None])",
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_ids_of_floats_that_are_too_large_are_refused(served, name):
    model = served(module(OF_FLOATS[name]))
    given = features()
    looked_up(model, given)
    given["x"][3, 0] = 2.0**24
    with pytest.raises(UserError, match=r"feature 'x' is 16777216 as float32, and the model makes"):
        looked_up(model, given)


def test_floats_that_a_model_computes_with_may_have_any_size(served):
    model = served(module("found = self.table(x.log().long())"))
    given = features()
    given["x"] = torch.full((5, 2), 2.0**30)
    assert looked_up(model, given)[0].tolist() == [20] * 10
