"""Large tables that are small enough for tests."""

import collections

import pytest

from shoal.ps.forgetting import planning, sweeps
from shoal.ps.forgetting.planning import Planning
from shoal.ps.forgetting.sweeps import Candidates


@pytest.fixture
def in_slices(monkeypatch):
    """Tables of more than 1,000 rows are large; the slices, and the parts, that each push had."""
    monkeypatch.setattr(planning, "SLICE", 1_000)
    monkeypatch.setattr(sweeps, "PART_FILL", 50)
    done = collections.Counter()
    for of, name in ((Planning, "look"), (Candidates, "remove")):
        method = getattr(of, name)

        def counted(*arguments, method=method, name=name):
            done[name] += 1
            return method(*arguments)

        monkeypatch.setattr(of, name, counted)
    return done
