"""Ids of one batch: hash, routing slot, deduplication, partition by server.

Everything a worker does to ids before it asks the servers. The slot of an id decides
which server owns it; who owns which slot is passed in.
"""

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

import secrets

import numpy as np

from shoal.native.arrays import aligned_empty, require

from kernels cimport (
    SHOAL_SLOT_BITS,
    shoal_mix_all,
    shoal_partition,
    shoal_unique_places,
    shoal_slot_all,
    shoal_unique,
)

SLOTS = 1 << SHOAL_SLOT_BITS
MAX_BATCH = 2**30  # an inverse index is an int32, a table word a uint32

# Places ids in the table of `unique`; drawn once a process.
cdef uint64_t PLACE_KEY = secrets.randbits(64)


def mix64(ids):
    """splitmix64 of every id: int64 [n] to uint64 [n]. A bijection."""
    cdef const int64_t[::1] given = require("ids", ids, np.int64, (None,))
    out = np.empty(given.shape[0], np.uint64)
    cdef uint64_t[::1] hashes = out
    if given.shape[0]:
        with nogil:
            shoal_mix_all(&given[0], &hashes[0], given.shape[0])
    return out


def slot_of(ids):
    """Routing slot of every id, the top 14 bits of mix64: int64 [n] to uint16 [n]."""
    cdef const int64_t[::1] given = require("ids", ids, np.int64, (None,))
    out = np.empty(given.shape[0], np.uint16)
    cdef uint16_t[::1] slots = out
    if given.shape[0]:
        with nogil:
            shoal_slot_all(&given[0], &slots[0], given.shape[0])
    return out


cdef uint64_t _words(int64_t n) noexcept nogil:
    """The words of the table in which `unique` looks for n ids: a power of two."""
    cdef uint64_t words = 2
    while words < 2 * <uint64_t>n:
        words *= 2
    return words


def places(ids):
    """The places where `unique` first looks for ids, in its table of twice as many words or more.

    int64 [n] to uint64 [n]. It looks further word by word, so many ids of one place are slow; the
    places differ between processes.
    """
    cdef const int64_t[::1] given = require("ids", ids, np.int64, (None,))
    out = np.empty(given.shape[0], np.uint64)
    cdef uint64_t[::1] at = out
    if given.shape[0]:
        with nogil:
            shoal_unique_places(&given[0], &at[0], given.shape[0], PLACE_KEY,
                            _words(given.shape[0]) - 1)
    return out


def unique(ids):
    """Distinct ids in order of first appearance.

    ids: int64 [n]. Returns (unique int64 [u], inverse int32 [n], counts int32 [u]):
    unique[inverse] equals ids and counts says how often each occurs.
    """
    cdef const int64_t[::1] given = require("ids", ids, np.int64, (None,))
    cdef int64_t n = given.shape[0], found = 0
    if n > MAX_BATCH:
        raise ValueError(f"ids must be at most {MAX_BATCH} in one batch, got {n}")
    # Aligned, so that TensorFlow takes it as it is.
    distinct, inverse = np.empty(n, np.int64), aligned_empty((n,), np.int32)
    counts = np.empty(n, np.int32)
    cdef int64_t[::1] u = distinct
    cdef int32_t[::1] v = inverse, c = counts
    cdef uint64_t words = _words(n)
    cdef uint32_t *table
    if n:
        table = <uint32_t *>calloc(words, sizeof(uint32_t))
        if table is NULL:
            raise MemoryError(f"no memory to deduplicate {n} ids")
        with nogil:
            found = shoal_unique(&given[0], n, table, words - 1, PLACE_KEY, &u[0], &v[0],
                                 &c[0])
            free(table)
    return distinct[:found], inverse, counts[:found]


def partition(ids, owners, int servers):
    """Stable order of ids by owning server.

    ids: int64 [n]; owners: uint16 [16384], the server of each slot; servers: how many.
    Returns (order int64 [n], offsets int64 [servers + 1]): ids[order] is grouped by
    server, server k's run is offsets[k]:offsets[k + 1]. Raises ValueError if owners names
    a server that is not below ``servers`` for one of these ids.
    """
    cdef const int64_t[::1] given = require("ids", ids, np.int64, (None,))
    cdef const uint16_t[::1] owner = require("owners", owners, np.uint16, (SLOTS,))
    cdef int64_t n = given.shape[0]
    cdef int known
    if not 1 <= servers <= 65536:
        raise ValueError(f"servers must be between 1 and 65536, got {servers}")
    order, offsets = np.empty(n, np.int64), np.zeros(servers + 1, np.int64)
    cdef int64_t[::1] places = order, starts = offsets
    cdef uint16_t[::1] scratch = np.empty(n, np.uint16)
    if n:
        with nogil:
            known = shoal_partition(&given[0], n, &owner[0], servers, &scratch[0], &places[0],
                                    &starts[0])
        if not known:
            raise ValueError(f"owners names a server that is not below servers={servers}")
    return order, offsets


def unique_by_server(ids, owners, int servers):
    """Distinct ids grouped by owning server, for a worker's pull.

    Arguments as ``partition``. Returns (unique int64 [u], inverse int32 [n], offsets int64
    [servers + 1], counts int32 [u]): server k's ids are unique[offsets[k]:offsets[k + 1]],
    in order of first appearance, and unique[inverse] equals ids.
    """
    distinct, inverse, counts = unique(ids)
    if servers == 1 and not np.any(owners):
        return distinct, inverse, np.array([0, len(distinct)]), counts
    order, offsets = partition(distinct, owners, servers)
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    inverse = np.take(places, inverse, out=aligned_empty((len(inverse),), np.int32), mode="clip")
    return distinct[order], inverse, offsets, counts[order]
