"""What a server says of one id: nothing, counted, a row, removed; of a table that is not there."""

import numpy as np
import pytest

from shoal.client.ask.explaining import explained
from shoal.native.ids import slot_of
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.found_ids import find_id
from shoal.ps.model.tables import ServerModel
from tests.ps.groups import spec


def ask(model, table, key, server=0, servers=1):
    request = pb.FindIdRequest(table=table, id=key)
    return find_id(model, request, server, Routing.even(servers))


@pytest.fixture
def model():
    return ServerModel(spec(3), 0, 1, 16384)


def push(model, ids, step):
    table = model.tables[0]
    ids = np.array(ids, np.int64)
    gradients = np.ones((ids.size, table.dim), np.float32)
    table.update(ids, gradients, learning_rate=0.1, step=step)


def test_an_id_is_counted_until_it_has_its_row(model):
    name = model.spec.tables[0].name
    assert ask(model, name, 7).state == pb.FoundId.NOTHING
    for step in (1, 2):
        push(model, [7], step)
        found = ask(model, name, 7)
        assert (found.state, found.uses, found.last_step) == (pb.FoundId.COUNTED, step, step)
    assert f"2 of {found.table.admit_after} pushes" in dict(explained(found))["state"]
    push(model, [7], 3)
    found = ask(model, name, 7)
    assert (found.state, found.uses, found.last_step) == (pb.FoundId.ROW, 3, 3)
    values, slots, _, _ = model.tables[0].find(7)
    assert found.norm == pytest.approx(np.linalg.norm(values))
    assert {each.slot for each in found.slots} == set(slots)
    model.tables[0].remove(np.array([7], np.int64))
    assert ask(model, name, 7).state == pb.FoundId.NOTHING


def test_a_table_that_is_not_there_and_an_id_of_another_server(model):
    name = model.spec.tables[0].name
    with pytest.raises(WireError, match=rf"no table '{name}x' \(did you mean {name}"):
        ask(model, f"{name}x", 7)
    owner = int(Routing.even(2).owners[slot_of(np.array([7], np.int64))[0]])
    with pytest.raises(WireError, match=f"id 7 is on ps-{owner}"):
        ask(model, name, 7, server=1 - owner, servers=2)
