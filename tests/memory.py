"""What a process counts as used, beside what its memory grows by, in a process of its own."""

import json
import subprocess
import sys

BEGINS = """
import json
from shoal.base.process_memory import resident_bytes
from shoal.proto import shoal_pb2 as pb
from shoal.proto.memory import keep_freed_memory, share_heaps
"""


def told_by(program):
    """What a program prints as JSON, in a new process. It begins with the imports of BEGINS."""
    done = subprocess.run([sys.executable, "-c", BEGINS + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
