"""Answers that nobody reads: what a server holds of them is bounded."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from shoal.proto import methods, serving
from shoal.proto.errors import WireError

PATIENCE = 60.0
ANSWER = 4 << 20
THREADS = 4
CALLS = 40

ASKS = f"""
import sys
from shoal.proto import methods, rpc
connection = rpc.Connection(sys.argv[1])
calls = [connection.start(methods.PULL, b"x") for _ in range({CALLS})]
sys.stdin.read()
"""


def test_answers_to_a_stopped_worker_do_not_pile_up(connect, monkeypatch):
    """1. a worker asks for 160 MiB in 40 calls, and is stopped; 2. the server makes answers until
    16 MiB are unread, and refuses the rest; 3. with the worker's end another is answered."""
    monkeypatch.setattr(serving, "ANSWER_BYTES", 16 << 20)
    lock, go_on = threading.Lock(), threading.Event()
    made = []
    refused = threading.Event()

    class Noting(serving.Budget):
        def _full(self):
            refused.set()
            return super()._full()

    monkeypatch.setattr(serving, "Budget", Noting)
    entered = threading.Semaphore(0)

    def pull(frame):
        entered.release()
        go_on.wait(PATIENCE)
        with lock:
            made.append(frame)
        return bytes(ANSWER)

    server, port = serving.serve({methods.PULL: pull}, "127.0.0.1:0", THREADS)
    address = f"127.0.0.1:{port}"
    worker = subprocess.Popen([sys.executable, "-c", ASKS, address], stdin=subprocess.PIPE)
    try:
        for _ in range(THREADS):
            assert entered.acquire(timeout=PATIENCE)
        os.kill(worker.pid, signal.SIGSTOP)
        _, status = os.waitpid(worker.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        go_on.set()
        connection = connect(address)
        end = time.monotonic() + PATIENCE
        while not refused.is_set():
            assert time.monotonic() < end
            with contextlib.suppress(WireError):
                connection.call(methods.PULL, b"y", patience=0.0)
        os.kill(worker.pid, signal.SIGKILL)
        assert len(connection.call(methods.PULL, b"y")) == ANSWER
        # Some fit into the buffers of both systems.
        assert made.count(b"x") < CALLS / 2
    finally:
        worker.kill()
        worker.communicate()
        server.stop(None).wait()
