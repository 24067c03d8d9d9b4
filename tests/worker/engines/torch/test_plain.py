"""Plain nn.Embedding and EmbeddingBag as tables, against PyTorch with their weights."""

import copy
import dataclasses

import numpy as np
import pytest

from shoal.native.initializers import InitializerSpec
from tests.worker.engines.torch.conftest import NET
from tests.worker.engines.torch.test_training import as_batch, batches

torch = pytest.importorskip("torch")

COUNT = 9
MADE = {
    "plain": "torch.nn.Embedding(9, 4)",
    "with padding": "torch.nn.Embedding(9, 4, padding_idx=2)",
    "with padding that is filled": "torch.nn.Embedding(9, 4, padding_idx=-7)\n"
    "        torch.nn.init.normal_(self.deep.weight, std=0.1)",
    "with padding that is zeroed": "torch.nn.Embedding(9, 4, padding_idx=2)\n"
    "        self.deep.weight.data.uniform_(-1, 1)\n"
    "        self.deep.weight.data[2].zero_()",
    "given": "torch.nn.Embedding.from_pretrained(torch.arange(36.0).reshape(9, 4) / 36, "
    "freeze=False)",
    "given and frozen": "torch.nn.Embedding.from_pretrained(torch.ones(9, 4))",
    "sparse": "torch.nn.Embedding(9, 4, sparse=True)",
}


def small(batch):
    """The batch with ids from 0 to 8, the padding among them."""
    ids = batch.features["ids"] % COUNT
    ids[0, 0] = 2
    return dataclasses.replace(batch, features=batch.features | {"ids": ids})


def plain_twin(model):
    """The module with weights of its own, which have the rows of the servers."""
    twin = type(model.model)()
    state = {name: each.clone() for name, each in model.model.state_dict().items()}
    for position, name in enumerate(model.tables):
        ids = np.arange(COUNT)
        pulled = model.servers.pull(
            [[ids] if i == position else [ids[:0]] for i in range(len(model.tables))], training=True
        )
        state[f"{name}.weight"] = torch.from_numpy(
            pulled.rows[position][pulled.ids[position].inverses[0]]
        )
    padding = getattr(twin.deep, "padding_idx", None)
    if padding in model.tables["deep"].layer.zeroed:
        state["deep.weight"][padding] = 0
    twin.load_state_dict(state)
    return twin


@pytest.mark.parametrize("name", MADE)
def test_it_trains_as_with_weights(served, name):
    text = NET.replace("shoal.torch.Embedding(4)", MADE[name]).replace(
        "shoal.torch.Embedding(1)", "torch.nn.Embedding(9, 1)"
    )
    model = served(text, embedding_threshold=20)
    assert [table.vocabulary for table in model.tables.values()] == [COUNT, COUNT]
    assert not [name for name, _ in model.model.named_parameters() if "deep" in name]
    twin = plain_twin(model)
    first = copy.deepcopy(twin.state_dict())
    weights = [each for each in twin.parameters() if each.requires_grad]
    # Servers have no sparse gradients, and the same result.
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for given in batches(10):
        batch = small(as_batch(*given))
        loss = model.train_batch(batch, 0)
        optimizer.zero_grad()
        expected = torch.nn.BCEWithLogitsLoss()(twin(batch.features), batch.labels)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    moved = plain_twin(model).state_dict()["deep.weight"]
    np.testing.assert_allclose(moved, twin.state_dict()["deep.weight"], atol=1e-6)
    if "frozen" in name:
        assert torch.equal(moved, first["deep.weight"])
    else:
        assert not torch.equal(moved, first["deep.weight"])


def test_a_bag_trains_as_with_weights(served):
    made = "torch.nn.EmbeddingBag(9, 4, mode='mean', padding_idx=2)"
    text = (
        NET.replace("shoal.torch.Embedding(4)", made)
        .replace("self.deep(ids).flatten(1)", "self.deep(ids).repeat(1, 3)")
        .replace("self.deep(ids[:, :0].sum(1, keepdim=True)).flatten(1)", "self.deep(ids[:, 1:])")
    )
    model = served(text, embedding_threshold=100)
    assert [table.vocabulary for table in model.tables.values()] == [COUNT, 0]
    batch = small(as_batch(*next(batches(1))))
    twin = type(model.model)()
    before = model.servers.pull([[np.arange(COUNT)], [np.zeros(0, np.int64)]], training=True)
    rows = before.rows[0][before.ids[0].inverses[0]]
    loss = model.train_batch(batch, 0)
    # The other table is on servers in the twin as well.
    from shoal.torch.lookups import lookup_with

    state = dict(model.model.state_dict())
    twin.load_state_dict(state | {"deep.weight": torch.from_numpy(rows)}, strict=False)
    assert np.isfinite(loss)
    with lookup_with(lambda table, ids: torch.zeros(*ids.shape, table.dim)):
        twin.eval()(batch.features)
    found = model.model.deep.weight.served
    assert (found.padding_idx, found.init) == (2, InitializerSpec("normal", {"stddev": 1.0}))


def test_small_ones_stay_in_the_workers(served):
    text = NET.replace("shoal.torch.Embedding(4)", "torch.nn.Embedding(9, 4)")
    model = served(text, embedding_threshold=9 * 16)
    assert list(model.tables) == ["wide"]
    assert "deep.weight" in dict(model.model.named_parameters())
