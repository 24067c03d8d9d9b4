"""What a server counts as used is what its memory grows by."""

import pytest

from tests.memory import told_by

pytestmark = pytest.mark.slow


def test_a_keeper_says_within_a_fifth_what_logs_of_others_cost_it():
    """Small pushes cost more beside their bytes: a server gets them of each batch."""
    sizes = told_by("""
from shoal.ps.update_log.peer_store import PeerLogs
keep_freed_memory()
base = pb.LogBase(log="a" * 16, incarnation=1)

def fill(size, bound):
    held = PeerLogs()
    held.begin(pb.BeginLogRequest(base=base))
    first, count = 1, min(100, (1 << 18) // size)
    while len(held) < bound:
        group = pb.LogGroup(first=first, sizes=[size] * count)
        for step in range(first, first + count):
            each = group.entries.add(log=base.log, incarnation=1, staleness=1)
            each.step, each.journal.number = step + (1 << 33), 5000
        held.append((group, memoryview(bytes(size * count))))
        first += count
    return held

kept, sizes = [fill(40, 1 << 20)], []
for size in (40, 120, 1200, 1 << 15):
    before = resident_bytes()
    kept.append(fill(size, 1 << 24))
    sizes.append((len(kept[-1]), resident_bytes() - before))
print(json.dumps(sizes))
""")
    for counted, grown in sizes:
        assert counted == pytest.approx(grown, rel=0.2)


def test_a_server_keeps_little_of_each_worker_and_nothing_of_those_that_were_replaced():
    """Nobody counts it: ten thousand workers are 2 MB."""
    first, later = told_by("""
from shoal.ps.model.pushes import PushRegister
WORKERS = 50_000
register = PushRegister()

def push(incarnation):
    before = resident_bytes()
    for worker in range(WORKERS):
        identity = pb.PushIdentity(worker=worker, incarnation=incarnation, sequence=1)
        with register.admit(pb.PushRequest(identity=identity, task=5, records_done=3)) as new:
            assert new
    return (resident_bytes() - before) / WORKERS

print(json.dumps([push(0), sum(push(each) for each in range(1, 4))]))
""")
    assert 0 < first < 300
    assert later < 10
