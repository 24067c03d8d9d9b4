"""Places where a worker stops until the test lets it go on.

The folder $SHOAL_TEST_GATE is the meeting point. At the gate NAME a worker writes its process id
to NAME.reached, its temporary folder to NAME.folder, and waits for NAME.open. Only gates named in
$SHOAL_TEST_GATES exist.
"""

import os
import tempfile
import time
from pathlib import Path

NAMES = frozenset(os.environ.get("SHOAL_TEST_GATES", "").split())


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
