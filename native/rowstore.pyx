"""The row store: any int64 id to a row with its optimizer slots.

A thin shell: it checks arguments, lets go of the interpreter lock and calls the C
headers (store.h for what a store is, traffic.h for batches, scan.h for iteration,
removal and compaction). It knows nothing of tables, servers or routing.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

import secrets

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_FORMATS,
    SHOAL_KINDS,
    SHOAL_MANY_USES,
    SHOAL_MAX_SLOTS,
    SHOAL_ROW_BITS,
    SHOAL_SEGMENT_ROWS,
    SHOAL_SLOT_BITS,
    number_of,
    shoal_batch,
    shoal_compact,
    shoal_contains,
    shoal_export_segment,
    shoal_format_names,
    shoal_initial,
    shoal_kind_names,
    shoal_mix64,
    shoal_remove,
    shoal_reserve,
    shoal_rows,
    shoal_run,
    shoal_snapshot_begin,
    shoal_snapshot_end,
    shoal_snapshot_failed,
    shoal_snapshot_kept,
    shoal_snapshot_segment,
    shoal_split,
    shoal_step,
    shoal_step_at,
    shoal_store,
    shoal_store_count,
    shoal_store_create,
    shoal_store_destroy,
    shoal_store_memory,
    step_of,
)

VALUE_DTYPES = tuple([shoal_format_names[k].decode() for k in range(SHOAL_FORMATS)])
MAX_STEP = 2**32 - 1
MAX_ROWS = 1 << SHOAL_ROW_BITS
MANY_USES = SHOAL_MANY_USES  # where use counts stop

cdef enum:
    MAX_PARTS = 64

cdef uint64_t PLACE_KEY = secrets.randbits(64)
"""Of this process alone: ids that were chosen to share a place in the index do not."""


cdef const float *floats(object array) noexcept:
    """Start of a checked float32 array (NULL for None)."""
    if array is None:
        return NULL
    cdef const float[::1] flat = array.reshape(-1)
    return &flat[0] if flat.shape[0] else NULL


cdef const uint32_t *counters(object array) noexcept:
    if array is None:
        return NULL
    cdef const uint32_t[::1] flat = array
    return &flat[0] if flat.shape[0] else NULL


cdef int roomy(shoal_rows **rows, int parts) noexcept nogil:
    """Whether each part has room for a segment."""
    for k in range(parts):
        if rows[k].room - rows[k].filled < SHOAL_SEGMENT_ROWS:
            return 0
    return 1


cdef shoal_batch empty_batch() noexcept:
    cdef shoal_batch batch
    memset(&batch, 0, sizeof(batch))
    return batch


cdef class _Piece:
    """Arrays for the rows of one part, and how far they are filled."""

    cdef shoal_rows rows
    cdef object _ids, _values, _slots, _versions, _uses

    def __cinit__(self, RowStore store, int64_t room):
        self._ids = np.empty(room, np.int64)
        self._values = np.empty((room, store.dim), np.float32)
        self._slots = {
            name: np.empty((room, store.slot_width), np.float32) for name in store.slot_names
        }
        self._versions = np.empty(room, np.uint32)
        self._uses = np.empty(room, np.uint32)
        self.rows.ids = <int64_t *><size_t>self._ids.ctypes.data
        self.rows.values = <float *>floats(self._values)
        for k, slot in enumerate(self._slots.values()):
            self.rows.slots[k] = <float *>floats(slot)
        self.rows.versions = <uint32_t *>counters(self._versions)
        self.rows.uses = <uint32_t *>counters(self._uses)
        self.rows.filled, self.rows.room = 0, room

    cdef arrays(self):
        n = self.rows.filled
        slots = {name: slot[:n] for name, slot in self._slots.items()}
        return self._ids[:n], self._values[:n], slots, self._versions[:n], self._uses[:n]


cdef class RowStore:
    """Rows of ``dim`` values with optimizer slots, found by int64 id.

    Any id is legal. A row comes to exist on its first update (or ``insert``); until then
    a lookup computes its initial value, a pure function of (seed, id). Every method may be
    called from many threads at once: each row is read and written whole, lookups wait for
    nobody, updates only for updates of the same row, and inserts hold the others up for a
    few hundred ids at a time. A batch is not one atomic step.

    dim: columns, at least 1. seed: any int64 or uint64. value_dtype: "float32",
    "bfloat16" or "float16"; the 16-bit types are rounded stochastically on update, slots
    stay float32, and arrays going in and out are float32. Raises ValueError or TypeError
    for bad arguments.
    """

    cdef shoal_store *_store
    cdef shoal_step _step
    cdef readonly int dim
    cdef readonly object optimizer
    cdef readonly object initializer
    cdef readonly object seed
    cdef readonly str value_dtype
    cdef readonly tuple slot_names
    cdef readonly int slot_width
    cdef bint _snapshot

    def __cinit__(self, dim, optimizer, initializer, seed, *, value_dtype="float32"):
        cdef float slot_initial[SHOAL_MAX_SLOTS]
        cdef shoal_initial initial
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise TypeError(f"dim must be an int, not {type(dim).__name__}")
        if not 1 <= dim <= 65536:
            raise ValueError(f"dim must be between 1 and 65536, got {dim}")
        if value_dtype not in VALUE_DTYPES:
            raise ValueError(f"value_dtype must be one of {VALUE_DTYPES}, got {value_dtype!r}")
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"seed must fit in 64 bits, got {seed}")
        self.dim = dim
        self.optimizer = optimizer
        self.initializer = initializer
        self.seed = seed
        self.value_dtype = value_dtype
        self.slot_names = optimizer.slot_names
        self.slot_width = optimizer.slot_width(dim)
        for k, value in enumerate(optimizer.slot_initial_values):
            slot_initial[k] = value
        self._step = step_of(optimizer)
        kind, initial.a, initial.b = initializer.kernel
        initial.kind = number_of(kind, shoal_kind_names, SHOAL_KINDS)
        initial.key = shoal_mix64(<uint64_t>(seed & 0xFFFFFFFFFFFFFFFF))
        self._store = shoal_store_create(
            dim, VALUE_DTYPES.index(value_dtype), len(self.slot_names), self.slot_width,
            slot_initial, initial, initializer.default_value, shoal_mix64(~initial.key),
            PLACE_KEY,
        )
        if self._store is NULL:
            raise MemoryError("no memory for an empty row store")

    def __dealloc__(self):
        if self._snapshot:
            shoal_snapshot_end(self._store)
        shoal_store_destroy(self._store)

    def __len__(self):
        cdef int64_t rows
        with nogil:
            rows = shoal_store_count(self._store)
        return rows

    def __contains__(self, id):
        cdef int64_t key = id
        cdef int found
        with nogil:
            found = shoal_contains(self._store, key)
        return found != 0

    def memory_bytes(self):
        """Bytes of memory this store keeps resident: rows, slots, index, free lists."""
        cdef size_t total
        with nogil:
            total = shoal_store_memory(self._store)
        return total

    @property
    def address(self):
        """Of the store in C, for another extension, which keeps this object while it uses that."""
        return <size_t>self._store

    cdef run(self, shoal_batch *batch):
        cdef int result
        with nogil:
            result = shoal_run(self._store, batch)
        if result != 0:
            raise MemoryError(
                f"no memory for more rows, or more than {MAX_ROWS} of them; "
                "a part of the batch may have been applied"
            )

    def lookup(self, ids, out=None, *, missing="initial"):
        """Read rows; never inserts.

        ids: int64 [n], repeats allowed. out: float32 [n, dim] to write to, or None for a
        new array. missing: what an id without a row reads, "initial" for its initial
        value or "default" for the initializer's expected value. Returns out.
        """
        cdef shoal_batch batch = empty_batch()
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        if missing not in ("initial", "default"):
            raise ValueError(f"missing must be 'initial' or 'default', got {missing!r}")
        if out is None:
            out = np.empty((keys.shape[0], self.dim), np.float32)
        else:
            require("out", out, np.float32, (keys.shape[0], self.dim), writable=True)
        if keys.shape[0]:
            batch.n = keys.shape[0]
            batch.ids = &keys[0]
            batch.out = <float *>floats(out)
            batch.use_default = missing == "default"
            self.run(&batch)
        return out

    def insert(self, ids):
        """Make sure that rows exist. ids: int64 [n]. New rows have version and use count 0."""
        cdef shoal_batch batch = empty_batch()
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        if keys.shape[0]:
            batch.n = keys.shape[0]
            batch.ids = &keys[0]
            self.run(&batch)

    def reserve(self, rows):
        """Make room in the index for so many rows in all, so that it need not grow step by step.

        Costs the index's memory at once, and holds all others up meanwhile: for a table that
        is about to be filled. Raises ValueError for more than MAX_ROWS, MemoryError.
        """
        cdef int64_t count = rows
        cdef int result
        if not 0 <= count <= MAX_ROWS:
            raise ValueError(f"rows must be between 0 and {MAX_ROWS}, got {rows}")
        with nogil:
            result = shoal_reserve(self._store, count)
        if result != 0:
            raise MemoryError(f"no memory for the index of {rows} rows")

    def update(self, ids, gradients, *, learning_rate, step, gradient_scale=1.0):
        """Apply the optimizer to rows; missing rows are inserted first.

        ids: int64 [n], best unique; a repeated id is updated once per occurrence, in
        order. gradients: float32 [n, dim]. learning_rate: of this update. step: the
        1-based count of updates, for Adam's bias correction; becomes the rows' last
        version, which stops at MAX_STEP. gradient_scale: multiplies every gradient (loss
        scale, global-norm clip).
        """
        cdef shoal_batch batch = empty_batch()
        cdef shoal_step now
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        require("gradients", gradients, np.float32, (keys.shape[0], self.dim))
        self.optimizer.check_learning_rate(learning_rate)
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        if keys.shape[0]:
            now = shoal_step_at(&self._step, learning_rate, gradient_scale, step)
            batch.n = keys.shape[0]
            batch.ids = &keys[0]
            batch.gradients = floats(gradients)
            batch.step = &now
            batch.version = min(step, MAX_STEP)
            self.run(&batch)

    def remove(self, ids):
        """Remove rows; returns how many there were. ids: int64 [n].

        Their memory is used again by later rows; ``compact`` gives it back.
        """
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        cdef int64_t removed = 0
        if keys.shape[0]:
            with nogil:
                removed = shoal_remove(self._store, &keys[0], keys.shape[0])
        if removed < 0:
            raise MemoryError("no memory to note removed rows; a part of them was removed")
        return removed

    def compact(self):
        """Close the gaps that removal left and give their memory back, little by little."""
        cdef int result
        with nogil:
            result = shoal_compact(self._store)
        if result != 0:
            raise MemoryError("no memory to compact; rows are intact")

    def export(self, batch=65536):
        """Iterate over all rows as (ids, values, slots, versions, use_counts).

        ids: int64 [n]; values: float32 [n, dim]; slots: name to float32 [n, slot_width];
        versions, use_counts: uint32 [n] (use counts stop at MANY_USES). n is at most the
        larger of ``batch`` and 2048. Each row comes whole, with slots of the same moment;
        different rows may be of different moments. A row that is there throughout comes
        exactly once.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        return (piece for _, piece in self._pieces(batch, False, None, 1))

    def begin_snapshot(self):
        """Fix the rows as they are now, for ``snapshot``; updates may go on at once.

        No update may be under way. Costs a bit a row, and until ``end_snapshot`` a copy of
        each row that is changed before it was read. Raises MemoryError; ValueError if
        there is a snapshot already.
        """
        cdef int begun
        if self._snapshot:
            raise ValueError("a snapshot is being read already")
        with nogil:
            begun = shoal_snapshot_begin(self._store)
        if not begun:
            raise MemoryError("no memory for a snapshot")
        self._snapshot = True

    def snapshot(self, batch=65536):
        """Iterate over the rows as they were at ``begin_snapshot``, each once; as ``export``.

        Raises ValueError without a snapshot, MemoryError if copies of changed rows did
        not fit (updates went on undisturbed).
        """
        return (piece for _, piece in self.snapshot_by(None, 1, batch))

    def snapshot_by(self, part_of, int parts, batch=65536):
        """As ``snapshot``, with rows of different parts of the routing slots apart.

        part_of: uint16 [16384], the part of each slot, below ``parts``, at most 64;
        None for one part. Yields (part, (ids, values, slots, versions, use_counts)). What is
        left at the end, at most one piece a part, comes last and in the order of parts. Memory
        is that of a piece a part. Raises as ``snapshot``.
        """
        if not self._snapshot:
            raise ValueError("there is no snapshot: call begin_snapshot")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if not 1 <= parts <= MAX_PARTS:
            raise ValueError(f"parts must be between 1 and {MAX_PARTS}, got {parts}")
        if part_of is None:
            if parts != 1:
                raise ValueError("part_of must say the parts of slots")
        elif require("part_of", part_of, np.uint16, (1 << SHOAL_SLOT_BITS,)).max() >= parts:
            raise ValueError(f"part_of must be below parts={parts}")
        return self._pieces(batch, True, part_of, parts)

    def end_snapshot(self):
        """Forget the snapshot and the copies it holds; nothing without one."""
        if self._snapshot:
            with nogil:
                shoal_snapshot_end(self._store)
            self._snapshot = False

    def _pieces(self, batch, fixed, part_of, count):
        cdef int of_snapshot = fixed, more = 1, drained = 1
        cdef uint64_t cursor = 0
        cdef shoal_split split
        cdef shoal_rows *rows[MAX_PARTS]
        cdef const uint16_t[::1] slots
        cdef int parts = count
        # A small table costs little: few of its parts get as many rows as it has.
        cdef int64_t room = min(max(batch, SHOAL_SEGMENT_ROWS), len(self) + SHOAL_SEGMENT_ROWS)
        pieces = [_Piece(self, room) for _ in range(parts)]
        for k in range(parts):
            rows[k] = &(<_Piece>pieces[k]).rows
        split.parts, split.part_of = rows, NULL
        if part_of is not None:
            slots = part_of
            split.part_of = &slots[0]
        while more:
            with nogil:
                while more and roomy(rows, parts):
                    if of_snapshot:
                        more = shoal_snapshot_segment(self._store, &cursor, &split)
                    else:
                        more = shoal_export_segment(self._store, &cursor, &split)
            drained = 0
            while not drained:
                # After the last segment no copy is added any more.
                drained = 1
                if of_snapshot:
                    with nogil:
                        drained = shoal_snapshot_kept(self._store, &split)
                    if shoal_snapshot_failed(self._store):
                        raise MemoryError("no memory for copies of rows that changed meanwhile")
                for k in range(parts):
                    if rows[k].room - rows[k].filled < SHOAL_SEGMENT_ROWS:
                        piece = <_Piece>pieces[k]
                        pieces[k] = _Piece(self, room)
                        rows[k] = &(<_Piece>pieces[k]).rows
                        yield k, (<_Piece>piece).arrays()
        for k in range(parts):
            if rows[k].filled:
                yield k, (<_Piece>pieces[k]).arrays()

    def assign(self, ids, values, slots=None, versions=None, use_counts=None):
        """Set rows as they are, inserting missing ones; for checkpoints and tests.

        ids: int64 [n]; values: float32 [n, dim]; slots: name to float32 [n, slot_width];
        versions, use_counts: uint32 [n]. What is not given stays as it is, or starts as in
        a new row. 16-bit values are rounded to nearest even. Raises ValueError for a slot
        this optimizer does not have.
        """
        cdef shoal_batch batch = empty_batch()
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        cdef Py_ssize_t n = keys.shape[0]
        require("values", values, np.float32, (n, self.dim))
        slots = dict(slots or {})
        unknown = sorted(set(slots) - set(self.slot_names))
        if unknown:
            raise ValueError(f"slots: the optimizer has no slot {', '.join(unknown)}")
        for name, slot in slots.items():
            require(f"slots[{name!r}]", slot, np.float32, (n, self.slot_width))
        if versions is not None:
            require("versions", versions, np.uint32, (n,))
        if use_counts is not None:
            require("use_counts", use_counts, np.uint32, (n,))
        if n:
            batch.n = n
            batch.ids = &keys[0]
            batch.values = floats(values)
            for k, name in enumerate(self.slot_names):
                batch.slots[k] = floats(slots.get(name))
            batch.versions = counters(versions)
            batch.uses = counters(use_counts)
            self.run(&batch)
