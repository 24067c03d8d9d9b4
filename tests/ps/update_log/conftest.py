"""Jobs whose servers log their updates, for the tests of logs."""

import pytest

from shoal.proto import faults
from shoal.ps.update_log import peer_sink
from tests.ps.logged import Faults, World


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = []
    named = Faults(tmp_path)
    monkeypatch.setattr(faults, "point", named.point)
    monkeypatch.setattr(faults, "files_of", named.files_of)
    monkeypatch.setattr(peer_sink, "APPEND_PATIENCE", 0.0)

    def make(count, **options):
        made.append(World(count, tmp_path / str(len(made)), named, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
