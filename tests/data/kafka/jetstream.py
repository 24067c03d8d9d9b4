"""NATS JetStream as a broker of the reader: one that keeps its messages when it is killed.

Offset n of partition p is the message of sequence number n + 1 in stream p.
"""

import asyncio
import contextlib
import shutil
import signal
import socket
import subprocess

import nats
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig

from shoal.data.readers.kafka.broker import Run
from shoal.data.readers.kafka.place import EARLIEST, LATEST
from shoal.errors import UnreadableError

SERVER = shutil.which("nats-server")

SECONDS = 1
"""Until a server counts as away."""

FETCHED = 100


class Server:
    """A server whose messages are in a folder."""

    def __init__(self, folder):
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self._port}"
        self._process = None

    def start(self):
        command = [SERVER, "--addr", "127.0.0.1", "--port", str(self._port), "--jetstream"]
        self._process = subprocess.Popen(
            [*command, "--store_dir", str(self._folder)], stderr=subprocess.PIPE, text=True
        )
        for line in self._process.stderr:
            if "Server is ready" in line:
                return
        raise AssertionError(f"the server ended with code {self._process.wait()}")

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process.stderr.close()


class Client:
    """Calls to a server, which fail with UnreadableError. Connects when it is first used."""

    def __init__(self, url, streams):
        self._url = url
        self._streams = streams
        self._loop = asyncio.new_event_loop()
        self._connection = None

    def run(self, call):
        """The result of `call`, a coroutine function of the stream's context."""

        async def called():
            if self._connection is None:
                self._connection = await nats.connect(
                    self._url, allow_reconnect=False, connect_timeout=SECONDS, error_cb=_passed
                )
            return await call(self._connection.jetstream(timeout=SECONDS))

        try:
            return self._loop.run_until_complete(called())
        except (Error, OSError, TimeoutError) as error:
            self.reopen()
            raise UnreadableError(f"{type(error).__name__}: {error}") from error

    def make(self):
        """Make the streams."""
        for stream in self._streams:
            config = StreamConfig(name=stream, subjects=[stream], duplicate_window=120)
            self.run(lambda js, config=config: js.add_stream(config))

    def write(self, partition, ids):
        """Write a message for each id, and return those that are acknowledged.

        An id that is there already is not written again.
        """
        stream = self._streams[partition]
        done = []

        async def write(js):
            for each in ids:
                payload = b'{"id": %d}' % each
                await js.publish(stream, payload, headers={"Nats-Msg-Id": str(each)})
                done.append(each)

        with contextlib.suppress(UnreadableError):
            self.run(write)
        return done

    def reopen(self):
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                self._loop.run_until_complete(connection.close())

    def close(self):
        self.reopen()
        self._loop.close()


async def _passed(_):
    """Errors are raised where they are met."""


class JetStreamBroker(Client):
    """A Broker."""

    def marks(self):
        async def marks(js):
            states = [(await js.stream_info(each)).state for each in self._streams]
            return {p: (max(s.first_seq - 1, 0), s.last_seq) for p, s in enumerate(states)}

        return self.run(marks)

    def begins(self, start):
        assert start in (EARLIEST, LATEST)
        return {p: marks[start == LATEST] for p, marks in self.marks().items()}

    def fetch(self, partition, first, end):
        stream = self._streams[partition]

        async def some(js, first):
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=first + 1,
                ack_policy=AckPolicy.NONE,
            )
            subscription = await js.pull_subscribe(stream, stream=stream, config=config)
            messages = await subscription.fetch(min(FETCHED, end - first), timeout=SECONDS)
            await subscription.unsubscribe()
            return [(each.metadata.sequence.stream - 1, each.data) for each in messages]

        last = self.marks()[partition][1]
        while first < min(end, last):
            found = self.run(lambda js, first=first: some(js, first))
            first = found[-1][0] + 1
            inside = [each for each in found if each[0] < end]
            if inside:
                offsets, values = zip(*inside, strict=True)
                yield Run(list(offsets), list(values))
