"""Fixtures of the tests of the master."""

from __future__ import annotations

import socket

import pytest

PATIENCE = 60.0


@pytest.fixture
def stalled():
    """A port to which a misbehaving worker connects, and a wait for that."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)

        def wait():
            listener.accept()[0].close()

        yield listener.getsockname()[1], wait
