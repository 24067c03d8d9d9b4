"""Numbers that take time to find."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import shoal_pb2 as pb
from shoal.ps.model.measured import SHARE, Measured
from tests.ps.caller import model_spec


@given(st.floats(0.001, 10.0), st.lists(st.floats(0.0, 100.0), min_size=1, max_size=200))
def test_measuring_takes_a_bounded_share_of_the_time(price, gaps):
    now, measured = 0.0, []

    def measure():
        nonlocal now
        now += price
        measured.append(now)
        return len(measured)

    cost = Measured(measure, lambda: now)
    for gap in gaps:
        now += gap
        assert cost.value() == len(measured)
    assert (len(measured) - 1) * price <= SHARE * now + price
    # It is measured again once that is paid for.
    now += price / SHARE + price
    before = len(measured)
    cost.value()
    assert len(measured) == before + 1


def test_a_server_does_not_measure_its_tables_at_every_question(cluster):
    (server,) = cluster(servers=1).servers
    server.registration.register(pb.RegisterRequest(model=model_spec()))
    (store,) = server.model.tables
    (memory,) = server.model.memory
    asked = []

    def measure():
        asked.append(store.memory_bytes())
        return asked[-1]

    now = 0.0

    def clock():  # each look takes a second
        nonlocal now
        now += 1.0
        return now

    server.model.memory[0] = Measured(measure, clock)
    told = [server.status(pb.ServerStatusRequest()).tables[0].memory_bytes for _ in range(50)]
    assert told == [asked[0]] * 50
    assert asked[0] > 0
    assert memory.value() > 0
