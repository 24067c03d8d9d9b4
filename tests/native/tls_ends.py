"""Two ends of a connection with TLS, for tests of what is in C.

One end is in C. The other one is in C too, or Python's ssl over memory: then the test has the bytes
themselves in its hands, and may send them cut, late, damaged or never.
"""

import _ssl
import contextlib
import ctypes
import datetime as dt
import itertools
import socket
import ssl
import tempfile
import threading
from pathlib import Path

from shoal.native.tls import Context, Secured
from shoal.security.authority import Authority

PATIENCE = 60.0
HOST = "ps-0.j1.shoal"
AUTHORITY, OTHER = Authority.made("j1"), Authority.made("j1")
SERVER, WORKER = AUTHORITY.issue("ps"), AUTHORITY.issue("worker", 3)
EXPIRED = AUTHORITY.issue("worker", valid=dt.timedelta(hours=-1))


def context(identity, serves):
    return Context(identity.authority, identity.certificate, identity.key, serves)


CONTEXTS = {True: context(SERVER, True), False: context(WORKER, False)}


def in_c(made, serves=True, host=HOST):
    """An end in C on a socket, which has not met the other one yet."""
    made.setblocking(False)
    return Secured(CONTEXTS[serves], made.fileno(), None if serves else host)


def met(first, second, seconds=PATIENCE):
    """Have both ends shake hands; the errors of each."""
    errors = [None, None]

    def shake(place, end):
        try:
            end.handshake(seconds)
        except OSError as error:
            errors[place] = error

    thread = threading.Thread(target=shake, args=(1, second))
    thread.start()
    shake(0, first)
    thread.join()
    return errors


class Ends:
    """Two ends in C that have met, and their sockets."""

    def __init__(self):
        self.sockets = socket.socketpair()
        self.server, self.client = in_c(self.sockets[0]), in_c(self.sockets[1], serves=False)
        assert met(self.server, self.client) == [None, None]

    def close(self):
        self.server.close()
        self.client.close()
        for each in self.sockets:
            each.close()


def python_context(identity, serves, **versions):
    """A context of Python's ssl."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=AUTHORITY.issue("ps").authority.decode())
    for name, version in versions.items():
        setattr(made, name, version)
    if identity is not None:
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "both.pem"
            both.write_bytes(identity.certificate + b"\n" + identity.key)
            made.load_cert_chain(both)
    return made


class InHand:
    """An end of Python's ssl, whose bytes the test gives to the other one, which is in C.

    `shake` does the handshake by itself; `out` is what it has to say next.
    """

    def __init__(self, serves=False, identity=WORKER, **versions):
        self.near, self.far = socket.socketpair()
        self.near.settimeout(PATIENCE)
        self.end = in_c(self.far, serves=not serves)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = python_context(identity, serves, **versions).wrap_bio(
            self._in, self._out, server_side=serves, server_hostname=None if serves else HOST
        )

    def out(self, data=b""):
        """The bytes that say what is due, and then this data."""
        if data:
            self.ssl.write(data)
        return self._out.read()

    def shake(self, change=lambda data, flight: data):
        """Have both ends shake hands; the error of the one in C.

        change: the bytes of a flight, of which a server has none before the first; if it does,
        nothing comes after them.
        """
        errors = []

        def theirs():
            try:
                self.end.handshake(PATIENCE)
            except OSError as error:
                errors.append(error)
                self.far.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=theirs)
        thread.start()
        with contextlib.suppress(OSError):  # the other one has gone
            self._shake(change)
        thread.join()
        return errors[0] if errors else None

    def _shake(self, change):
        for flight in itertools.count():
            over = True
            try:
                self.ssl.do_handshake()
            except ssl.SSLWantReadError:
                over = False
            except ssl.SSLError:
                pass  # it says why
            data = self.out()
            sent = change(data, flight)
            self.near.sendall(sent)
            if sent != data or (over and not self.ssl.cipher()):
                self.near.shutdown(socket.SHUT_WR)
                return
            if over:
                return
            if not (came := self.near.recv(1 << 16)):
                return
            self._in.write(came)

    def read(self, size=1 << 16):
        """Data from the end in C."""
        while True:
            try:
                return self.ssl.read(size)
            except ssl.SSLWantReadError:
                self._in.write(self.near.recv(1 << 16))

    def close(self):
        self.end.close()
        self.near.close()
        self.far.close()


def function_of_openssl(name, *types):
    """A function of the OpenSSL in this process, whose first argument is an SSL."""
    found = getattr(ctypes.CDLL(_ssl.__file__), name)
    found.argtypes = [ctypes.c_void_p, *types]
    return found


def ssl_of(secured):
    """The SSL of an end in C."""
    return ctypes.c_void_p.from_address(secured.address + ctypes.sizeof(ctypes.c_void_p)).value
