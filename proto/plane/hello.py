"""The beginning of a connection: both ends name themselves, and prove it.

With certificates both prove it by TLS 1.3. Without, each proves that it has the job's token: by an
HMAC over the nonces of both, which tells neither anything that it did not know. A listener at a
Unix socket that only the user can open proves it, too: that finds a mistake.

    caller      HELLO      protocol, whom it means, who it is, a nonce
    listener    CHALLENGE  its nonce, its proof     or a refusal
    caller      PROOF      its proof
    listener    WELCOME                             or a refusal
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import logging
import os
import secrets
import socket
import ssl
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from shoal.proto import faults
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError, from_outside
from shoal.proto.identity import Caller, Identity, host_of, named
from shoal.proto.plane import message
from shoal.proto.plane.link import ROOM_BYTES, Link
from shoal.proto.protocol import PROTOCOL, mismatch, own_protocol
from shoal.proto.wire.frames import parsed
from shoal.proto.wire.transport import token_of

if TYPE_CHECKING:
    from shoal.native import tls

logger = logging.getLogger(__name__)

HELLO_SECONDS = 10.0
"""For all of it, TLS included."""

NONCE_BYTES = 32

ALERT_SECONDS = 5.0
"""For a caller whose handshake was refused to hear why, and to close the connection."""


def _proof(token: str, side: str, hello: pb.Hello, other: bytes) -> bytes:
    said = hello.SerializeToString(deterministic=True)
    whole = b"\0".join([side.encode(), len(said).to_bytes(8, "little"), said, other])
    return hmac.new(token.encode(), whole, hashlib.sha256).digest()


def _send(link: Link, kind: int, said: Message, until: float) -> None:
    data = said.SerializeToString()
    packed = [message.prefix(kind, len(data)), data]
    link.send(packed, message.PREFIX_BYTES + len(data), max(0.1, until - time.monotonic()))


def _receive(link: Link, kind: int, until: float) -> bytes:
    found, size = link.next_prefix(until)
    if size > ROOM_BYTES or found not in (kind, message.REFUSAL):
        raise WireError(pb.BAD_REQUEST, f"a hello goes on with kind {found} of {size} bytes")
    data = bytes(link.read(size, until))
    if found == message.REFUSAL:
        detail = parsed(pb.ErrorDetail, data)
        raise WireError(detail.kind, detail.message)
    return data


def call(link: Link, peer: str, identity: Identity | None, seconds: float) -> None:
    """Begin a connection that this process has made. peer: whom it means; "" for anybody.

    seconds: for all of it, if less than HELLO_SECONDS.
    Raises WireError if either end refuses the other one, BrokenError.
    """
    until = time.monotonic() + min(seconds, HELLO_SECONDS)
    token, process = token_of(peer)
    me = str(identity.caller) if identity else os.environ.get(faults.PROCESS_VARIABLE, "")
    nonce = secrets.token_bytes(NONCE_BYTES)
    hello = pb.Hello(protocol=own_protocol(), meant=process, caller=me, nonce=nonce)
    _send(link, message.HELLO, hello, until)
    theirs = parsed(pb.HelloProof, _receive(link, message.CHALLENGE, until))
    if peer and not hmac.compare_digest(
        theirs.proof, _proof(token, "listener", hello, theirs.nonce)
    ):
        raise WireError(
            pb.WRONG_PEER,
            f"the call was for {process} of this job, and another job's process is there",
        )
    proof = _proof(token, "caller", hello, theirs.nonce)
    _send(link, message.PROOF, pb.HelloProof(proof=proof), until)
    _receive(link, message.WELCOME, until)


def answer(link: Link, name: str) -> str:
    """Begin a connection that another process has made; returns who that says it is.

    name: of this process, as `peer_name` gives it; "" takes everybody. Raises WireError, which the
    other end is to be told, and BrokenError.
    """
    until = time.monotonic() + HELLO_SECONDS
    kind, size = link.next_prefix(until)
    if kind != message.HELLO or size > ROOM_BYTES:
        raise WireError(pb.BAD_REQUEST, f"a connection begins with kind {kind} of {size} bytes")
    hello = parsed(pb.Hello, link.read(size, until))
    who = from_outside(hello.caller) or "a caller"
    token, process = token_of(name)
    if hello.protocol.number != PROTOCOL:
        why = mismatch(process or "this server", who, hello.protocol)
        raise WireError(pb.OTHER_PROTOCOL, why)
    if name and hello.meant != process:
        meant = f"for {from_outside(hello.meant)}" if hello.meant else "without a job's token"
        raise WireError(pb.WRONG_PEER, f"this is {process}, the call was {meant}")
    nonce = secrets.token_bytes(NONCE_BYTES)
    proof = _proof(token, "listener", hello, nonce)
    _send(link, message.CHALLENGE, pb.HelloProof(nonce=nonce, proof=proof), until)
    theirs = parsed(pb.HelloProof, _receive(link, message.PROOF, until))
    if name and not hmac.compare_digest(theirs.proof, _proof(token, "caller", hello, nonce)):
        raise WireError(pb.WRONG_PEER, f"{who}, which calls {process}, is of another job")
    _send(link, message.WELCOME, pb.HelloProof(), until)
    return who


# ------------------------------------------------------------ TLS

PYTHON_VARIABLE = "SHOAL_TLS"
"""Set to "python": TLS goes through Python's ssl, as where there is none in C."""


@functools.cache
def lacking_tls() -> str:
    """The reason why there is no TLS in C, which the log has then, too; empty: there is."""
    from shoal.native import tls  # late: commands talk to no process over the data plane

    asked = os.environ.get(PYTHON_VARIABLE) == "python"
    lacking = f"{PYTHON_VARIABLE} is python" if asked else tls.lacking
    if lacking:
        logger.warning("calls with certificates go through Python's ssl, slower: %s", lacking)
    return lacking


@functools.lru_cache(maxsize=64)
def _native_context(identity: Identity, *, serves: bool) -> tls.Context:
    """The same as `_context`, in C."""
    from shoal.native import tls  # late: as above

    return tls.Context(identity.authority, identity.certificate, identity.key, serves)


@functools.lru_cache(maxsize=64)
def _context(identity: Identity, *, serves: bool) -> ssl.SSLContext:
    """The TLS context that both ends share: version 1.3, and the job's own certificates."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=identity.authority.decode("ascii"))
    # Python's ssl takes a key from a file only. The folder is this user's alone.
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        both = Path(folder) / "both.pem"
        both.write_bytes(identity.certificate + b"\n" + identity.key)
        made.load_cert_chain(both)
    return made


def encrypted(made: socket.socket, identity: Identity, peer: str | None) -> Link:
    """A connection with TLS on a socket, which it owns; the handshake is done.

    peer: the process that is to answer, as `peer_name` gives it; None: this process answers. If it
    raises OSError, of which ssl.SSLError is one, or ValueError, the socket is to be closed.
    """
    host = None
    if peer is not None:
        if not peer:
            raise ValueError(f"whom {identity.caller} means to call is not said")
        host = host_of(token_of(peer)[1], identity.caller.job)
    return (_by_python if lacking_tls() else _in_c)(made, identity, host)


def _in_c(made: socket.socket, identity: Identity, host: str | None) -> Link:
    from shoal.native import tls  # late: as above

    made.settimeout(0.0)
    secured = tls.Secured(_native_context(identity, serves=host is None), made.fileno(), host)
    try:
        secured.handshake(HELLO_SECONDS)
    except OSError:
        if host is None:
            _hear_out(made)
        raise
    return Link(made, secured)


def _by_python(made: socket.socket, identity: Identity, host: str | None) -> Link:
    made.settimeout(HELLO_SECONDS)
    wrapped = _context(identity, serves=host is None).wrap_socket(
        made,
        server_side=host is None,
        server_hostname=host,
        do_handshake_on_connect=False,
        suppress_ragged_eofs=False,
    )
    try:
        wrapped.do_handshake()
    except OSError:
        if host is None:
            _hear_out(wrapped)
        wrapped.close()  # it has taken the socket over
        raise
    return Link(wrapped)


def _hear_out(refused: socket.socket) -> None:
    """Read what a refused caller has sent, until it closes the connection.

    In TLS 1.3 a caller's part of the handshake ends before its certificate is looked at, so its
    hello is on its way. Closed with that unread, a socket resets the connection, and the caller
    would often find that in place of the alert which says why.
    """
    until = time.monotonic() + ALERT_SECONDS
    plain = socket.socket
    with contextlib.suppress(OSError):
        plain.shutdown(refused, socket.SHUT_WR)
        while (left := until - time.monotonic()) > 0:
            refused.settimeout(left)
            if not plain.recv(refused, 1 << 12):
                return


def caller_by_certificate(link: Link) -> Caller | None:
    """The process that the other end's certificate names."""
    return next(filter(None, map(named, link.names)), None)
