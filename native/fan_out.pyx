"""One request to each of many servers, and their answers: a thin shell around fan_out.h.

Knows no call: which fields a header has, and what arrays are of, is the caller's affair.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_FAN_BROKEN,
    SHOAL_FAN_CLOSED,
    SHOAL_FAN_DONE,
    SHOAL_FAN_INTEGERS,
    SHOAL_FAN_LATE,
    SHOAL_FAN_NUMBERS,
    SHOAL_FAN_PIECES,
    SHOAL_FAN_REALS,
    SHOAL_FAN_SCALES,
    SHOAL_FAN_SENDING,
    SHOAL_FAN_SPECS,
    SHOAL_FAN_UNREAD,
    SHOAL_FAN_UNSENT,
    SHOAL_FAN_UNTAKEN,
    SHOAL_WIRE_BFLOAT16,
    SHOAL_WIRE_FLOAT16,
    SHOAL_WIRE_FLOAT32,
    SHOAL_WIRE_INT64,
    shoal_encode_bfloat16,
    shoal_encode_scaled,
    shoal_fan,
    shoal_fan_add_array,
    shoal_fan_array,
    shoal_fan_arrays,
    shoal_fan_begin,
    shoal_fan_free,
    shoal_fan_new,
    shoal_fan_piece,
    shoal_fan_run,
    shoal_fan_share,
    shoal_scale_of,
    shoal_tls,
)

SENDING = SHOAL_FAN_SENDING
DONE = SHOAL_FAN_DONE
UNSENT = SHOAL_FAN_UNSENT
UNREAD = SHOAL_FAN_UNREAD
UNTAKEN = SHOAL_FAN_UNTAKEN
LATE = SHOAL_FAN_LATE
CLOSED = SHOAL_FAN_CLOSED
BROKEN = SHOAL_FAN_BROKEN

NO_MEMORY = "no memory for the requests to the servers"

WIDTHS = {
    SHOAL_WIRE_INT64: 8,
    SHOAL_WIRE_FLOAT32: 4,
    SHOAL_WIRE_BFLOAT16: 2,
    SHOAL_WIRE_FLOAT16: 2,
}


cdef void *memory(array, int flags, size_t *size) except? NULL:
    """Where a contiguous array lies, which is kept as long as that is used."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE | flags)
    cdef void *found = view.buf
    size[0] = view.len
    PyBuffer_Release(&view)
    return found


cdef class FanOut:
    """One request to each of several servers, and the answers, once; by one thread.

    status: uint8 [servers]: 0 for a server that is not asked; between that and DONE while it is under
        way; DONE; or what became of it else. Other threads may look at it.
    numbers: int64 [servers, 8], what answers say in their fields, by number: a double as its bits; 0
        where there is no answer.
    """

    cdef shoal_fan _fan
    cdef list _kept
    cdef readonly object status, numbers

    def __cinit__(self, int servers, int kind, int answer, size_t most_bytes):
        """kind, answer: of the messages. most_bytes: of a message."""
        if not shoal_fan_new(&self._fan, servers):
            raise MemoryError(NO_MEMORY)
        self._fan.kind, self._fan.answer, self._fan.most_bytes = kind, answer, most_bytes
        self._kept = []
        self.status = np.zeros(servers, np.uint8)
        self.numbers = np.zeros((servers, SHOAL_FAN_NUMBERS), np.int64)
        cdef uint8_t[::1] status = self.status
        cdef int64_t[:, ::1] numbers = self.numbers
        if servers < 1:
            raise ValueError(f"{servers} servers")
        self._fan.status, self._fan.numbers = &status[0], &numbers[0, 0]

    def __dealloc__(self):
        shoal_fan_free(&self._fan)

    # ------------------------------------------------------------ the header
    # Fields of which each server has its own value, by rising numbers; then those that all share.

    cdef _piece(self, int kind, unsigned field, size_t size, const void *each):
        if self._fan.pieces == SHOAL_FAN_PIECES:
            raise ValueError(f"a header of more than {SHOAL_FAN_PIECES} pieces")
        if field <= (self._fan.piece[self._fan.pieces - 1].field if self._fan.pieces else 0):
            raise ValueError(f"fields are wanted by rising numbers, not {field}")
        self._fan.piece[self._fan.pieces] = shoal_fan_piece(kind, field, size, each)
        self._fan.pieces += 1

    def integers(self, unsigned field, values):
        """A field of each server's own value: int64 [servers]."""
        cdef const int64_t[::1] each = require("values", values, np.int64, (self._fan.servers,))
        self._kept.append(values)
        self._piece(SHOAL_FAN_INTEGERS, field, 1, &each[0])

    def reals(self, unsigned field, values):
        """A field of each server's own value: float64 [servers]."""
        cdef const double[::1] each = require("values", values, np.float64, (self._fan.servers,))
        self._kept.append(values)
        self._piece(SHOAL_FAN_REALS, field, 1, &each[0])

    def scales(self, unsigned field, values):
        """A packed field of floats, float32 [servers, n]; left out where all are 1."""
        cdef const float[:, ::1] each = require(
            "values", values, np.float32, (self._fan.servers, None)
        )
        if each.shape[1]:
            self._kept.append(values)
            self._piece(SHOAL_FAN_SCALES, field, each.shape[1], &each[0, 0])

    def specs(self, unsigned field):
        """The field with an ArraySpec of each array that is sent."""
        self._piece(SHOAL_FAN_SPECS, field, 0, NULL)

    def shared(self, bytes packed):
        """The fields that are the same for all servers, as protobuf packs them; once, and last."""
        self._kept.append(packed)
        if not shoal_fan_share(&self._fan, <const uint8_t *><const char *>packed, len(packed)):
            raise ValueError("no fields of a header, or one that each server has its own value of")

    # ------------------------------------------------------------ arrays, in their order

    cdef shoal_fan_array *_add(
        self, shoal_fan_arrays *to, array, offsets, int data_type, int flags
    ) except NULL:
        cdef const int64_t[::1] ends = require(
            "offsets", offsets, np.int64, (self._fan.servers + 1,)
        )
        cdef size_t size = 0
        cdef void *data = memory(array, flags, &size)
        cdef int width = WIDTHS[data_type], dimensions = array.ndim
        cdef int64_t columns = array.shape[1] if dimensions == 2 else 1
        cdef int inside = ends[0] >= 0, k
        cdef shoal_fan_array *added
        if dimensions not in (1, 2) or columns < 1 or array.itemsize != width:
            raise ValueError(f"{array.dtype} {array.shape} does not travel as type {data_type}")
        for k in range(self._fan.servers):
            inside &= ends[k] <= ends[k + 1]
        if not inside or <size_t>ends[self._fan.servers] > size // (columns * width):
            raise ValueError(f"offsets beyond the {len(array)} rows, or falling ones")
        added = shoal_fan_add_array(to)
        if added is NULL:
            raise MemoryError(NO_MEMORY)
        self._kept += (array, offsets)
        added.data, added.offsets = <char *>data, &ends[0]
        added.columns = columns if dimensions == 2 else 0
        added.type, added.width = data_type, width
        return added

    def send(self, array, offsets, int data_type, has=None):
        """Send each server its rows of an array.

        array: [n] or [n, columns], contiguous. offsets: int64 [servers + 1]; server s gets
        array[offsets[s]:offsets[s + 1]]. data_type: its DataType. has: int64 [servers], 0 for those to
        which it is not sent; the same for all arrays that have one, which come last.
        """
        cdef const int64_t[::1] some
        if has is not None:
            some = require("has", has, np.int64, (self._fan.servers,))
            if self._fan.has is not NULL and self._fan.has != &some[0]:
                raise ValueError("optional arrays are sent to the same servers")
            self._fan.has = &some[0]
            self._kept.append(has)
        elif self._fan.sent.optional:
            raise ValueError("optional arrays come last")
        self._add(&self._fan.sent, array, offsets, data_type, 0)
        self._fan.sent.optional += has is not None

    def want(self, array, offsets, int data_type, *, bint optional=False, decoded=None):
        """Receive rows from each server into an array, as `send` takes it.

        optional: it comes only where the answer says so. decoded: float32, where the rows of 16
        bits in `array` are to be.
        """
        cdef size_t size = 0
        cdef void *floats = NULL
        if decoded is not None:
            require("decoded", decoded, np.float32, np.shape(array), writable=True)
            if data_type not in (SHOAL_WIRE_BFLOAT16, SHOAL_WIRE_FLOAT16):
                raise ValueError(f"type {data_type} has no 16 bits")
            floats = memory(decoded, PyBUF_WRITABLE, &size)
            self._kept.append(decoded)
        if self._fan.wanted.optional and not optional:
            raise ValueError("optional arrays come last")
        cdef shoal_fan_array *added = self._add(
            &self._fan.wanted, array, offsets, data_type, PyBUF_WRITABLE
        )
        added.decoded = <float *>floats
        self._fan.wanted.optional += optional

    # ------------------------------------------------------------ the exchange

    def answers(self, int fields, int specs, *, reals=(), flags=(), int flag=0):
        """Which fields answers have: integers, but for those named.

        fields: the last one. specs: that of ArraySpecs. reals, flags: those that are a double, or a
        bool. flag: the one that says whether there are the optional arrays; 0: they are not.
        """
        if not 0 < fields < SHOAL_FAN_NUMBERS or not {specs, flag, *reals, *flags} <= {*range(8)}:
            raise ValueError(f"answers have fields 1 to {SHOAL_FAN_NUMBERS - 1}")
        self._fan.fields, self._fan.specs, self._fan.flag = fields, specs, flag
        self._fan.reals = sum(1 << each for each in reals)
        self._fan.flags = sum(1 << each for each in flags)

    def run(self, sockets, double seconds, secured=None):
        """Send all requests, and receive all answers.

        sockets: int32 [servers], their numbers; -1 for a server that is not asked. seconds: for
        something of a request to be taken, and for an answer to come. secured: by server, the
        Secured of those whose connections have TLS. Raises MemoryError, RuntimeError if one of these
        is in use, and what the handler of a signal raises: then no connection is of any more use.
        """
        taken = []
        try:
            for server, each in (secured or {}).items():
                each.take()
                taken.append(each)
                self._secure(server, each.address)
            self._run(sockets, seconds)
        finally:
            for each in taken:
                each.give_back()

    cdef _secure(self, int server, size_t address):
        if not 0 <= server < self._fan.servers:
            raise ValueError(f"server {server} of {self._fan.servers}")
        self._fan.ways[server].tls = <shoal_tls *>address

    cdef _run(self, sockets, double seconds):
        cdef const int32_t[::1] numbers = require(
            "sockets", sockets, np.int32, (self._fan.servers,)
        )
        cdef int done = 0, s
        if not self._fan.specs or self._fan.arena is not NULL:
            raise ValueError("what answers have is not said, or all was sent before")
        for s in range(self._fan.servers):
            self._fan.ways[s].socket = numbers[s]
            self._fan.status[s] = SHOAL_FAN_SENDING if numbers[s] >= 0 else 0
        self._fan.seconds = seconds
        with nogil:
            done = shoal_fan_begin(&self._fan)
        if not done:
            raise MemoryError(NO_MEMORY)
        while True:
            with nogil:
                done = shoal_fan_run(&self._fan)
            if done:
                return
            PyErr_CheckSignals()

    def kept(self, int server):
        """What has come of a server's answer, where that is UNREAD."""
        return self._fan.ways[server].kept[: self._fan.ways[server].kept_size]

    def error(self, int server):
        """The number of the system's error where a connection is BROKEN."""
        return self._fan.ways[server].error


def rounded(values, offsets, int data_type):
    """Gradients as they travel in 16 bits, and the scale of each server's part.

    values: float32 [n, dim]; offsets as FanOut.send takes them. data_type: BFLOAT16 or FLOAT16. Returns
    uint16 or float16 [n, dim], and float32 [servers]: what a part was divided by.
    """
    cdef const float[:, ::1] given = require("values", values, np.float32, (None, None))
    cdef const int64_t[::1] ends = require("offsets", offsets, np.int64, (None,))
    if data_type not in (SHOAL_WIRE_BFLOAT16, SHOAL_WIRE_FLOAT16):
        raise ValueError(f"type {data_type} has no 16 bits")
    bits = np.empty(np.shape(values), np.uint16)
    found = np.ones(ends.shape[0] - 1, np.float32)
    cdef uint16_t[:, ::1] out = bits
    cdef float[::1] scales = found
    cdef int64_t dim = given.shape[1], n, first, s
    if ends[0] != 0 or ends[ends.shape[0] - 1] != given.shape[0] or (np.diff(offsets) < 0).any():
        raise ValueError("offsets beyond the rows, or falling ones")
    if given.shape[0] and dim:
        with nogil:
            for s in range(ends.shape[0] - 1):
                first, n = ends[s], (ends[s + 1] - ends[s]) * dim
                if not n:
                    continue
                if data_type == SHOAL_WIRE_BFLOAT16:
                    shoal_encode_bfloat16(&given[first, 0], &out[first, 0], n)
                else:
                    scales[s] = shoal_scale_of(&given[first, 0], n)
                    shoal_encode_scaled(&given[first, 0], scales[s], &out[first, 0], n)
    return bits if data_type == SHOAL_WIRE_BFLOAT16 else bits.view(np.float16), found
