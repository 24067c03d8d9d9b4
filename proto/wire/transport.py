"""The terms that the two ends of a connection share: gRPC's options, limits, names, and bytes.

The one place that sets gRPC's options. Owns the form of a call on the way; sending it is rpc.py's,
handling it serving.py's.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from shoal.proto.identity import Identity

if TYPE_CHECKING:
    import grpc

MAXIMUM_MESSAGE_BYTES = 1 << 30
"""Largest message of either plane, bytes: far above a batch's rows."""

LARGEST_SLICE_BYTES = MAXIMUM_MESSAGE_BYTES - (64 << 20)
"""Of the dense vectors at one server: they travel in one message, with rows or their gradients."""

ERROR_METADATA = "shoal-error-bin"

PEER_METADATA = "shoal-peer"
"""Whom a call is meant for, as `peer_name` gives it."""

ARRAYS_PORT = 2
"""By which the port for arrays is above gRPC's. Not 1: of two neighbouring ports Linux prefers one
for connections that are made, and so one of them would be another's now and then."""

ARRAYS_SUFFIX = ".arrays"
"""Of the path of a Unix socket for arrays."""

# Sizes of frames, windows, reads and write buffers are gRPC's own: no other was faster for pulls
# and pushes alike (docs/notes/server.md).
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MAXIMUM_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAXIMUM_MESSAGE_BYTES),
    # A peer whose machine vanished sends no reset: without pings a call would wait
    # for its whole deadline.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without it a ping is waited for for a minute, whatever keepalive_timeout says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnecting must be quick: a restarted process is back within seconds, gRPC's
    # default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name: what a try may take. 100 ms is too little on a busy machine.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A connection that is made anew is another one, not an old one of the same process.
    ("grpc.use_local_subchannel_pool", 1),
    # A job's processes talk directly; a proxy from the environment only breaks that.
    ("grpc.enable_http_proxy", 0),
    # A pod that was replaced has another address at the same name: gRPC would not ask
    # for it for 30 seconds.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]

SERVER_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS[:7],
    # gRPC by itself permits a peer without a call one ping in five minutes, and closes the
    # connection of one that sends more (too_many_pings).
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Without it two servers could share one port by mistake and split its calls.
    ("grpc.so_reuseport", 0),
]


def peer_name(token: str, role: str, index: int = 0) -> str:
    """The name of one process of one job, "" without a token.

    Ports are used again: without it a worker could train another job's server, or the wrong one
    of its own. Who has the token belongs to a job without certificates: a message has the process
    alone.
    """
    return f"{token}/{role}-{index}" if token else ""


def token_of(name: str) -> tuple[str, str]:
    """The token and the process (ps-1) in a name, as `peer_name` gives it."""
    token, _, process = name.rpartition("/")
    return token, process


def arrays_address(address: str) -> str:
    """The address for calls of arrays at the process that takes calls of gRPC at `address`."""
    if address.startswith("unix:"):
        return address + ARRAYS_SUFFIX
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + ARRAYS_PORT}"


def open_socket(address: str, seconds: float) -> socket.socket:
    """A connection to "host:port" or "unix:path", made within so many seconds.

    Raises OSError, ValueError for an address that is none.
    """
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), seconds)
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(seconds)
    try:
        made.connect(address.removeprefix("unix:"))
    except BaseException:
        made.close()
        raise
    return made


def open_channel(address: str, peer: str, identity: Identity | None) -> grpc.Channel:
    """A channel to the process `peer`, as `peer_name` gives it; encrypted with an identity.

    Then its certificate has to name that process. Raises ValueError for an identity without a peer.
    """
    import grpc  # late: a client knows names and addresses before it calls anybody

    if identity is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    if not peer:
        raise ValueError(f"whom {identity.caller} means to call at {address} is not said")
    return identity.channel(address, peer.rpartition("/")[2], CHANNEL_OPTIONS)


def serialize(message: Message) -> bytes:
    """A message as it travels."""
    return message.SerializeToString()
