/* The hash index of one stripe: extendible hashing over one-line buckets.
 *
 * A bucket is one cache line of four entries: 56 bits of the hash, a 23-bit row
 * number, and the row's header (last version, use count). The header lives here
 * because a lookup of the row has just paid for this line; as a slab of its own
 * it was one more random line per update. Segments of 512 buckets split one at a
 * time, so growth moves at most 2,048 entries while the stripe is locked, frees
 * no large array, and never touches a row.
 *
 * Not here: locks, rows and memory of rows (store.h), the order of work over a
 * batch (traffic.h).
 *
 * Entry, two words:
 *   tag   hash bits 8..63 << 8 | row bits 16..22 << 1 | occupied
 *   meta  row bits 0..15 << 48 | use count (saturating) << 32 | last version
 * The stripe number gives hash bits 0..7 back, and the hash is a bijection, so
 * the id needs no room. A removed entry's tag is SHOAL_TOMB, a never used one 0;
 * lanes fill in order, so a zero in the last lane ends a search.
 */
#ifndef SHOAL_INDEX_H
#define SHOAL_INDEX_H

#include "arena.h"
#include "mixing.h"

enum {
    SHOAL_LANES = 4,
    SHOAL_SEGMENT_BUCKETS = 512,
    SHOAL_FIRST_BUCKETS = 2,
    SHOAL_MAX_DEPTH = 24,
    SHOAL_ROW_BITS = 23
};
#define SHOAL_TOMB 2ULL
#define SHOAL_MAX_ROWS ((uint32_t)1 << SHOAL_ROW_BITS)

typedef struct {
    uint64_t tag[SHOAL_LANES];
    uint64_t meta[SHOAL_LANES];
} shoal_bucket;

typedef struct {
    shoal_bucket *bucket; /* NULL: not found */
    int lane;
} shoal_entry;

typedef struct {
    shoal_bucket **directory; /* 1 << depth segments, shared ones repeated */
    uint32_t bucket_mask;     /* buckets per segment - 1; full size once depth > 0 */
    uint32_t depth;
    uint32_t live;            /* entries */
    uint32_t *used;           /* lanes used (tombs too), at a segment's first place */
    uint8_t *local_depth;
    uint32_t shift;           /* hash bits spent on the stripe number */
} shoal_index;

SHOAL_INLINE uint64_t shoal_tag(uint64_t hash, uint32_t row) {
    return (hash & ~0xFFULL) | ((uint64_t)(row >> 16) << 1) | 1u;
}

SHOAL_INLINE int shoal_live(uint64_t tag) { return (int)(tag & 1u); }

SHOAL_INLINE uint32_t shoal_row_of(const shoal_bucket *b, int lane) {
    return (uint32_t)((b->tag[lane] >> 1) & 0x7Fu) << 16 | (uint32_t)(b->meta[lane] >> 48);
}

SHOAL_INLINE uint32_t shoal_version_of(uint64_t meta) { return (uint32_t)meta; }
SHOAL_INLINE uint32_t shoal_uses_of(uint64_t meta) { return (uint32_t)(meta >> 32) & 0xFFFFu; }

SHOAL_INLINE uint64_t shoal_meta(uint32_t row, uint32_t uses, uint32_t version) {
    uses = uses > 0xFFFFu ? 0xFFFFu : uses;
    return (uint64_t)(row & 0xFFFFu) << 48 | (uint64_t)uses << 32 | version;
}

/* Where a hash lives: low bits choose the bucket, the next ones the segment. */
SHOAL_INLINE uint32_t shoal_place(const shoal_index *x, uint64_t hash) {
    return (uint32_t)(hash >> x->shift) & x->bucket_mask;
}

SHOAL_INLINE uint32_t shoal_path(const shoal_index *x, uint64_t hash) {
    return (uint32_t)((hash >> x->shift) / SHOAL_SEGMENT_BUCKETS);
}

SHOAL_INLINE shoal_bucket *shoal_segment(const shoal_index *x, uint64_t hash) {
    return x->directory[shoal_path(x, hash) & ((1u << x->depth) - 1u)];
}

SHOAL_INLINE shoal_entry shoal_find(const shoal_index *x, uint64_t hash) {
    shoal_bucket *segment = shoal_segment(x, hash);
    const uint64_t want = hash | 0xFFu;
    for (uint32_t i = shoal_place(x, hash);; i = (i + 1) & x->bucket_mask) {
        shoal_bucket *b = segment + i;
        /* Which lane matches is random: a mask, since a branch per lane mispredicts. */
        unsigned match = 0;
        for (int k = 0; k < SHOAL_LANES; k++) match |= (unsigned)((b->tag[k] | 0xFEu) == want) << k;
        if (SHOAL_LIKELY(match)) return (shoal_entry){b, __builtin_ctz(match)};
        if (b->tag[SHOAL_LANES - 1] == 0) return (shoal_entry){NULL, 0};
    }
}

/* First lane on the hash's way that holds no live entry. */
SHOAL_INLINE shoal_entry shoal_vacancy(shoal_bucket *segment, uint32_t place, uint32_t mask) {
    for (uint32_t i = place;; i = (i + 1) & mask)
        for (int k = 0; k < SHOAL_LANES; k++)
            if (!shoal_live(segment[i].tag[k])) return (shoal_entry){segment + i, k};
}

SHOAL_INLINE uint32_t shoal_segment_limit(uint32_t bucket_mask) {
    return (bucket_mask + 1) * SHOAL_LANES * 4 / 5;
}

static shoal_bucket *shoal_small_segment(uint32_t buckets) {
    void *memory = NULL;
    size_t bytes = buckets * sizeof(shoal_bucket);
    if (posix_memalign(&memory, SHOAL_LINE, bytes)) return NULL;
    memset(memory, 0, bytes);
    return (shoal_bucket *)memory;
}

static void shoal_free_segment(const shoal_index *x, shoal_bucket *segment, shoal_arena *arena) {
    if (x->bucket_mask + 1 == SHOAL_SEGMENT_BUCKETS) shoal_arena_give(arena, SHOAL_SEGMENT, segment);
    else free(segment);
}

static int shoal_index_init(shoal_index *x, uint32_t shift) {
    memset(x, 0, sizeof *x);
    x->shift = shift;
    x->bucket_mask = SHOAL_FIRST_BUCKETS - 1;
    x->directory = calloc(1, sizeof *x->directory);
    x->used = calloc(1, sizeof *x->used);
    x->local_depth = calloc(1, sizeof *x->local_depth);
    if (!x->directory || !x->used || !x->local_depth) return 0;
    x->directory[0] = shoal_small_segment(SHOAL_FIRST_BUCKETS);
    return x->directory[0] != NULL;
}

/* Frees small segments and the directory; full segments go with the arena. */
static void shoal_index_destroy(shoal_index *x) {
    if (x->directory && x->bucket_mask + 1 < SHOAL_SEGMENT_BUCKETS) free(x->directory[0]);
    free(x->directory);
    free(x->used);
    free(x->local_depth);
}

SHOAL_INLINE void shoal_put(const shoal_index *x, shoal_bucket *segment, uint64_t stripe,
                            uint64_t tag, uint64_t meta) {
    uint64_t hash = (tag & ~0xFFULL) | stripe;
    shoal_entry e = shoal_vacancy(segment, shoal_place(x, hash), x->bucket_mask);
    e.bucket->tag[e.lane] = tag;
    e.bucket->meta[e.lane] = meta;
}

/* Puts the live entries of `from` into the empty segments low and high; returns
 * how many went to high: those whose path bit `bit` is set (high NULL: none). */
static uint32_t shoal_rehash(const shoal_index *x, const shoal_bucket *from, uint32_t buckets,
                             uint64_t stripe, shoal_bucket *low, shoal_bucket *high,
                             uint32_t bit) {
    uint32_t moved = 0;
    for (uint32_t i = 0; i < buckets; i++)
        for (int k = 0; k < SHOAL_LANES; k++) {
            uint64_t tag = from[i].tag[k];
            if (!shoal_live(tag)) continue;
            int up = high && (shoal_path(x, (tag & ~0xFFULL) | stripe) >> bit & 1u);
            shoal_put(x, up ? high : low, stripe, tag, from[i].meta[k]);
            moved += (uint32_t)up;
        }
    return moved;
}

static uint32_t shoal_count_live(const shoal_bucket *segment, uint32_t buckets) {
    uint32_t live = 0;
    for (uint32_t i = 0; i < buckets; i++)
        for (int k = 0; k < SHOAL_LANES; k++) live += (uint32_t)shoal_live(segment[i].tag[k]);
    return live;
}

static int shoal_double_directory(shoal_index *x) {
    if (x->depth >= SHOAL_MAX_DEPTH) return 0;
    size_t places = (size_t)1 << x->depth;
    void *directory = realloc(x->directory, 2 * places * sizeof *x->directory);
    if (directory) x->directory = directory;
    void *used = realloc(x->used, 2 * places * sizeof *x->used);
    if (used) x->used = used;
    void *local = realloc(x->local_depth, 2 * places);
    if (local) x->local_depth = local;
    if (!directory || !used || !local) return 0;
    memcpy(x->directory + places, x->directory, places * sizeof *x->directory);
    memcpy(x->local_depth + places, x->local_depth, places);
    x->depth++;
    return 1;
}

/* Makes room in the segment that `hash` belongs to. Returns 0 without memory. */
static int shoal_grow(shoal_index *x, uint64_t stripe, uint64_t hash, shoal_arena *arena) {
    const uint32_t buckets = x->bucket_mask + 1;
    uint32_t place = shoal_path(x, hash) & ((1u << x->depth) - 1u);
    uint32_t local = x->local_depth[place];
    uint32_t first = place & ((1u << local) - 1u);
    shoal_bucket *old = x->directory[first];
    uint32_t live = shoal_count_live(old, buckets);
    int crowded = live * 2 > shoal_segment_limit(x->bucket_mask); /* else it is mostly tombs */
    if (buckets < SHOAL_SEGMENT_BUCKETS) {
        uint32_t wider = crowded ? 2 * buckets : buckets;
        shoal_bucket *segment = wider == SHOAL_SEGMENT_BUCKETS
            ? (shoal_bucket *)shoal_arena_take(arena, SHOAL_SEGMENT) : shoal_small_segment(wider);
        if (!segment) return 0;
        x->bucket_mask = wider - 1;
        shoal_rehash(x, old, buckets, stripe, segment, NULL, 0);
        free(old);
        x->directory[0] = segment;
        x->used[0] = live;
        return 1;
    }
    /* The old segment becomes the lower half in place: giving it back would make
     * the system break up its huge page. */
    const size_t bytes = sizeof(shoal_bucket) * SHOAL_SEGMENT_BUCKETS;
    shoal_bucket *copy = malloc(bytes), *high = NULL;
    int ready = copy != NULL;
    if (ready && crowded) {
        ready = local < x->depth || shoal_double_directory(x);
        ready = ready && (high = shoal_arena_take(arena, SHOAL_SEGMENT)) != NULL;
    }
    if (!ready) {
        free(copy);
        return 0;
    }
    memcpy(copy, old, bytes);
    memset(old, 0, bytes);
    uint32_t moved = shoal_rehash(x, copy, buckets, stripe, old, high, local);
    free(copy);
    x->used[first] = live - moved;
    if (!high) return 1;
    uint32_t step = 1u << local;
    x->used[first | step] = moved;
    for (uint32_t i = first; i < 1u << x->depth; i += step) {
        x->directory[i] = (i & step) ? high : old;
        x->local_depth[i] = (uint8_t)(local + 1);
    }
    return 1;
}

/* Adds an entry for a hash that is absent; NULL bucket without memory. */
static shoal_entry shoal_index_add(shoal_index *x, uint64_t stripe, uint64_t hash, uint32_t row,
                                   uint32_t uses, uint32_t version, shoal_arena *arena) {
    for (;;) {
        uint32_t place = shoal_path(x, hash) & ((1u << x->depth) - 1u);
        uint32_t *used = &x->used[place & ((1u << x->local_depth[place]) - 1u)];
        if (*used < shoal_segment_limit(x->bucket_mask)) {
            shoal_entry e = shoal_vacancy(x->directory[place], shoal_place(x, hash), x->bucket_mask);
            *used += e.bucket->tag[e.lane] == 0;
            e.bucket->tag[e.lane] = shoal_tag(hash, row);
            e.bucket->meta[e.lane] = shoal_meta(row, uses, version);
            x->live++;
            return e;
        }
        if (!shoal_grow(x, stripe, hash, arena)) return (shoal_entry){NULL, 0};
    }
}

SHOAL_INLINE void shoal_index_drop(shoal_index *x, shoal_entry e) {
    e.bucket->tag[e.lane] = SHOAL_TOMB;
    x->live--;
}

#endif
