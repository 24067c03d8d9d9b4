"""The staleness and age that servers count for each push, and how far a depth lets them go."""

import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.worker.reports.progress import Progress
from tests.worker.given import train
from tests.worker.networks import as_batch, batches


def counted(cluster, name):
    return [getattr(each.status(pb.ServerStatusRequest()), name) for each in cluster.servers]


def test_it_is_the_pushes_applied_and_the_time_passed_since_the_pull(
    served, cluster, server_group, monkeypatch
):
    """Three batches are pulled before the first is pushed: 0, 1 and 2 pushes come between."""
    made = cluster(2)
    model = served(group=server_group(made))
    for server in made.servers:
        server.answerer.open(False)  # it has the system's clock
        monkeypatch.setattr(server.model, "time", lambda: clock[0])
    clock = [100.0]
    prepared = []
    for batch in batches(3):
        prepared.append(model.prepare(as_batch(*batch)))
        clock[0] += 0.25  # exact in binary
    for each in prepared:
        clock[0] += 1.0
        model.servers.push(model.compute(each, task=1)[1])
    for staleness in counted(made, "staleness"):
        assert (staleness.count, staleness.sum, staleness.maximum) == (3, 3.0, 2.0)
        assert list(staleness.buckets) == [1, 1, 1]  # 0, 1, and 2 to 3
    for age in counted(made, "age"):
        # 1.75, 2.5 and 3.25 s: of 1024 to 2047 ms one, of 2048 to 4095 two.
        assert (age.count, age.sum, age.maximum) == (3, 7.5, 3.25)
        assert list(age.buckets) == [0] * 11 + [1, 2]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_no_row_is_more_own_pushes_old_than_the_depth(
    served, cluster, server_group, depth, accumulate
):
    made = cluster(2)
    model = served(group=server_group(made))
    model.accumulated = accumulate
    steps = [as_batch(*batch, done=4 * (i + 1)) for i, batch in enumerate(batches(24))]
    train(model, depth, Progress(), *([steps[:15], steps[15:]] if depth else [steps]))
    pushes = {1: 24, 2: 13 if depth else 12}[accumulate]
    for staleness in counted(made, "staleness"):
        assert staleness.count == sum(staleness.buckets) == pushes
        assert staleness.maximum <= depth
