"""The cluster that the tests of topics share; each has topics of its own."""

import pytest

from tests.data.kafka import cluster as clusters


@pytest.fixture(scope="session")
def cluster():
    with clusters.running() as found:
        yield found
