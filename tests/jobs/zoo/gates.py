"""Places where a worker stops until the test lets it go on.

The folder $SHOAL_TEST_GATE is the meeting point. At the gate NAME a worker writes its process id
to NAME.reached, its temporary folder to NAME.folder, and waits for NAME.open. Only gates named in
$SHOAL_TEST_GATES exist. $SHOAL_TEST_APART: seconds that a process's first step takes at least,
until the gate "hurry" is open. Later ones take longer and longer: steps go on, and the job does
not end before the gate is opened.
"""

import os
import tempfile
import time
from pathlib import Path

NAMES = frozenset(os.environ.get("SHOAL_TEST_GATES", "").split())
APART = float(os.environ.get("SHOAL_TEST_APART", "0"))
STEPS_TO_DOUBLE = 32
steps = 0


def pass_step():
    """Wait at the gate of this process's next step, and for as long as steps are apart."""
    global steps
    steps += 1
    pass_gate(f"step-{steps}")
    if APART and not (Path(os.environ["SHOAL_TEST_GATE"]) / "hurry.open").exists():
        time.sleep(APART * 2 ** (steps / STEPS_TO_DOUBLE))


def pass_gate(name):
    """Wait at a gate, if there is one of this name."""
    if name not in NAMES:
        return
    folder = Path(os.environ["SHOAL_TEST_GATE"])
    opened = folder / f"{name}.open"
    if opened.exists():
        return
    reached = folder / f"{name}.{os.getpid()}"
    reached.write_text(str(os.getpid()))
    (folder / f"{name}.folder").write_text(tempfile.gettempdir())
    reached.replace(folder / f"{name}.reached")
    while not opened.exists():
        time.sleep(0.01)
