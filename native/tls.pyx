"""TLS by the OpenSSL of Python's own ssl, without Python's lock: contexts and connections.

A thin shell around tls.h. Where that OpenSSL cannot be used, `lacking` says why, and nothing else is
of use.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import _ssl
import os

from kernels cimport (
    SHOAL_NOBODY,
    SHOAL_OPENSSL_MAJOR,
    SHOAL_SSL_HOST_NAME,
    SHOAL_SSL_LEAST_VERSION,
    SHOAL_SSL_LEVEL,
    SHOAL_SSL_MODE,
    SHOAL_SSL_MODES,
    SHOAL_SSL_OLD_EOF,
    SHOAL_SSL_READ_AHEAD,
    SHOAL_SSL_SESSIONS,
    SHOAL_SSL_TLS13,
    SHOAL_SSL_VERIFY,
    SHOAL_TLS_DONE,
    SHOAL_TLS_ENDED,
    SHOAL_TLS_LATE,
    SHOAL_X509_OTHER_NAMES,
    SHOAL_X509_URI,
    SHOAL_X509_WHOLE_LABELS,
    iovec,
    shoal_find_openssl,
    shoal_now,
    shoal_openssl,
    shoal_tls,
    shoal_tls_fail,
    shoal_tls_handshake,
    shoal_tls_receive,
    shoal_tls_send_parts,
)

READ_BYTES = 64 << 10
"""Received at once, at most; a request is usually less."""

cdef shoal_openssl library


def _found():
    """Find OpenSSL's functions; return why they cannot be used, or an empty string."""
    path = getattr(_ssl, "__file__", None)
    if path is None:
        return "Python's ssl is no library of its own"
    encoded = os.fsencode(path)
    missing = shoal_find_openssl(encoded, &library)
    if missing is not NULL and missing == <const char *>encoded:
        return f"Python's ssl is not loaded from {path}"
    if missing is not NULL:
        return f"Python's ssl does not give access to {os.fsdecode(missing)} of OpenSSL"
    if library.OpenSSL_version_num() != _ssl.OPENSSL_VERSION_NUMBER:
        return "Python's ssl has another OpenSSL than the one that was found"
    if library.OpenSSL_version_num() >> 28 != SHOAL_OPENSSL_MAJOR:
        return f"Python's ssl has {_ssl.OPENSSL_VERSION}, not OpenSSL {SHOAL_OPENSSL_MAJOR}"
    return ""


lacking = _found()
"""The reason why OpenSSL cannot be used; empty: it can."""


_raised = []  # by the handler of a signal, in the main thread


cdef int signalled() noexcept with gil:
    """Run the handlers of signals; return 1 if one has raised."""
    try:
        PyErr_CheckSignals()
    except BaseException as error:
        _raised.append(error)
        return 1
    return 0


cdef str reason():
    """OpenSSL's words for the last error of this thread."""
    cdef const char *words = library.ERR_reason_error_string(library.ERR_peek_last_error())
    library.ERR_clear_error()
    return words.decode() if words is not NULL else "an error without a reason"


cdef class Context:
    """The certificates of a process, and how its connections prove who it is: by TLS 1.3.

    authority, certificate, key: PEM; the other end must have a certificate of the same authority.
    serves: it is called, and calls nobody. Raises ValueError if they cannot be used.
    """

    cdef void *_context
    cdef bint _serves

    def __cinit__(self, bytes authority, bytes certificate, bytes key, bint serves):
        if lacking:
            raise RuntimeError(lacking)
        library.ERR_clear_error()
        method = library.TLS_server_method() if serves else library.TLS_client_method()
        self._context = library.SSL_CTX_new(method)
        if self._context is NULL:
            raise MemoryError("no memory for a context of TLS")
        self._serves = serves
        cdef void *context = self._context
        if library.SSL_CTX_ctrl(context, SHOAL_SSL_LEAST_VERSION, SHOAL_SSL_TLS13, NULL) != 1:
            raise ValueError("this OpenSSL has no TLS 1.3")
        library.SSL_CTX_ctrl(context, SHOAL_SSL_MODE, SHOAL_SSL_MODES, NULL)
        library.SSL_CTX_ctrl(context, SHOAL_SSL_READ_AHEAD, 1, NULL)
        library.SSL_CTX_set_default_read_buffer_len(context, READ_BYTES)
        # Each connection proves all anew: nothing is kept of those before.
        library.SSL_CTX_ctrl(context, SHOAL_SSL_SESSIONS, 0, NULL)
        library.SSL_CTX_set_num_tickets(context, 0)
        library.SSL_CTX_set_options(context, SHOAL_SSL_OLD_EOF)
        library.SSL_CTX_set_security_level(context, SHOAL_SSL_LEVEL)
        library.SSL_CTX_set_verify(context, SHOAL_SSL_VERIFY, NULL)
        self._trust(authority)
        self._use(certificate, key)

    def __dealloc__(self):
        if self._context is not NULL:
            library.SSL_CTX_free(self._context)

    cdef _trust(self, bytes authority):
        cdef void *bio = library.BIO_new_mem_buf(<const char *>authority, len(authority))
        cdef void *store = library.SSL_CTX_get_cert_store(self._context)
        cdef void *read
        cdef int count = 0
        while True:
            read = library.PEM_read_bio_X509(bio, NULL, NULL, <char *>"")
            if read is NULL:
                break
            count += library.X509_STORE_add_cert(store, read)
            library.X509_free(read)
        library.BIO_free(bio)
        why = reason()  # in any case: the end of the text is an error
        if not count:
            raise ValueError(f"the authority's certificate cannot be used: {why}")

    cdef _use(self, bytes certificate, bytes key):
        cdef void *bio = library.BIO_new_mem_buf(<const char *>certificate, len(certificate))
        # Without the password OpenSSL would ask for one at the terminal.
        cdef void *first = library.PEM_read_bio_X509(bio, NULL, NULL, <char *>"")
        library.BIO_free(bio)
        bio = library.BIO_new_mem_buf(<const char *>key, len(key))
        cdef void *second = library.PEM_read_bio_PrivateKey(bio, NULL, NULL, <char *>"")
        library.BIO_free(bio)
        cdef bint done = (
            first is not NULL
            and second is not NULL
            and library.SSL_CTX_use_certificate(self._context, first) == 1
            and library.SSL_CTX_use_PrivateKey(self._context, second) == 1
        )
        library.X509_free(first)
        library.EVP_PKEY_free(second)
        if not done:
            raise ValueError(f"the certificate or its key cannot be used: {reason()}")


cdef class Secured:
    """TLS on a connected socket. One thread at a time uses it, else RuntimeError is raised.

    socket: its number; it must not block, and is its maker's to close, after `close`. host: the name
    that the other end's certificate must have; None for a context that serves.
    """

    cdef shoal_tls _tls
    cdef Context _context

    def __cinit__(self, Context context, int socket, str host=None):
        memset(&self._tls, 0, sizeof(self._tls))
        self._context = context
        self._tls.lib = &library
        self._tls.socket = socket
        self._tls.speaker, self._tls.signalled = SHOAL_NOBODY, signalled
        if context._serves != (host is None):
            raise ValueError("whom a connection is for is said by the one that calls")
        self._tls.ssl = library.SSL_new(context._context)
        if self._tls.ssl is NULL or library.SSL_set_fd(self._tls.ssl, socket) != 1:
            raise MemoryError("no memory for a connection with TLS")
        if host is None:
            library.SSL_set_accept_state(self._tls.ssl)
            return
        if not host or host.startswith("."):
            raise ValueError(f"{host!r} is the host name of no process")  # but of a whole domain
        name = host.encode("ascii")
        library.SSL_set_connect_state(self._tls.ssl)
        library.SSL_set_hostflags(self._tls.ssl, SHOAL_X509_WHOLE_LABELS)
        if (
            library.SSL_set1_host(self._tls.ssl, <const char *>name) != 1
            or library.SSL_ctrl(self._tls.ssl, SHOAL_SSL_HOST_NAME, 0, <char *>name) != 1
        ):
            raise ValueError(f"{host} cannot be the host name of a certificate: {reason()}")

    def __dealloc__(self):
        if self._tls.ssl is not NULL:
            library.SSL_free(self._tls.ssl)

    @property
    def address(self):
        """The place of the shoal_tls, for other extensions, which `take` it meanwhile."""
        return <size_t>&self._tls

    def take(self):
        """Begin to use it, until `give_back`. Raises RuntimeError if another thread does."""
        if self._tls.used:
            raise RuntimeError("two threads use one connection with TLS at a time")
        self._tls.used = 1

    def give_back(self):
        """End its use."""
        self._tls.used = 0

    def speak_for(self, worker):
        """Let the other end's requests speak for this worker; None: for nobody."""
        self._tls.speaker = SHOAL_NOBODY if worker is None else worker

    def close(self):
        """End its use for good; nothing is sent."""
        shoal_tls_fail(&self._tls, 0)

    cdef _raise(self, int outcome, str late):
        """Raise the error of a call that did not succeed."""
        if outcome == SHOAL_TLS_LATE:
            raise TimeoutError(late)
        if outcome == SHOAL_TLS_ENDED:
            raise ConnectionError("the connection was closed by the other end")
        raise self.failure()

    def failure(self):
        """The error that broke the connection: an OSError, or that of a signal's handler."""
        if self._tls.error == EINTR and _raised:
            return _raised.pop()
        if self._tls.error:
            return OSError(self._tls.error, os.strerror(self._tls.error))
        return ConnectionError(self._tls.why.decode("utf-8", "replace"))

    def handshake(self, double seconds):
        """Agree with the other end on keys; each has proved who it is, the caller as far as it knows.

        Raises TimeoutError after so many seconds, ConnectionError or OSError if that fails.
        """
        cdef int outcome
        self.take()
        try:
            with nogil:
                outcome = shoal_tls_handshake(&self._tls, shoal_now() + seconds)
            if outcome != SHOAL_TLS_DONE:
                self._raise(outcome, "the handshake was not over in time")
        finally:
            self.give_back()

    def names(self):
        """The URIs of the other end's certificate, bytes each."""
        cdef void *certificate = library.SSL_get1_peer_certificate(self._tls.ssl)
        cdef void *names
        cdef const void *value
        cdef int kind
        found = []
        if certificate is NULL:
            return found
        names = library.X509_get_ext_d2i(certificate, SHOAL_X509_OTHER_NAMES, NULL, NULL)
        if names is not NULL:
            for k in range(library.OPENSSL_sk_num(names)):
                value = library.GENERAL_NAME_get0_value(library.OPENSSL_sk_value(names, k), &kind)
                if kind == SHOAL_X509_URI:
                    start = <const char *>library.ASN1_STRING_get0_data(value)
                    found.append(start[:library.ASN1_STRING_length(value)])
            library.GENERAL_NAMES_free(names)
        library.X509_free(certificate)
        return found

    def receive(self, target, double seconds, bint whole=False):
        """Receive into a buffer: all of it, or whatever comes first; return the number of bytes.

        seconds: to wait for. Returns 0 if the other end has closed the connection. Raises
        TimeoutError, OSError.
        """
        cdef Py_buffer buffer
        cdef size_t got
        cdef int outcome
        PyObject_GetBuffer(target, &buffer, PyBUF_WRITABLE)
        try:
            self.take()
            with nogil:
                outcome = shoal_tls_receive(
                    &self._tls, <char *>buffer.buf, buffer.len, whole, shoal_now() + seconds, &got
                )
            self.give_back()
        finally:
            PyBuffer_Release(&buffer)
        if outcome == SHOAL_TLS_ENDED:
            return 0
        if outcome != SHOAL_TLS_DONE:
            self._raise(outcome, "nothing came in time")
        return got

    def send(self, list buffers, double seconds):
        """Send buffers one after another, in as few records as possible.

        seconds: after which, if nothing was taken, it is given up; 0: never. Raises TimeoutError,
        OSError.
        """
        cdef int count = len(buffers), held = 0, outcome
        cdef Py_buffer *views = <Py_buffer *>malloc((count + 1) * sizeof(Py_buffer))
        cdef iovec *parts = <iovec *>malloc((count + 1) * sizeof(iovec))
        try:
            if views is NULL or parts is NULL:
                raise MemoryError("no memory for the places of buffers")
            for each in buffers:
                PyObject_GetBuffer(each, &views[held], PyBUF_SIMPLE)
                parts[held].iov_base, parts[held].iov_len = views[held].buf, views[held].len
                held += 1
            self.take()
            with nogil:
                outcome = shoal_tls_send_parts(&self._tls, parts, count, seconds)
            self.give_back()
        finally:
            for k in range(held):
                PyBuffer_Release(&views[k])
            free(views)
            free(parts)
        if outcome != SHOAL_TLS_DONE:
            self._raise(outcome, "nothing was taken in time")
