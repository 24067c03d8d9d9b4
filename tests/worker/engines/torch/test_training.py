"""Training by the engine against PyTorch alone, on the same batches."""

import dataclasses
import itertools

import numpy as np
import pytest

from shoal.errors import UserError
from shoal.worker.input.batch import Batch
from tests.worker.engines.torch.conftest import NET

torch = pytest.importorskip("torch")

IDS = np.array([3, -7, 2**61, 0, 11, -(2**63)], np.int64)

STEP = """
def training_step(model, features, labels):
    return torch.nn.functional.binary_cross_entropy_with_logits(model(features), labels)
"""

OPTIMIZERS = {
    "SGD": "lr=0.1",
    "SGD with momentum": "lr=0.1, momentum=0.9",
    "SGD by Nesterov": "lr=0.1, momentum=0.9, nesterov=True",
    "Adagrad": "lr=0.05",
    "Adam": "lr=0.02",
    "AdamW": "lr=0.02, weight_decay=0.1",
    "RMSprop": "lr=0.01",
    "RMSprop with momentum": "lr=0.01, momentum=0.5",
}


def batches(count, size=6):
    """Batches that hold every id, so that lazy and dense rules agree."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        places = np.concatenate([rng.permutation(6), rng.integers(0, 6, 3 * size - 6)])
        x = rng.normal(size=(size, 2)).astype(np.float32)
        yield places.reshape(size, 3), x, rng.integers(0, 2, size).astype(np.float32)


def as_batch(places, x, labels):
    features = {"ids": torch.from_numpy(IDS[places]), "x": torch.from_numpy(x)}
    return Batch(features, torch.from_numpy(labels), len(labels), 0, len(labels))


class Rows(torch.nn.Module):
    """A plain table of IDS in place of one on servers."""

    def __init__(self, rows):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(rows))

    def forward(self, ids):
        place = (ids[..., None] == torch.from_numpy(IDS)).to(torch.int64).argmax(-1)
        return self.weight[place]


def rows_of(model, *, training):
    """The rows of IDS of each table; those that were never trained are drawn in training."""
    pulled = model.servers.pull([[IDS]] * len(model.tables), training=training)
    return [rows[ids.inverses[0]] for rows, ids in zip(pulled.rows, pulled.ids, strict=True)]


def twin_of(model, *, training=True):
    """The user's module as plain PyTorch, with the values that the servers begin with."""
    twin = type(model.model)()
    twin.load_state_dict(model.model.state_dict())
    for name, rows in zip(model.tables, rows_of(model, training=training), strict=True):
        setattr(twin, name, Rows(rows))
    return twin


def test_every_nth_step_tells_what_it_predicted(served):
    text = NET.replace("self.norm(self.hidden", "(self.hidden")
    model = served(text, progressive_steps=2)
    told = []
    for number, given in enumerate(itertools.starmap(as_batch, batches(4))):
        prepared = model.prepare(given)
        expected, _ = model.steps.predict(given.features, model.steps.inputs(prepared.pulled))
        _, push = model.compute(prepared, 1)
        for each in model.predicted(given, push):
            told.append(number)
            assert not each.outputs.requires_grad
            np.testing.assert_allclose(each.outputs, expected, rtol=1e-5)
        model.servers.push(push)
    assert told == [1, 3]


def test_a_step_that_has_no_predictions_is_refused(served):
    text = NET.replace("loss = torch.nn.BCEWithLogitsLoss()", STEP)
    served(text)
    words = r"^--progressive-steps: training_step\(\) .* gives a loss and no predictions"
    with pytest.raises(UserError, match=words):
        served(text, progressive_steps=2)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_job_trains_as_pytorch_does(served, name):
    made = f"torch.optim.{name.split()[0]}(parameters, {OPTIMIZERS[name]})"
    model = served(NET.replace("torch.optim.SGD(parameters, lr=0.1)", made))
    twin = twin_of(model)
    optimizer = eval(made, {"torch": torch, "parameters": list(twin.parameters())})
    loss_of = torch.nn.BCEWithLogitsLoss()
    for given in batches(20):
        batch = as_batch(*given)
        loss = model.train_batch(batch, 0)
        optimizer.zero_grad()
        expected = loss_of(twin(batch.features), batch.labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    model.pull_dense()
    ours = {name: each.detach().numpy() for name, each in model.model.named_parameters()}
    ours |= {name: each.numpy() for name, each in model.model.named_buffers()}
    for name, value in twin.state_dict().items():
        table = name.partition(".")[0]
        if table in model.tables:
            found = rows_of(model, training=True)[list(model.tables).index(table)]
        else:
            found = ours[name]
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_prediction_is_that_of_plain_pytorch(served):
    model = served()
    batch = as_batch(*next(batches(1)))
    twin = twin_of(model, training=False).eval()
    with torch.no_grad():
        expected = twin(batch.features)
    np.testing.assert_allclose(model.predict_batch(batch.features), expected, atol=1e-6)


def test_weights_of_records_scale_their_loss(served):
    weighed = served()
    batch = as_batch(*next(batches(1)))
    weights = torch.arange(6.0)
    loss = weighed.train_batch(dataclasses.replace(batch, weights=weights), 0)
    twin = twin_of(served())
    each = torch.nn.BCEWithLogitsLoss(reduction="none")(twin(batch.features), batch.labels)
    assert loss == pytest.approx(float((each * weights).mean().detach()), abs=1e-6)


def test_training_step_takes_the_place_of_a_loss(served):
    text = NET.replace(
        "loss = torch.nn.BCEWithLogitsLoss()",
        "def training_step(model, features, labels):\n"
        "    of = torch.nn.functional.binary_cross_entropy_with_logits\n"
        "    return 2 * of(model(features), labels)",
    )
    model, usual = served(text), served()
    batch = as_batch(*next(batches(1)))
    assert model.train_batch(batch, 0) == pytest.approx(2 * usual.train_batch(batch, 0), abs=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_16_bits_are_given_and_trained(served, dtype):
    text = NET.replace("shoal.torch.Embedding(4)", f"shoal.torch.Embedding(4, dtype=torch.{dtype})")
    text = text.replace("self.deep(ids).flatten(1)", "self.deep(ids).flatten(1).float()")
    model = served(text)
    assert [table.value_dtype for table in model.spec.tables] == [dtype, ""]
    batch = as_batch(*next(batches(1)))
    before = rows_of(model, training=True)[0]
    loss = model.train_batch(batch, 0)
    assert np.isfinite(loss)
    after = rows_of(model, training=True)[0]
    kept = torch.from_numpy(after).to(getattr(torch, dtype)).float().numpy()
    np.testing.assert_array_equal(after, kept)  # each has its 16 bits
    assert (after != before).any()


def test_texts_are_ids_by_their_hashes(served):
    from shoal.native.strings import string_ids
    from shoal.worker.engines.torch.tensors import tensors
    from shoal.worker.input.spec import ArraySpec
    from tests.worker.engines.torch.conftest import SPEC

    model = served(spec=SPEC | {"ids": ArraySpec((None, 3), np.dtype(object))})
    texts = np.array([["a", "b", "c"], ["a", "", "ü"]], object)
    given = tensors({"ids": texts, "x": np.zeros((2, 2))})
    assert given["x"].dtype == torch.float32
    found = model.built.ids.by_table(given)[0][0]
    np.testing.assert_array_equal(found, string_ids(texts).reshape(-1))


def test_numbers_that_no_tensor_has_are_told():
    from shoal.errors import UserError
    from shoal.worker.engines.torch.tensors import tensors

    small = tensors({"ids": np.array([5], np.uint64), "y": (np.array([1], np.uint16), None)})
    assert (small["ids"].dtype, small["y"][0].dtype) == (torch.int64, torch.int32)
    with pytest.raises(UserError, match="gives 9223372036854775808 as 'ids'"):
        tensors({"ids": np.array([2**63], np.uint64)})


def test_hooks_of_parameters_and_vectors_change_their_gradients(served):
    text = NET.replace(
        "self.last = torch.nn.Linear(5, 1)",
        "self.last = torch.nn.Linear(5, 1)\n"
        "        self.last.bias.register_hook(lambda g: g.clamp(-1e-3, 1e-3))",
    ).replace(
        "parts = [self.deep(ids).flatten(1),",
        "deep = self.deep(ids)\n"
        "        if deep.requires_grad: deep.register_hook(lambda g: g * 0)\n"
        "        parts = [deep.flatten(1),",
    )
    model = served(text)
    _, push = model.compute(model.prepare(as_batch(*next(batches(1)))), 0)
    names = [each.name for each in model.spec.trainable]
    assert abs(push.dense[0][-1]) == pytest.approx(1e-3)
    assert names[-1] == "last.bias"
    ids, gradient = push.tables[0]
    assert not gradient[ids != 0].any()  # id 0 is looked up by the other call as well
    assert gradient[ids == 0].any()
