"""--shuffle: what they mean, and values that are refused."""

import pytest

from shoal.errors import UserError
from tests.master.strategies import config


@pytest.mark.parametrize(
    ("flags", "tasks", "buffer"),
    [
        ({}, True, 0),
        ({"shuffle": "none"}, False, 0),
        ({"shuffle": "buffer:2"}, True, 2),
        ({"shuffle": "buffer:100000"}, True, 100_000),
        ({"shuffle": "time"}, False, 0),
    ],
)
def test_flags_of_the_order(flags, tasks, buffer):
    found = config(**flags)
    assert (found.shuffles_tasks, found.shuffle_buffer) == (tasks, buffer)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"shuffle": "buffer"}, r"not 'buffer': N is .* to 100000000, such as buffer:10000"),
        (
            {"shuffle": "buffer:1"},
            r"--shuffle must be tasks, buffer:N, none or time, not 'buffer:1'",
        ),
        ({"shuffle": "buffer:many"}, r"not 'buffer:many'"),
        ({"shuffle": "buffer:100000001"}, r"from 2 to 100000000"),
        ({"shuffle": "all"}, r"not 'all'"),
        ({"shuffle": "time", "epochs": 2}, r"trains on the data once, and --epochs is 2"),
    ],
)
def test_an_order_that_is_none_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        config(**flags)
