"""Routing tables are even, whole, and survive the wire."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.values.routing import SLOTS, Routing, slice_of


@given(st.integers(1, 200))
def test_the_default_is_even_and_contiguous(servers):
    owners = Routing.even(servers).owners.astype(int)
    counts = np.bincount(owners, minlength=servers)
    assert counts.max() - counts.min() <= 1
    assert (np.diff(owners) >= 0).all()


@given(st.integers(1, 200), st.integers(1, 2**40))
def test_a_table_survives_the_wire(servers, epoch):
    routing = Routing.even(servers, epoch)
    again = Routing.from_message(routing.to_message())
    assert (again.epoch, again.servers) == (epoch, servers)
    np.testing.assert_array_equal(again.owners, routing.owners)


def test_a_table_that_is_not_whole_is_refused():
    message = Routing.even(2).to_message()
    message.owners = message.owners[:-2]
    with pytest.raises(ValueError, match="16384 owners"):
        Routing.from_message(message)
    message = Routing.even(3).to_message()
    message.servers = 2
    with pytest.raises(ValueError, match="below 2"):
        Routing.from_message(message)


def test_an_absent_server_has_nothing():
    owners = np.where(Routing.even(3).owners == 1, 2, Routing.even(3).owners).astype(np.uint16)
    table = Routing(2, 3, owners, dense=1, absent=(1,))
    again = Routing.from_message(table.to_message())
    assert (again.present, again.absent, again.dense) == ([0, 2], (1,), 1)
    assert again.dense_slice(10, 1) == slice(10, 10)
    for wrong in (Routing(2, 3, Routing.even(3).owners, 1, (1,)), Routing(2, 3, owners, 3, (1,))):
        with pytest.raises(ValueError, match="absent"):
            Routing.from_message(wrong.to_message())


@pytest.mark.parametrize("servers", [0, SLOTS + 1])
def test_an_impossible_number_of_servers_is_refused(servers):
    with pytest.raises(ValueError, match="servers must be from 1"):
        Routing.even(servers)


@given(st.integers(0, 1000), st.integers(1, 20))
def test_slices_cover_a_vector_once(size, servers):
    covered = [i for s in range(servers) for i in range(size)[slice_of(size, s, servers)]]
    assert covered == list(range(size))
