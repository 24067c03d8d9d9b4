"""The process that makes a SavedModel for another engine."""

import subprocess
import sys

WAITS = """
import threading
from shoal.worker.inspect.saved_model import end_with_parent
end_with_parent()
print("begun", flush=True)
threading.Event().wait()
"""


def test_it_ends_by_itself_too():
    command = [sys.executable, "-c", WAITS.replace("threading.Event().wait()", "pass")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait() == 0, process.stderr.read()


def test_it_ends_with_its_parent():
    command = [sys.executable, "-c", WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait() == 1
