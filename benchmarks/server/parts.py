"""Processes for the server benchmark, and what one call of each kind is.

    python benchmarks/server/parts.py

serves bare exchanges over a TCP socket: bytes in, bytes of the wanted length out, each into and
out of memory that is kept; no array and no row store behind it. `Echo` and `Server` are the two
peers as the client process sees them.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

from shoal.config.job import JobConfig
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.rowstore import RowStore
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.values.routing import Routing
from shoal.worker.servers.group import ServerGroup
from shoal.worker.servers.ids import TableIds
from shoal.worker.servers.pushing import Push

ROWS = 1_000_000
IDS = 65_536
RATE = 0.001
LOCAL = "127.0.0.1:0"
SIZES = struct.Struct("<QQ")
"""Before the bytes of an exchange: how many these are, and how many are to come back."""


class Echo:
    """A process that answers bare exchanges, and a connection to it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = memoryview(bytearray())

    def exchange(self, sent: bytes, received: int) -> None:
        """Send bytes, and receive so many."""
        if len(self._answer) != received:
            self._answer = memoryview(bytearray(received))
        send(self._socket, SIZES.pack(len(sent), received), sent)
        receive(self._socket, self._answer)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.kill()
        self._process.communicate()


def send(connection: socket.socket, *parts: bytes) -> None:
    """Send a few buffers as one message."""
    done = connection.sendmsg(parts)
    for part in parts:
        if done < len(part):
            connection.sendall(memoryview(part)[done:])
        done = max(0, done - len(part))


def receive(connection: socket.socket, target: memoryview) -> bool:
    """Receive until a buffer is full; whether the other end sent so much."""
    place = 0
    while place < len(target):
        got = connection.recv_into(target[place:], 0, socket.MSG_WAITALL)
        if not got:
            return False
        place += got
    return True


def checkpoints_of(folder: Path) -> Path:
    """The folder of checkpoints of a server that `start_server` started in `folder`."""
    return folder / "checkpoints"


def start_server(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A parameter server process that serves alone, and its address."""
    config = folder / "job.json"
    job = JobConfig(
        model_def="none.none", training_data="none", checkpoint_dir=str(checkpoints_of(folder))
    )
    config.write_text(job.to_json())
    command = [sys.executable, "-m", "shoal.ps", "--config", str(config), "--index", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def master_of(address: str) -> tuple[serving.Server, int]:
    """Answers workers as the master of a job with that one server would; and its port."""
    reply = pb.RegisterWorkerReply(routing=Routing.even(1).to_message(), servers=[address])
    return serving.serve({methods.REGISTER_WORKER: lambda _: reply}, LOCAL, 1)


class Server:
    """A parameter server process with one filled table, and a worker's view of it.

    rows: of the table, of `dim` columns. dense: elements of the dense variables. max_rows: of the
    table; 0 for no limit. value_dtype: of the table. value_type: of rows and gradients on the wire.
    """

    def __init__(
        self,
        folder: Path,
        dim: int,
        optimizer: str = "adagrad",
        rows: int = ROWS,
        dense: int = 0,
        max_rows: int = 0,
        value_dtype: str = "float32",
        value_type: pb.DataType = pb.FLOAT32,
    ) -> None:
        self.checkpoints = checkpoints_of(folder)
        self.process, self.address = start_server(folder)
        self._master, port = master_of(self.address)
        self._to_master = rpc.Connection(f"127.0.0.1:{port}")
        self.group = ServerGroup(self._to_master, 0, 0, threading.Event(), value_type=value_type)
        rule = OptimizerSpec(optimizer).to_json()
        table = pb.TableSpec(
            name="items",
            dim=dim,
            optimizer=rule,
            initializer=InitializerSpec("uniform").to_json(),
            max_rows=max_rows,
            value_dtype=value_dtype,
        )
        none = np.zeros(0, np.float32)
        trainable = [pb.VariableSpec(name="dense", shape=[dense])] if dense else []
        model = pb.ModelSpec(tables=[table], trainable=trainable, dense_optimizer=rule)
        self._dense = dense
        self.group.register(model, np.zeros(dense, np.float32), none)
        for first in range(0, rows, IDS):
            some = np.arange(first, min(first + IDS, rows))
            self.push(some, np.zeros((some.size, dim), np.float32))

    def pull(self, ids: np.ndarray) -> np.ndarray:
        """Rows of distinct ids, as a worker gets them."""
        grouped = TableIds(ids, np.array([0, ids.size]), [])
        rows: np.ndarray = self.group.pulls.fetch(
            [grouped], self.group.routing, training=True
        ).rows[0]
        return rows

    def push(self, ids: np.ndarray, gradients: np.ndarray, dense: np.ndarray | None = None) -> None:
        """Gradients of distinct ids and of the dense variables (zeros), as a worker sends them."""
        none = np.zeros(0, np.float32)
        flat = np.zeros(self._dense, np.float32) if dense is None else dense
        self.group.push(Push({0: (ids, gradients)}, (flat, none), RATE, [0], [0.0], [0], 0, 0))

    def close(self) -> None:
        """End the process."""
        self.group.close()
        self._to_master.close()
        self._master.stop(None)
        self.process.kill()
        self.process.communicate()


def filled(dim: int, optimizer: str, rows: int = ROWS, value_dtype: str = "float32") -> RowStore:
    """The row store that such a server has, in this process."""
    initializer = InitializerSpec("uniform")
    store = RowStore(dim, OptimizerSpec(optimizer), initializer, 0, value_dtype=value_dtype)
    store.insert(np.arange(rows))
    return store


def serve_echo() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sizes = memoryview(bytearray(SIZES.size))
    asked, answer = memoryview(bytearray()), b""
    while receive(connection, sizes):
        sent, wanted = SIZES.unpack(sizes)
        if len(asked) != sent:
            asked = memoryview(bytearray(sent))
        if len(answer) != wanted:
            answer = bytes(wanted)
        receive(connection, asked)
        send(connection, answer)


if __name__ == "__main__":
    serve_echo()
