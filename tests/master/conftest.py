"""Fixtures of the tests of the master."""

from __future__ import annotations

import socket

import pytest

from shoal.master.work.accounts import lease_book
from tests.master.decided import by_events_alone

PATIENCE = 60.0


@pytest.fixture
def stalled():
    """A port to which a misbehaving worker connects, and a wait for that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)

        def wait():
            listener.accept()[0].close()

        yield listener.getsockname()[1], wait


@pytest.fixture(autouse=True, scope="module")
def leases_are_packed_soon():
    """Leases are packed three at a time: the jobs here are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_book, "PACKED_TOGETHER", 3)
        yield


@pytest.fixture(autouse=True, scope="module")
def events_are_decided_by_events():
    """No event of any job here reads what only other calls set."""
    with by_events_alone():
        yield
