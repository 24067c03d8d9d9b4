"""Models that are too large are refused before anything is reserved for them."""

import pytest

from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.model_bounds import (
    MAX_RANK,
    MAX_TABLES,
    MAX_TEXT,
    MAX_VARIABLES,
    check_model,
)
from shoal.ps.model import tables
from shoal.ps.model.tables import ServerModel

ADAM = OptimizerSpec("adam").to_json()
TABLE = pb.TableSpec(
    name="items", dim=3, optimizer=ADAM, initializer=InitializerSpec("uniform").to_json()
)


def whole():
    return pb.ModelSpec(
        tables=[TABLE],
        trainable=[
            pb.VariableSpec(name="w", shape=[2, 3]),
            pb.VariableSpec(name="b", shape=[3], offset=6),
            pb.VariableSpec(name="scalar", offset=9),
        ],
        non_trainable=[pb.VariableSpec(name="mean", shape=[0])],
        dense_optimizer=ADAM,
    )


def changed(change):
    model = whole()
    change(model)
    return model


def many(field, made, count):
    return changed(lambda model: getattr(model, field).extend([made] * count))


TOO_LARGE = {
    f"tables: {MAX_TABLES + 1}": many("tables", TABLE, MAX_TABLES),
    f"trainable: {MAX_VARIABLES + 3}": many("trainable", pb.VariableSpec(), MAX_VARIABLES),
    f"non_trainable: {MAX_VARIABLES + 1}": many("non_trainable", pb.VariableSpec(), MAX_VARIABLES),
    "trainable: 1649267441674 elements": many("trainable", pb.VariableSpec(shape=[2**39]), 3),
    r"tables\[0\].dim: 0 is": changed(lambda m: setattr(m.tables[0], "dim", 0)),
    r"tables\[0\].dim: 4294967295 is": changed(lambda m: setattr(m.tables[0], "dim", 2**32 - 1)),
    r"tables\[0\].value_dtype": changed(lambda m: setattr(m.tables[0], "value_dtype", "int8")),
    r"tables\[0\].vocabulary": changed(lambda m: setattr(m.tables[0], "vocabulary", -1)),
    r"tables\[0\].name": changed(lambda m: setattr(m.tables[0], "name", "a" * (MAX_TEXT + 1))),
    r"tables\[0\].optimizer": changed(lambda m: setattr(m.tables[0], "optimizer", "[" * 10**6)),
    r"tables\[0\].initializer": changed(lambda m: setattr(m.tables[0], "initializer", " " * 5000)),
    "dense_optimizer": changed(lambda m: setattr(m, "dense_optimizer", " " * 5000)),
    r"trainable\[0\].name": changed(lambda m: setattr(m.trainable[0], "name", "a" * 5000)),
    r"trainable\[0\].shape: 34": changed(lambda m: m.trainable[0].shape.extend([1] * MAX_RANK)),
    r"trainable\[0\].shape: \[2, 3, -1, -1\]": changed(
        lambda m: m.trainable[0].shape.extend([-1, -1])
    ),
    r"trainable\[0\].shape: \[2, 3, 9223": changed(
        lambda m: m.trainable[0].shape.extend([2**63 - 1])
    ),
    r"trainable\[1\].offset: 8": changed(lambda m: setattr(m.trainable[1], "offset", 8)),
    r"trainable\[2\].offset: -1": changed(lambda m: setattr(m.trainable[2], "offset", -1)),
}


def test_a_usual_model_is_taken():
    check_model(whole())
    ServerModel(whole(), 0, 1, 16384)


@pytest.mark.parametrize("words", TOO_LARGE)
def test_a_server_reserves_nothing_for_a_model_out_of_bounds(words, monkeypatch):
    made = []
    monkeypatch.setattr(tables, "RowStore", lambda *_, **__: made.append(1))
    with pytest.raises(ValueError, match=words):
        check_model(TOO_LARGE[words])
    with pytest.raises(WireError, match=f"BAD_REQUEST.*model spec: {words}"):
        ServerModel(TOO_LARGE[words], 0, 1, 16384)
    assert made == []


def test_json_that_nests_too_deep_is_a_bad_request():
    model = changed(lambda m: setattr(m.tables[0], "optimizer", "[" * MAX_TEXT))
    with pytest.raises(WireError, match="BAD_REQUEST"):
        ServerModel(model, 0, 1, 16384)
