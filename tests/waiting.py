"""Waiting for what tests are not told of: looking again and again, for as long as it takes."""

import time

PATIENCE = 300.0
"""Seconds for anything to happen: many times what it takes on a busy machine."""
POLL = 0.02


def until(what, look, patience=PATIENCE):
    """The first true value of look(); AssertionError naming `what` if none comes."""
    give_up = time.monotonic() + patience
    while not (value := look()):
        assert time.monotonic() < give_up, f"waited {patience} s for {what}"
        time.sleep(POLL)
    return value
