/* The row store: index, rows, locks and memory.
 *
 * A row is one record, its values and then its optimizer slots, in a chunk that
 * never moves. One record rather than a slab per slot: an update touches the same
 * lines but fewer pages (measured at dim 16, Adagrad: 33 ns a row against 44 with
 * slabs side by side). Which rows a batch touches, and in what order, is
 * run.h, traffic.h and assign.h; ids that are counted before they get a row are counting.h, iteration
 * scan.h, removal expiry.h, compaction compaction.h.
 *
 * Two locks. The structure lock is held shared by everything that finds rows, for
 * at most SHOAL_BLOCK ids at a time, and exclusively to insert or remove, for at
 * most SHOAL_INSERTS ids: nobody waits longer for growth. Within it each row
 * has its own lock, a bit in its header: updates of different rows never wait for
 * one another, and readers take no lock (they read again if the header changed).
 * A batch that is the only one to update, which its threads know for a block of ids
 * at a time (updaters.h), has the bit set with an ordinary write.
 * An earlier version sorted each batch into 256 stripes with a lock each; the
 * sort and the scattered gradients cost more than a locked instruction per row
 * (sgd, dim 16: 44 ns a row sorted, 36 with row locks, 35 with no locks at all).
 */
#ifndef SHOAL_STORE_H
#define SHOAL_STORE_H

#include <sched.h>

#include "apply.h"
#include "crew.h"
#include "growth.h"
#include "initial.h"
#include "updaters.h"

enum { SHOAL_MAX_SLOTS = 3 };

typedef struct {
    uint32_t *items;
    size_t count, room;
} shoal_row_list;

typedef struct {
    pthread_rwlock_t lock; /* structure: index, chunk list, free rows */
    shoal_updaters updaters;
    int updating;          /* batches of updates under way */
    shoal_index index;
    shoal_arena arena;
    int64_t dim;
    int format;            /* of the values: SHOAL_FLOAT32, ... */
    int slots;             /* optimizer slots per row */
    int64_t slot_width;    /* floats in each: dim, or 1 */
    float slot_initial[SHOAL_MAX_SLOTS];
    shoal_initial initial;
    float default_value;
    uint32_t admit_after;  /* updates of an id until it gets a row (counting.h) */
    int64_t base;          /* the step of a header's version 0 (eras.h) */
    uint64_t noise_key;
    uint64_t place_key;    /* of the hash that places rows */
    size_t value_bytes;    /* of a row */
    size_t slot_offset;    /* bytes from a record's start to its slots */
    size_t stride;         /* bytes from a record to the next one */
    uint32_t chunk_shift;  /* 1 << chunk_shift records in a chunk */
    char **chunks;
    size_t chunk_count, chunk_room;
    uint32_t next_row;     /* rows ever used; free ones included */
    shoal_row_list free_low, free_high; /* free rows below `boundary`, and from it on */
    uint32_t boundary;     /* above every row, except during a compaction */
    char *nursery;         /* the first chunk, in small pages */
    size_t chunk_bytes;
    struct shoal_snapshot *snapshot; /* being read (snapshot.h), or NULL */
    uint32_t snapshots;    /* the number of the last one */
    struct shoal_census *census; /* under way (census.h), or NULL */
    shoal_crew *crew;      /* of the process (run.h) */
} shoal_store;

SHOAL_INLINE char *shoal_record(const shoal_store *t, uint32_t row) {
    uint32_t within = row & ((1u << t->chunk_shift) - 1u);
    return t->chunks[row >> t->chunk_shift] + within * t->stride;
}

/* The hash by which a store finds the row of an id, and the id of such a hash. */
SHOAL_INLINE uint64_t shoal_hash_of(const shoal_store *t, int64_t id) {
    return shoal_mix64((uint64_t)id ^ t->place_key);
}

SHOAL_INLINE int64_t shoal_id_of(const shoal_store *t, uint64_t hash) {
    return (int64_t)(shoal_unmix64(hash) ^ t->place_key);
}

/* Structure lock held. */
SHOAL_INLINE uint32_t shoal_version_at(const shoal_store *t, int64_t step) {
    return step > t->base ? (uint32_t)(step - t->base) : 0;
}

/* The step of the last use. */
SHOAL_INLINE int64_t shoal_step_in(const shoal_store *t, uint64_t header) {
    return __atomic_load_n(&t->base, __ATOMIC_RELAXED) + shoal_version_of(header);
}

static size_t shoal_round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static void shoal_store_destroy(shoal_store *t) {
    if (!t) return;
    shoal_index_destroy(&t->index);
    free(t->chunks);
    free(t->free_low.items);
    free(t->free_high.items);
    if (t->nursery) munmap(t->nursery, t->chunk_bytes);
    shoal_arena_destroy(&t->arena);
    pthread_rwlock_destroy(&t->lock);
    shoal_updaters_destroy(&t->updaters);
    free(t);
}

/* dim >= 1: the caller has checked. place_key: best one that nobody can know. NULL: no memory. */
static shoal_store *shoal_store_create(int64_t dim, int format, int slots, int64_t slot_width,
                                       const float *slot_initial, shoal_initial initial,
                                       float default_value, uint32_t admit_after,
                                       uint64_t noise_key, uint64_t place_key, shoal_crew *crew) {
    shoal_store *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->dim = dim;
    t->format = format;
    t->slots = slots;
    t->slot_width = slot_width;
    for (int k = 0; k < slots; k++) t->slot_initial[k] = slot_initial[k];
    t->initial = initial;
    /* as it would be stored: the same as a row of it that exists */
    float stored;
    shoal_encode(&default_value, &stored, 1, format);
    shoal_decode(&stored, &t->default_value, 1, format);
    t->admit_after = admit_after;
    t->noise_key = noise_key;
    t->place_key = place_key;
    t->crew = crew;
    t->value_bytes = (size_t)dim * (format == SHOAL_FLOAT32 ? 4 : 2);
    t->slot_offset = shoal_round_up(t->value_bytes, slots ? 4 : 2);
    t->stride = t->slot_offset + (size_t)slots * (size_t)slot_width * 4;
    while (t->chunk_shift < 20 && (t->stride << (t->chunk_shift + 1)) <= SHOAL_HUGE_PAGE)
        t->chunk_shift++;
    t->chunk_bytes = shoal_round_up(t->stride << t->chunk_shift, SHOAL_LINE);
    t->boundary = SHOAL_MAX_ROWS;
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    /* otherwise a steady stream of readers keeps inserts out for good */
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&t->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    shoal_updaters_init(&t->updaters);
    int ready = shoal_arena_init(&t->arena, sizeof(shoal_bucket) << SHOAL_SEGMENT_LOG, t->chunk_bytes);
    ready = shoal_index_init(&t->index) && ready;
    /* Resident page by page: a small table must not cost a huge page. */
    void *nursery = mmap(NULL, t->chunk_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    t->nursery = nursery == MAP_FAILED ? NULL : nursery;
    t->chunks = malloc(16 * sizeof *t->chunks);
    if (!ready || !t->nursery || !t->chunks) {
        shoal_store_destroy(t);
        return NULL;
    }
#ifdef MADV_NOHUGEPAGE
    madvise(t->nursery, t->chunk_bytes, MADV_NOHUGEPAGE);
#endif
    t->chunks[0] = t->nursery;
    t->chunk_count = 1;
    t->chunk_room = 16;
    return t;
}

/* Bytes this store keeps in memory. */
static size_t shoal_store_memory(shoal_store *t) {
    pthread_rwlock_rdlock(&t->lock);
    size_t bytes = sizeof *t + shoal_resident(t->nursery, t->chunk_bytes);
    bytes += shoal_index_memory(&t->index) + t->chunk_room * sizeof *t->chunks;
    bytes += (t->free_low.room + t->free_high.room) * sizeof(uint32_t);
    pthread_rwlock_unlock(&t->lock);
    return bytes + shoal_arena_resident(&t->arena);
}

static int64_t shoal_store_count(shoal_store *t) {
    pthread_rwlock_rdlock(&t->lock);
    int64_t rows = t->index.live;
    pthread_rwlock_unlock(&t->lock);
    return rows;
}

/* Records that removal left free. */
static int64_t shoal_store_free(shoal_store *t) {
    pthread_rwlock_rdlock(&t->lock);
    int64_t rows = (int64_t)(t->free_low.count + t->free_high.count);
    pthread_rwlock_unlock(&t->lock);
    return rows;
}

/* ---- row locks: shared structure lock held ---- */

SHOAL_INLINE void shoal_wait(unsigned *turns) {
    if (++*turns & 63u) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else {
        sched_yield(); /* the holder may have lost its processor */
    }
}

SHOAL_INLINE int shoal_try_lock_row(uint64_t *meta, uint64_t *held) {
    uint64_t seen = __atomic_load_n(meta, __ATOMIC_RELAXED);
    if (seen & SHOAL_LOCKED) return 0;
    *held = seen;
    return __atomic_compare_exchange_n(meta, &seen, seen | SHOAL_LOCKED, 0, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

SHOAL_INLINE void shoal_lock_row(uint64_t *meta, uint64_t *held) {
    for (unsigned turns = 0; !shoal_try_lock_row(meta, held);) shoal_wait(&turns);
}

/* The lock of a row for the only updater: readers must see it, nobody competes for it.
 * Returns the header. A locked instruction waits until every earlier write has reached
 * the cache, and keeps later reads from starting. */
SHOAL_INLINE uint64_t shoal_mark_row(uint64_t *meta) {
    uint64_t held = __atomic_load_n(meta, __ATOMIC_RELAXED);
    __atomic_store_n(meta, held | SHOAL_LOCKED, __ATOMIC_RELAXED);
    return held;
}

/* Has a thread of a batch be one of the updaters for a block of ids. The batch is the only one (1) if
 * no other batch of updates is under way, no snapshot, whose reader takes row locks, and no census,
 * which is told of changes as that is; otherwise one of several (0). Shared structure lock held.
 * Between blocks another may come. */
static int shoal_begin_updates(shoal_store *t, const void *batch) {
    const int may = !t->snapshot && !t->census && __atomic_load_n(&t->updating, __ATOMIC_RELAXED) == 1;
    return shoal_enter_updaters(&t->updaters, batch, may);
}

/* The header when no update is under way. */
SHOAL_INLINE uint64_t shoal_stable_meta(const uint64_t *meta) {
    uint64_t seen;
    for (unsigned turns = 0; (seen = __atomic_load_n(meta, __ATOMIC_ACQUIRE)) & SHOAL_LOCKED;)
        shoal_wait(&turns);
    return seen;
}

/* Whether what was read since shoal_stable_meta gave `seen` is of one moment. */
SHOAL_INLINE int shoal_unchanged(const uint64_t *meta, uint64_t seen) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return SHOAL_LIKELY(__atomic_load_n(meta, __ATOMIC_RELAXED) == seen);
}

/* ---- insertion: exclusive structure lock held ---- */

static int shoal_push_row(shoal_store *t, uint32_t row) {
    shoal_row_list *list = row < t->boundary ? &t->free_low : &t->free_high;
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 64;
        uint32_t *items = realloc(list->items, room * sizeof *items);
        if (!items) return 0;
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = row;
    return 1;
}

/* A row number that is free, its chunk present; SHOAL_MAX_ROWS: none to be had. */
static uint32_t shoal_take_row(shoal_store *t) {
    if (t->free_low.count) return t->free_low.items[--t->free_low.count];
    if (t->free_high.count) return t->free_high.items[--t->free_high.count];
    if (t->next_row >= SHOAL_MAX_ROWS) return SHOAL_MAX_ROWS;
    if (t->next_row >> t->chunk_shift >= t->chunk_count) {
        if (t->chunk_count == t->chunk_room) {
            size_t room = 2 * t->chunk_room;
            char **chunks = realloc(t->chunks, room * sizeof *chunks);
            if (!chunks) return SHOAL_MAX_ROWS;
            t->chunks = chunks;
            t->chunk_room = room;
        }
        char *chunk = shoal_arena_take(&t->arena, SHOAL_CHUNK);
        if (!chunk) return SHOAL_MAX_ROWS;
        t->chunks[t->chunk_count++] = chunk;
    }
    return t->next_row++;
}

/* Initial values and slots of a row just taken; scratch: dim floats. */
static void shoal_start_row(shoal_store *t, uint32_t row, int64_t id, float *scratch) {
    char *record = shoal_record(t, row);
    float *slots = (float *)(record + t->slot_offset);
    if (t->format == SHOAL_FLOAT32) {
        shoal_fill_initial(&t->initial, id, (float *)record, t->dim);
    } else {
        shoal_fill_initial(&t->initial, id, scratch, t->dim);
        shoal_encode(scratch, record, t->dim, t->format);
    }
    for (int k = 0; k < t->slots; k++)
        for (int64_t i = 0; i < t->slot_width; i++) *slots++ = t->slot_initial[k];
}

#endif
