"""The row store: any int64 id to a row with its optimizer slots.

A thin shell: it checks arguments, lets go of the interpreter lock and calls the C
headers, of which store.h says what a store is and where the rest is. It knows nothing of
tables, servers or routing.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

import os
import secrets

import numpy as np

from shoal.native.arrays import MAX_BOUNDS, cells_of, require
from shoal.native.cores import usable_cores

from kernels cimport (
    SHOAL_ERA_BITS,
    SHOAL_FORMATS,
    SHOAL_KINDS,
    SHOAL_MANY_USES,
    SHOAL_MAX_ADMIT_AFTER,
    SHOAL_MAX_SLOTS,
    SHOAL_NO_PART,
    SHOAL_ROW_BITS,
    SHOAL_SEGMENT_ROWS,
    SHOAL_SLOT_BITS,
    SHOAL_USE_CLASSES,
    SHOAL_HELPERS,
    number_of,
    pthread_atfork,
    shoal_advance,
    shoal_assign_counting,
    shoal_batch,
    shoal_choice,
    shoal_collect,
    shoal_compact,
    shoal_contains,
    shoal_bounds,
    shoal_count_segment,
    shoal_counting_segment,
    shoal_crew,
    shoal_crew_init,
    shoal_cuts,
    shoal_export_one,
    shoal_export_segment,
    shoal_format_names,
    shoal_initial,
    shoal_instruction_set,
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
    shoal_store_counting,
    shoal_store_create,
    shoal_store_destroy,
    shoal_store_free,
    shoal_store_memory,
    step_of,
)

VALUE_DTYPES = tuple([shoal_format_names[k].decode() for k in range(SHOAL_FORMATS)])
MAX_STEP = 2**63 - 1
ERA_BITS = SHOAL_ERA_BITS  # of steps (eras.h)
MAX_ROWS = 1 << SHOAL_ROW_BITS
MANY_USES = SHOAL_MANY_USES  # where use counts stop
MAX_ADMIT_AFTER = SHOAL_MAX_ADMIT_AFTER
USE_CLASSES = SHOAL_USE_CLASSES
NO_PART = SHOAL_NO_PART
MAX_THREADS = SHOAL_HELPERS + 1  # of one update
INSTRUCTION_SET = shoal_instruction_set()  # the level of x86-64 whose code runs: 4, 3 or 0

cdef enum:
    MAX_PARTS = 64

cdef shoal_crew CREW
"""Of this process: the threads that help with large updates of any store."""


cdef void begin_crew() noexcept nogil:
    shoal_crew_init(&CREW)


begin_crew()
if pthread_atfork(NULL, NULL, begin_crew):
    raise MemoryError("no memory for what is done after a fork")


def use_cores(cores):
    """Give a large update so many threads, at most MAX_THREADS, whoever else is at work; for tests.

    None: as many as there are cores that nobody uses, as each process does from its first store on.
    """
    CREW.cores = usable_cores() if cores is None else cores
    CREW.machine = (os.cpu_count() or 1) if cores is None else 0


cdef uint64_t PLACE_KEY = secrets.randbits(64)
"""A key of this process alone: ids that were chosen to share a place in the index do not."""


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


cdef const int64_t *steps_of(object array) except? NULL:
    """Start of a checked int64 array of steps (NULL for None). Raises ValueError for one below 0."""
    if array is None:
        return NULL
    if array.size and array.min() < 0:
        raise ValueError(f"versions must be at least 0, got {array.min()}")
    cdef const int64_t[::1] flat = array
    return &flat[0] if flat.shape[0] else NULL


cdef int choose(shoal_choice *into, str name, object choice) except -1:
    """Fill the C struct from a Choice of choices.py, into which it points; empty for None."""
    cdef const int64_t[::1] sure, maybe
    into.sure = into.maybe = NULL
    into.below = 0
    if choice is not None:
        sure = require(f"{name}.sure", choice.sure, np.int64, (SHOAL_USE_CLASSES,))
        maybe = require(f"{name}.maybe", choice.maybe, np.int64, (SHOAL_USE_CLASSES,))
        into.sure, into.maybe, into.below = &sure[0], &maybe[0], choice.below
    return 0


cdef int roomy(shoal_rows **rows, int parts) noexcept nogil:
    """True if each part has room for a segment."""
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

    def __cinit__(self, RowStore store, int64_t room, bint counting):
        self._ids = np.empty(room, np.int64)
        self._values = None if counting else np.empty((room, store.dim), np.float32)
        self._slots = {
            name: np.empty((room, store.slot_width), np.float32)
            for name in store.slot_names
            if not counting
        }
        self._versions = np.empty(room, np.int64)
        self._uses = np.empty(room, np.uint32)
        self.rows.ids = <int64_t *><size_t>self._ids.ctypes.data
        self.rows.values = <float *>floats(self._values)
        for k, slot in enumerate(self._slots.values()):
            self.rows.slots[k] = <float *>floats(slot)
        self.rows.steps = <int64_t *><size_t>self._versions.ctypes.data
        self.rows.uses = <uint32_t *>counters(self._uses)
        self.rows.filled, self.rows.room = 0, room

    cdef arrays(self):
        n = self.rows.filled
        if self._values is None:
            return self._ids[:n], self._versions[:n], self._uses[:n]
        slots = {name: slot[:n] for name, slot in self._slots.items()}
        return self._ids[:n], self._values[:n], slots, self._versions[:n], self._uses[:n]


cdef class RowStore:
    """Rows of ``dim`` values with optimizer slots, found by int64 id.

    Any id is legal. A row comes to exist on its first update (or ``insert``); until then
    a lookup computes its initial value, a pure function of (seed, id). With ``admit_after``
    above 1 a row comes to exist on that update of its id: those before are counted, and their
    gradients dropped. Every method may be
    called from many threads at once: each row is read and written whole, lookups wait for
    nobody, updates only for updates of the same row, and inserts hold the others up for a
    few hundred ids at a time. A batch is not one atomic step.

    dim: columns, at least 1. seed: any int64 or uint64. value_dtype: "float32",
    "bfloat16" or "float16"; the 16-bit types are rounded stochastically on update, slots
    stay float32, and arrays going in and out are float32. admit_after: 1 to MAX_ADMIT_AFTER.
    Raises ValueError or TypeError for bad arguments.
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
    cdef readonly int admit_after
    cdef bint _snapshot

    def __cinit__(
        self, dim, optimizer, initializer, seed, *, value_dtype="float32", admit_after=1
    ):
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
        if not isinstance(admit_after, int) or isinstance(admit_after, bool):
            raise TypeError(f"admit_after must be an int, not {type(admit_after).__name__}")
        if not 1 <= admit_after <= MAX_ADMIT_AFTER:
            raise ValueError(
                f"admit_after must be between 1 and {MAX_ADMIT_AFTER}, got {admit_after}"
            )
        self.dim = dim
        self.admit_after = admit_after
        self.optimizer = optimizer
        self.initializer = initializer
        self.seed = seed
        self.value_dtype = value_dtype
        self.slot_names = optimizer.slot_names
        self.slot_width = optimizer.slot_width(dim)
        for k, value in enumerate(optimizer.slot_initial_values):
            slot_initial[k] = value
        self._step = step_of(optimizer)
        if not CREW.cores:
            use_cores(None)
        kind, initial.a, initial.b = initializer.kernel
        initial.kind = number_of(kind, shoal_kind_names, SHOAL_KINDS)
        initial.key = shoal_mix64(<uint64_t>(seed & 0xFFFFFFFFFFFFFFFF))
        self._store = shoal_store_create(
            dim, VALUE_DTYPES.index(value_dtype), len(self.slot_names), self.slot_width,
            slot_initial, initial, initializer.default_value, admit_after,
            shoal_mix64(~initial.key), PLACE_KEY, &CREW,
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

    @property
    def counting(self):
        """The number of ids that are counted and have no row yet."""
        cdef int64_t ids
        with nogil:
            ids = shoal_store_counting(self._store)
        return ids

    @property
    def free_rows(self):
        """The number of records that removal left free, whose memory `compact` would give back."""
        cdef int64_t rows
        with nogil:
            rows = shoal_store_free(self._store)
        return rows

    def memory_bytes(self):
        """Bytes of memory this store keeps resident: rows, slots, index, free lists."""
        cdef size_t total
        with nogil:
            total = shoal_store_memory(self._store)
        return total

    @property
    def address(self):
        """The address of the C store, for an extension that keeps this object meanwhile."""
        return <size_t>self._store

    @property
    def step_address(self):
        """The address of the common part of this store's updates (steps.h), as ``address``."""
        return <size_t>&self._step

    cdef run(self, shoal_batch *batch):
        cdef int result
        with nogil:
            result = shoal_run(self._store, batch)
        if result != 0:
            raise MemoryError(
                f"no memory for more rows, or more than {MAX_ROWS} of them; "
                "a part of the batch may have been applied"
            )

    def lookup(self, ids, out=None, *, missing="initial", reads=None):
        """Read rows; never inserts.

        ids: int64 [n], repeats allowed. out: float32 [n, dim] to write to, or None for a
        new array. missing: what an id without a row reads, "initial" for its initial
        value or "default" for the initializer's expected value. reads: int64 [2], to which the
        number of ids, and of those without a row, is added, or None. Returns out.
        """
        cdef shoal_batch batch = empty_batch()
        cdef int64_t[::1] counts
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
            if reads is not None:
                counts = require("reads", reads, np.int64, (2,), writable=True)
                batch.reads = &counts[0]
            self.run(&batch)
        return out

    def insert(self, ids):
        """Make sure that rows exist. ids: int64 [n].

        New rows have version and use count 0, or those with which their ids were counted.
        """
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
        """Apply the optimizer to rows; missing rows are inserted first, or counted.

        With ``admit_after`` above 1, an id without a row has its use counted and its gradient
        dropped; the use that makes them ``admit_after`` makes its row and updates it.

        ids: int64 [n], best unique; a repeated id is updated once per occurrence, in
        order. gradients: float32 [n, dim]. learning_rate: of this update. step: the
        1-based count of updates, for Adam's bias correction; becomes the rows' last
        version. gradient_scale: multiplies every gradient (loss scale, global-norm clip).
        """
        cdef shoal_batch batch = empty_batch()
        cdef shoal_step now
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        require("gradients", gradients, np.float32, (keys.shape[0], self.dim))
        self.optimizer.check_learning_rate(learning_rate)
        if not 1 <= step <= MAX_STEP:
            raise ValueError(f"step must be from 1 to {MAX_STEP}, got {step}")
        if keys.shape[0]:
            now = shoal_step_at(&self._step, learning_rate, gradient_scale, step)
            batch.n = keys.shape[0]
            batch.ids = &keys[0]
            batch.gradients = floats(gradients)
            batch.step = &now
            batch.number = step
            self.run(&batch)
        else:
            self.advance(step)

    def advance(self, step):
        """Make `step` the last one: rows' steps are told apart back to 3 * 2^30 before it.

        Rows that were used earlier count as used at the first step that is told apart. An update
        does the same; a store that is restored, or whose rows are compared with another's, needs
        this call.
        """
        cdef int64_t last = step
        with nogil:
            shoal_advance(self._store, last)

    def remove(self, ids):
        """Remove rows, and counts of ids without one; returns how many there were. ids: int64 [n].

        Their memory is used again by later rows; ``compact`` gives it back.
        """
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        cdef int64_t removed = 0, rows = 0
        if keys.shape[0]:
            with nogil:
                removed = shoal_remove(self._store, &keys[0], keys.shape[0], NULL, NULL, &rows)
        if removed < 0:
            raise MemoryError("no memory to note removed rows; a part of them was removed")
        return removed

    def remove_chosen(self, ids, rows, counting):
        """Remove those of the ids that are chosen as in ``collect``, by their headers of now.

        ids: int64 [n]. Returns (removed, rows): the ids removed, int64 [m], in the order given,
        and how many of them had a row; the others were counted. A few hundred ids at a time are
        removed in one step. Raises MemoryError.
        """
        cdef shoal_cuts cuts
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        cdef int64_t n = keys.shape[0], removed = 0, of_rows = 0
        found = np.empty(n, np.int64)
        cdef int64_t[::1] out = found
        choose(&cuts.rows, "rows", rows)
        choose(&cuts.counting, "counting", counting)
        cuts.from_ = 0
        if n:
            with nogil:
                removed = shoal_remove(self._store, &keys[0], n, &cuts, &out[0], &of_rows)
        if removed < 0:
            raise MemoryError("no memory to note removed rows; a part of them was removed")
        return found[:removed].copy(), of_rows

    def collect(self, rows, counting, cursor=0, limit=4096, until=1 << 32):
        """Ids that are chosen by the step of their last use and their use count.

        rows, counting: a Choice (choices.py) of rows, and of ids that are counted; None for none
        of that kind. cursor: 0, or what the call before returned. limit: ids at most, at
        least 2048. until: a cursor, at or soon behind which to return: all are below 2^32. Returns
        (ids, cursor): int64 [m], and None at the end. An id that is there and
        chosen throughout comes exactly once, however the store grows, or is compacted.
        """
        cdef shoal_cuts cuts
        choose(&cuts.rows, "rows", rows)
        choose(&cuts.counting, "counting", counting)
        cuts.from_ = 0
        return self._collect(&cuts, cursor, limit, until)

    def changed(self, since, cursor=0, limit=4096):
        """Ids of rows whose version is at least ``since``; otherwise as ``collect``."""
        cdef shoal_cuts cuts
        cdef const int64_t[::1] all_steps = np.full(SHOAL_USE_CLASSES, MAX_STEP, np.int64)
        cuts.rows.sure = cuts.rows.maybe = &all_steps[0]
        cuts.counting.sure = cuts.counting.maybe = NULL
        cuts.rows.below = cuts.counting.below = 0
        cuts.from_ = since
        return self._collect(&cuts, cursor, limit, 1 << 32)

    cdef _collect(self, shoal_cuts *cuts, cursor, limit, uint64_t until):
        cdef uint64_t at
        cdef int64_t found, room = limit
        if not 0 <= cursor < 1 << 32:
            raise ValueError(f"cursor must be 0 or one that was returned, got {cursor}")
        if limit < SHOAL_SEGMENT_ROWS:
            raise ValueError(f"limit must be at least {SHOAL_SEGMENT_ROWS}, got {limit}")
        at = cursor
        ids = np.empty(room, np.int64)
        cdef int64_t[::1] out = ids
        with nogil:
            found = shoal_collect(self._store, &at, cuts, &out[0], room, until)
        return ids[:found].copy(), None if at >> 32 else at

    def histogram(self, bounds):
        """Count the rows and the counted ids, by last step and by uses.

        bounds: int64 [b], ascending steps, at most MAX_BOUNDS. Returns (rows, counting), each
        int64 [b + 1, USE_CLASSES]: line i is for versions from bounds[i - 1] to below bounds[i],
        column c for floor(log2(uses)) = c. Ids that change meanwhile are where they were seen.
        """
        cdef const int64_t[::1] steps = require("bounds", bounds, np.int64, (None,))
        cdef int64_t count = steps.shape[0]
        cdef uint64_t cursor = 0
        cdef int more = 1
        cdef shoal_bounds places
        shift, found = cells_of(bounds)
        cdef const uint16_t[::1] reached = found
        places.count, places.shift, places.cells = count, shift, reached.shape[0]
        if count:
            places.bounds, places.reached = &steps[0], &reached[0]
        rows = np.zeros((count + 1, SHOAL_USE_CLASSES), np.int64)
        counting = np.zeros((count + 1, SHOAL_USE_CLASSES), np.int64)
        cdef int64_t[:, ::1] of_rows = rows, of_counting = counting
        with nogil:
            while more:
                more = shoal_count_segment(
                    self._store, &cursor, &places, &of_rows[0, 0], &of_counting[0, 0]
                )
        return rows, counting

    def compact(self):
        """Close the gaps that removal left and give their memory back, little by little."""
        cdef int result
        with nogil:
            result = shoal_compact(self._store)
        if result != 0:
            raise MemoryError("no memory to compact; rows are intact")

    def find(self, key):
        """Return (values, slots, version, use count) of one id, or None if it is unknown.

        values: float32 [dim]; slots: name to float32 [slot_width]. values is None and slots empty
        for an id that is counted and has no row. The use count stops at MANY_USES.
        """
        cdef int64_t wanted = key
        cdef int found
        cdef _Piece piece = _Piece(self, 1, False)
        cdef shoal_split split
        cdef shoal_rows *part = &piece.rows
        split.parts, split.part_of, split.counting, split.chosen = &part, NULL, 0, 0
        with nogil:
            found = shoal_export_one(self._store, wanted, &split)
        if not found:
            return None
        _, values, slots, versions, uses = piece.arrays()
        numbers = int(versions[0]), int(uses[0])
        if found == 1:
            return None, {}, *numbers
        return values[0], {name: slot[0] for name, slot in slots.items()}, *numbers

    def export(self, batch=65536):
        """Iterate over all rows as (ids, values, slots, versions, use_counts).

        ids: int64 [n]; values: float32 [n, dim]; slots: name to float32 [n, slot_width];
        versions: int64 [n]; use_counts: uint32 [n], which stop at MANY_USES. n is at most the
        larger of ``batch`` and 2048. Each row comes whole, with slots of the same moment;
        different rows may be of different moments. A row that is there throughout comes
        exactly once.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        return (piece for _, piece in self._pieces(batch, False, False, None, 1))

    def export_of(self, part_of, int parts, since, batch=65536, *, counting=False):
        """Iterate as ``export``, over some routing slots and rows last used at a step or later.

        part_of: uint16 [16384], the part of each slot, below ``parts``, at most 64; NO_PART for
        one that is left out. since: the step; 0 for all. counting: the ids that are counted and
        have no row instead, as ``export_counting``. Yields (part, piece); what is left at the
        end, at most one piece a part, comes last.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if not 1 <= parts <= MAX_PARTS:
            raise ValueError(f"parts must be between 1 and {MAX_PARTS}, got {parts}")
        slots = require("part_of", part_of, np.uint16, (1 << SHOAL_SLOT_BITS,))
        if slots[slots != NO_PART].max(initial=0) >= parts:
            raise ValueError(f"part_of must be below parts={parts}, or NO_PART")
        return self._pieces(batch, False, counting, slots, parts, True, since)

    def export_counting(self, batch=65536):
        """Iterate over the ids that are counted and have no row, as (ids, versions, use_counts).

        ids: int64 [n]; versions, the step of the last use: int64 [n]; use_counts: uint32 [n].
        Otherwise as ``export``.
        """
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        return (piece for _, piece in self._pieces(batch, False, True, None, 1))

    def begin_snapshot(self):
        """Fix the rows and counts as they are now, for ``snapshot``; updates may go on at once.

        No update may be under way. Costs a bit a row, and until ``end_snapshot`` a copy of
        each row and count that is changed before it was read. Raises MemoryError; ValueError if
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
        """Iterate as ``snapshot``, with rows of different parts of the routing slots apart.

        part_of: uint16 [16384], the part of each slot, below ``parts``, at most 64;
        None for one part. Yields (part, (ids, values, slots, versions, use_counts)). What is
        left at the end, at most one piece a part, comes last and in the order of parts. Memory
        is that of a piece a part. Raises as ``snapshot``.
        """
        return self._snapshot_pieces(False, part_of, parts, batch)

    def snapshot_counting_by(self, part_of, int parts, batch=65536):
        """Iterate as ``snapshot_by``, over the ids that were counted and had no row, each once.

        Yields (part, (ids, versions, use_counts)), as ``export_counting``.
        """
        return self._snapshot_pieces(True, part_of, parts, batch)

    def _snapshot_pieces(self, counting, part_of, int parts, batch):
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
        return self._pieces(batch, True, counting, part_of, parts)

    def end_snapshot(self):
        """Forget the snapshot and the copies it holds; nothing without one."""
        if self._snapshot:
            with nogil:
                shoal_snapshot_end(self._store)
            self._snapshot = False

    def _pieces(self, batch, fixed, counting, part_of, count, chosen=False, since=0):
        cdef int of_snapshot = fixed, of_counts = counting, more = 1, drained = 1
        cdef uint64_t cursor = 0
        cdef shoal_split split
        cdef shoal_rows *rows[MAX_PARTS]
        cdef const uint16_t[::1] slots
        cdef int parts = count
        # A small table costs little: few of its parts get as many rows as it has.
        present = self.counting if counting else len(self)
        cdef int64_t room = min(max(batch, SHOAL_SEGMENT_ROWS), present + SHOAL_SEGMENT_ROWS)
        pieces = [_Piece(self, room, counting) for _ in range(parts)]
        for k in range(parts):
            rows[k] = &(<_Piece>pieces[k]).rows
        split.parts, split.part_of, split.counting = rows, NULL, counting
        split.chosen, split.since = chosen, since
        if part_of is not None:
            slots = part_of
            split.part_of = &slots[0]
        while more:
            with nogil:
                while more and roomy(rows, parts):
                    if of_counts:
                        more = shoal_counting_segment(self._store, &cursor, of_snapshot, &split)
                    elif of_snapshot:
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
                        pieces[k] = _Piece(self, room, counting)
                        rows[k] = &(<_Piece>pieces[k]).rows
                        yield k, (<_Piece>piece).arrays()
        for k in range(parts):
            if rows[k].filled:
                yield k, (<_Piece>pieces[k]).arrays()

    def assign(self, ids, values, slots=None, versions=None, use_counts=None):
        """Set rows as they are, inserting missing ones; for checkpoints and tests.

        ids: int64 [n]; values: float32 [n, dim]; slots: name to float32 [n, slot_width];
        versions: int64 [n], at least 0; use_counts: uint32 [n]. What is not given stays as it is,
        also the numbers of an id that was counted, or starts as in a new row. 16-bit values are
        rounded to nearest even. Raises ValueError for a slot this optimizer does not have.
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
            require("versions", versions, np.int64, (n,))
        if use_counts is not None:
            require("use_counts", use_counts, np.uint32, (n,))
        if n:
            batch.n = n
            batch.ids = &keys[0]
            batch.values = floats(values)
            for k, name in enumerate(self.slot_names):
                batch.slots[k] = floats(slots.get(name))
            batch.steps = steps_of(versions)
            if versions is not None:
                self.advance(versions.max())
            batch.uses = counters(use_counts)
            self.run(&batch)

    def assign_counting(self, ids, versions, use_counts):
        """Set the counts of ids to given ones; for checkpoints.

        ids: int64 [n]; versions, the step of the last use: int64 [n]; use_counts: uint32 [n]. An
        id that has a row is left alone. The next update judges by this store's ``admit_after``. Raises
        MemoryError.
        """
        cdef const int64_t[::1] keys = require("ids", ids, np.int64, (None,))
        cdef Py_ssize_t n = keys.shape[0]
        require("versions", versions, np.int64, (n,))
        require("use_counts", use_counts, np.uint32, (n,))
        cdef const int64_t *steps = steps_of(versions)
        cdef const uint32_t *uses = counters(use_counts)
        cdef int result = 0
        if n:
            self.advance(versions.max())
            with nogil:
                result = shoal_assign_counting(self._store, &keys[0], steps, uses, n)
        if result != 0:
            raise MemoryError("no memory for counts; a part of them may have been set")
