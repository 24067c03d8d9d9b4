"""Tests of whole jobs with models of PyTorch and of Keras on JAX in the place of TensorFlow's.

These few are run with all tests, and many more by `make test-engines`.
"""

import pytest

from tests.jobs.running import ENGINE
from tests.jobs.test_exactly_once import (  # noqa: F401
    test_kills_between_servers_of_all_workers_and_in_evaluation,
)
from tests.jobs.test_log import test_a_log_in_files_outlives_all_servers_at_once  # noqa: F401
from tests.jobs.test_resume import (  # noqa: F401
    test_killed_whole_and_resumed_with_other_numbers_of_processes,
)
from tests.jobs.test_scale_servers import (  # noqa: F401
    test_each_record_counts_once_on_servers_that_come_leave_and_die,
)
from tests.jobs.test_sync import (  # noqa: F401
    test_a_worker_killed_between_servers_leaves_them_alike,
)


@pytest.fixture(autouse=True, params=["torch", "jax"])
def engine(request, monkeypatch):
    monkeypatch.setenv(ENGINE, request.param)
