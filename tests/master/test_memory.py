"""What the master counts as used is what its memory grows by."""

import pytest

from tests.memory import told_by

pytestmark = pytest.mark.slow


def test_metric_states_cost_the_master_what_an_evaluation_counts():
    """As sums of tasks come in, and as the message that a worker gets of them."""
    counted, in_parts, as_message = told_by("""
import numpy as np
from shoal.master.work.evaluation.evaluation import MergedStates
share_heaps()

def states(records):
    rows = np.random.default_rng(1).random((records, 5))
    array = pb.DoubleArray(shape=rows.shape, values=rows.ravel())
    metric = pb.MetricState(name="by_user", variables=[array], appended=True)
    return pb.MetricStates(metrics=[metric]).SerializeToString()

of_a_task, merged = states(2_000), MergedStates()
merged.add(pb.MetricStates.FromString(of_a_task), "worker-0")
before = resident_bytes()
for _ in range(500):
    merged.add(pb.MetricStates.FromString(of_a_task), "worker-0")
counted, in_parts = sum(merged._sizes.values()), resident_bytes() - before
message = merged.to_message()
print(json.dumps([counted, in_parts, resident_bytes() - before - in_parts]))
""")
    assert counted == pytest.approx(40 * 2_000 * 501)
    assert in_parts == pytest.approx(counted, rel=0.2)
    assert as_message == pytest.approx(counted, rel=0.2)


def test_a_journal_keeps_no_event_in_memory_that_it_has_written(tmp_path):
    """Nor what it reads to compress a segment."""
    written, grown = told_by(f"""
from pathlib import Path
from shoal.master.journal import journal as journals
from shoal.master.journal.events import Event
from tests.master.strategies import config
share_heaps()
journals.SEGMENT_BYTES = 2_000_000
journal = journals.Journal(Path({str(tmp_path)!r}) / "journal", config())
journal.restore()

def write(events):
    for number in range(events):
        journal.add(Event("begin", float(number), {{"why": "x" * 1_000}}))
        if number % 500 == 499:
            journal.commit()
    journal._packing.submit(int).result()

write(10_000)
before, first = resident_bytes(), journal.position.number
write(40_000)
print(json.dumps([1_000 * (journal.position.number - first), resident_bytes() - before]))
journal.close()
""")
    assert written == 40_000_000
    assert grown < 0.2 * written
