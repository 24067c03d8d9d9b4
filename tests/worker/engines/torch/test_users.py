"""Modules as people have them: each trains as with PyTorch alone, or is refused by name."""

import dataclasses
import shutil
import textwrap

import numpy as np
import pytest

from shoal.errors import UserCodeError, UserError
from shoal.worker.input.batch import Batch
from shoal.worker.input.spec import ArraySpec

torch = pytest.importorskip("torch")

NET = """
import functools, torch
from torch import nn
import torch.nn.functional as F
import shoal.torch
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        MADE

    def forward(self, features):
        ids, x = features["ids"], features["x"]
        CALLED

def feed_batch(columns, mode, metadata):
    return columns

loss = nn.BCEWithLogitsLoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

MADE = "self.table = nn.Embedding(20, 4); self.last = nn.Linear(12, 1)"
CALLED = "return self.last(self.table(ids).flatten(1))[:, 0]"


def text(made=MADE, called=CALLED, more=""):
    indent = "\n" + " " * 8
    return NET.replace("MADE", indent.join(made.splitlines())).replace(
        "CALLED", indent.join(textwrap.dedent(called).splitlines())
    ) + textwrap.dedent(more)


def batch(size=6, labels=None):
    rng = np.random.default_rng(3)
    features = {
        "ids": torch.from_numpy(rng.integers(1, 20, (size, 3))),
        "x": torch.from_numpy(rng.normal(size=(size, 2)).astype(np.float32)),
    }
    labels = rng.integers(0, 2, size).astype(np.float32) if labels is None else labels
    return Batch(features, torch.from_numpy(labels), size, 0, size)


def twin_of(model, source):
    """The module of plain PyTorch, and the names of its file."""
    names = {"__name__": "twin"}
    exec(source, names)
    twin = names["Net"]()
    values = dict(model.model.state_dict())
    every = [np.arange(20)] * len(model.tables)
    if every:
        pulled = model.servers.pull([[each] for each in every], training=True)
        for name, rows, ids in zip(model.tables, pulled.rows, pulled.ids, strict=True):
            values[f"{name}.weight"] = torch.from_numpy(rows[ids.inverses[0]])
    twin.load_state_dict({name: each.clone() for name, each in values.items()})
    return twin, names


def same(served, source, given, *, threshold, of=None, **options):
    """Train three steps beside PyTorch, and compare losses and predictions."""
    labels = ArraySpec((None, *given.labels.shape[1:]), given.labels.numpy().dtype)
    model = served(source, labels=labels, embedding_threshold=threshold, **options)
    twin, names = twin_of(model, source)
    optimizer = names["optimizer"](list(twin.parameters()))
    of = of or (lambda predictions, batch: names["loss"](predictions, batch.labels))
    for _ in range(3):
        loss = model.train_batch(given, 0)
        optimizer.zero_grad()
        expected = of(twin(given.features), given)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    twin.eval()
    with torch.no_grad():
        np.testing.assert_allclose(
            np.asarray(model.predict_batch(given.features)), twin(given.features), atol=1e-5
        )


PADDED = """
mask = ids.flip(1) < 5
mask[:, 0] = False
steps = self.steps(self.table(ids), src_key_padding_mask=mask)
return self.last(steps[:, 0])[:, 0]
"""

PACKED = """
lengths = (ids > 4).sum(1).clamp(min=1)
packed = nn.utils.rnn.pack_padded_sequence(
    self.table(ids), lengths, batch_first=True, enforce_sorted=False)
return self.last(self.steps(packed)[1][-1])[:, 0]
"""

TRAINED = {
    "a column each": (
        "self.tables = nn.ModuleList(nn.Embedding(20, 4) for _ in range(3))",
        "return sum(self.tables[i](ids[:, i]) for i in range(3)).sum(1)",
    ),
    "packed sequences": (
        "self.table = nn.Embedding(20, 4); self.steps = nn.GRU(4, 5, batch_first=True)\n"
        "self.last = nn.Linear(5, 1)",
        PACKED,
    ),
    "a transformer of padded steps": (
        "self.table = nn.Embedding(20, 4); self.last = nn.Linear(4, 1)\n"
        "self.steps = nn.TransformerEncoder(nn.TransformerEncoderLayer(\n"
        "    4, 2, 8, dropout=0.0, batch_first=True), 1)",
        PADDED,
    ),
    "sparse gradients": (
        "self.table = nn.Embedding(20, 4, sparse=True); self.last = nn.Linear(12, 1)",
        CALLED,
    ),
    "a part that is computed again": (
        MADE,
        "vectors = self.table(ids).flatten(1)\n"
        "return checkpoint(self.last, vectors, use_reentrant=False)[:, 0]",
    ),
}


@pytest.mark.parametrize("threshold", [0, 1e18])
@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_as_pytorch_does(served, name, threshold):
    made, called = TRAINED[name]
    source = text(made, called)
    same(served, source, batch(), threshold=threshold)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_module_trains_the_same(served):
    model, usual = (
        served(text(MADE + more), embedding_threshold=0) for more in ("\nself.compile()", "")
    )
    for _ in range(2):
        assert model.train_batch(batch(), 0) == pytest.approx(usual.train_batch(batch(), 0))


def test_arguments_of_a_loss_keep_the_order_of_pytorch(served):
    more = """
    loss = functools.partial(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(3.0))
    """
    same(served, text(more=more), batch(), threshold=1e18)


@pytest.mark.parametrize(
    "loss",
    [
        "lambda p, y: F.binary_cross_entropy_with_logits(p, y)",
        "lambda labels, logits: F.binary_cross_entropy_with_logits(logits, labels)",
    ],
)
def test_a_function_of_the_users_is_called_by_its_names(served, loss):
    usual = torch.nn.functional.binary_cross_entropy_with_logits
    same(
        *(served, text(more=f"loss = {loss}\n"), batch()),
        threshold=1e18,
        of=lambda predictions, batch: usual(predictions, batch.labels),
    )


def test_a_sum_stays_one_where_records_are_weighted(served):
    source = text(more="loss = nn.BCEWithLogitsLoss(reduction='sum')\n")
    weights = torch.arange(6.0)

    def expected(predictions, batch):
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            predictions, batch.labels, reduction="none"
        )
        return (each * weights).sum()

    given = dataclasses.replace(batch(), weights=weights)
    same(served, source, given, threshold=1e18, of=expected)


def test_classes_that_are_no_whole_numbers_are_refused(served):
    source = text(
        "self.table = nn.Embedding(20, 4); self.last = nn.Linear(12, 3)",
        "return self.last(self.table(ids).flatten(1))",
        "loss = nn.CrossEntropyLoss()\n",
    )
    same(served, source, batch(labels=np.arange(6) % 3), threshold=1e18)
    with pytest.raises(UserError, match=r"is of classes, and a label is 1\.5: give whole numbers"):
        served(source).train_batch(batch(labels=np.full(6, 1.5, np.float32)), 0)


IN_STEP = {
    "writes to a parameter": (
        MADE,
        "with torch.no_grad():\n    self.last.weight.clamp_(min=0)\n" + CALLED,
        r"writes to its parameter last\.weight, which the servers hold",
    ),
    "writes to the memory of a parameter": (
        MADE,
        "self.last.weight.data.add_(0.1)\n" + CALLED,
        r"writes to its parameter last\.weight, which the servers hold",
    ),
    "looks up again": (
        MADE,
        "return checkpoint(lambda ids: self.last(self.table(ids).flatten(1)), ids,"
        " use_reentrant=False)[:, 0]",
        "embedding 'table' was called again while gradients are computed",
    ),
    "has several outputs and one loss": (
        MADE,
        "return {'a': self.last(self.table(ids).flatten(1))[:, 0]}",
        "BCEWithLogitsLoss takes one tensor of predictions, and the model gives a dict: make loss",
    ),
}


@pytest.mark.parametrize("name", IN_STEP)
def test_a_step_that_servers_would_not_do_is_refused(served, name):
    made, called, message = IN_STEP[name]
    with pytest.raises(UserError, match=message):
        served(text(made, called), embedding_threshold=0).train_batch(batch(), 0)


BUILT = {
    "a norm": (
        "self.table = nn.Embedding(20, 4, max_norm=1.0); self.last = nn.Linear(12, 1)",
        1e18,
        "table of the model in model.py has max_norm, by which a lookup changes weights",
    ),
    "a hook": (
        MADE + "\nself.table.weight.register_hook(lambda gradient: gradient / 2)",
        0,
        "its weight has a hook of gradients, which are of looked-up rows there",
    ),
}


@pytest.mark.parametrize("name", BUILT)
def test_what_servers_would_not_do_is_refused(served, name):
    made, threshold, message = BUILT[name]
    with pytest.raises(UserError, match=message):
        served(text(made), embedding_threshold=threshold)


def test_an_error_of_shapes_is_told_without_a_trace(served, capfd, caplog):
    with pytest.raises(UserCodeError, match=r"shapes cannot be multiplied \(\d+x12 and 13x1\)"):
        served(text("self.table = nn.Embedding(20, 4); self.last = nn.Linear(13, 1)"))
    assert "Traceback" not in capfd.readouterr().err
    assert not [each for each in caplog.records if "fake_tensor" in each.name and each.exc_info]
