/* The hash index of a store: extendible hashing over one-line buckets.
 *
 * A bucket is one cache line of four entries: 52 bits of the hash, a 30-bit row
 * number, and the row's header (last version, use count, lock). The header lives
 * here because whoever wants the row has just paid for this line; in a slab of
 * its own it was one more random line per update. Growth goes segment by segment,
 * moves at most 2,048 entries at once and never touches a row. The directory is
 * small (8 bytes per about 1,200 rows) and stays in the second-level cache.
 *
 * A store begins with 4,096 segments of one bucket. Each doubles, on its own, up to
 * 512 buckets, moving through levels: level k is one mapping with room for all
 * 4,096 segments of 2^k buckets, given back when the last has left it. (Segments
 * from malloc cost twice their size: the freed small ones fit nothing larger.) From
 * then on full segments split, and their upper halves come from the arena.
 *
 * Not here: locks, rows and their memory (store.h), the order of work over a
 * batch (traffic.h), growth (growth.h). Changing the index needs the store's exclusive lock.
 *
 * Hash bits (shoal_hash_of): 0..11 and up choose the directory's place, 36..44 the
 * bucket. Entry, two words:
 *   tag   hash bits 12..63 << 12 | row bits 19..29 << 1 | occupied
 *   meta  row bits 0..18 << 45 | use count << 33 | locked << 32 | last version
 * The first segments are 4,096, so a place gives hash bits 0..11 back, and the
 * hash is a bijection: the id needs no room. A removed entry's tag is SHOAL_TOMB,
 * a never used one is 0; lanes fill in order, so a zero in the last lane ends a
 * search.
 *
 * An id that is only counted (store.h) has an entry without a row. It is not marked as
 * occupied, so a search for a row goes past it as past a removed one, and costs no
 * instruction more in tables that count nothing:
 *   tag   hash bits 12..63 << 12 | SHOAL_COUNTS
 *   meta  number of the last snapshot that has it << 45 | use count, lock, version as above
 */
#ifndef SHOAL_INDEX_H
#define SHOAL_INDEX_H

#include "arena.h"
#include "mixing.h"

enum {
    SHOAL_LANES = 4,
    SHOAL_SEGMENT_LOG = 9, /* a full segment has 512 buckets */
    SHOAL_SEGMENT_ROWS = SHOAL_LANES << SHOAL_SEGMENT_LOG,
    SHOAL_FIRST_DEPTH = 12,
    SHOAL_MAX_DEPTH = 32,
    SHOAL_ROW_BITS = 30,
    SHOAL_SNAPSHOT_BITS = 19, /* of its number in the header of an entry that counts */
    SHOAL_MANY_USES = 2048 /* use counts from here on only say "as many or more" */
};
#define SHOAL_TOMB 2ULL
#define SHOAL_COUNTS 4ULL /* without the bit of an occupied lane */
#define SHOAL_PLACE_BITS ((1ULL << SHOAL_FIRST_DEPTH) - 1)
#define SHOAL_LOCKED (1ULL << 32)
#define SHOAL_MAX_ROWS ((uint32_t)1 << SHOAL_ROW_BITS)
#define SHOAL_LEVEL_BYTES(log) (sizeof(shoal_bucket) << (SHOAL_FIRST_DEPTH + (log)))

typedef struct {
    uint64_t tag[SHOAL_LANES];
    uint64_t meta[SHOAL_LANES];
} shoal_bucket;

typedef struct {
    shoal_bucket *bucket; /* NULL: not found */
    int lane;
} shoal_entry;

typedef struct {
    shoal_mapping map;
    uint32_t segments; /* how many of the 4,096 are here */
} shoal_level;

typedef struct {
    uint64_t *directory;  /* [1 << depth] segment address | log2 of its buckets */
    uint32_t *used;       /* lanes used (tombs too), at a segment's first place */
    uint8_t *local_depth; /* at every place */
    uint32_t depth;
    int64_t live;         /* entries with a row */
    int64_t counting;     /* entries without one */
    shoal_level levels[SHOAL_SEGMENT_LOG + 1];
} shoal_index;

/* Of a lane: it holds a row; it holds a row or counts; it counts. */
SHOAL_INLINE int shoal_live(uint64_t tag) { return (int)(tag & 1u); }
SHOAL_INLINE int shoal_taken(uint64_t tag) { return (tag & (1u | SHOAL_COUNTS)) != 0; }
SHOAL_INLINE int shoal_counts(uint64_t tag) { return !shoal_live(tag) && shoal_taken(tag); }

SHOAL_INLINE uint32_t shoal_row_of(uint64_t tag, uint64_t meta) {
    return (uint32_t)((tag & SHOAL_PLACE_BITS) >> 1) << 19 | (uint32_t)(meta >> 45);
}

SHOAL_INLINE uint32_t shoal_version_of(uint64_t meta) { return (uint32_t)meta; }

SHOAL_INLINE uint32_t shoal_uses_of(uint64_t meta) {
    uint32_t uses = (uint32_t)(meta >> 33) & 0xFFFu;
    return uses > SHOAL_MANY_USES ? SHOAL_MANY_USES : uses;
}

enum { SHOAL_USE_CLASSES = 12 }; /* floor(log2(uses)), 0 for none; the last: SHOAL_MANY_USES */

SHOAL_INLINE int shoal_use_class(uint32_t uses) { return 31 - __builtin_clz(uses | 1u); }

SHOAL_INLINE uint64_t shoal_tag(uint64_t hash, uint32_t row) {
    return (hash & ~SHOAL_PLACE_BITS) | (uint64_t)(row >> 19) << 1 | 1u;
}

SHOAL_INLINE uint64_t shoal_meta(uint32_t row, uint32_t uses, uint32_t version) {
    uses = uses > SHOAL_MANY_USES ? SHOAL_MANY_USES : uses;
    return (uint64_t)(row & 0x7FFFFu) << 45 | (uint64_t)uses << 33 | version;
}

/* Of an entry that counts; snapshot: the number of the last one that has it. */
SHOAL_INLINE uint64_t shoal_count_meta(uint32_t snapshot, uint32_t uses, uint32_t version) {
    return shoal_meta(snapshot, uses, version);
}

SHOAL_INLINE uint32_t shoal_snapshot_of(uint64_t meta) { return (uint32_t)(meta >> 45); }

/* The header after one more update. Past SHOAL_MANY_USES the count goes round in
 * 2048..4095, so that a reader always sees that an update came between. */
SHOAL_INLINE uint64_t shoal_meta_used(uint64_t meta, uint32_t version) {
    uint64_t uses = meta >> 33 & 0xFFFu;
    uses = uses == 0xFFFu ? SHOAL_MANY_USES : uses + 1;
    return (meta >> 45) << 45 | uses << 33 | version;
}

SHOAL_INLINE shoal_bucket *shoal_segment(uint64_t word) {
    return (shoal_bucket *)(uintptr_t)(word & ~63ULL);
}

SHOAL_INLINE uint32_t shoal_mask(uint64_t word) { return (1u << (word & 15u)) - 1u; }

SHOAL_INLINE uint32_t shoal_place(const shoal_index *x, uint64_t hash) {
    return (uint32_t)hash & (uint32_t)((1ULL << x->depth) - 1u);
}

SHOAL_INLINE uint32_t shoal_home(uint64_t hash) { return (uint32_t)(hash >> 36); }

SHOAL_INLINE shoal_bucket *shoal_home_bucket(const shoal_index *x, uint64_t hash) {
    uint64_t word = x->directory[shoal_place(x, hash)];
    return shoal_segment(word) + (shoal_home(hash) & shoal_mask(word));
}

/* Which lanes of a bucket hold the hash, as a bit mask: which one does is random, so
 * a branch per lane would mispredict. */
SHOAL_INLINE unsigned shoal_match(const shoal_bucket *b, uint64_t hash) {
    const uint64_t want = hash | SHOAL_PLACE_BITS;
    unsigned match = 0;
    for (int k = 0; k < SHOAL_LANES; k++)
        match |= (unsigned)((b->tag[k] | (SHOAL_PLACE_BITS - 1)) == want) << k;
    return match;
}

static __attribute__((noinline)) shoal_entry shoal_find(const shoal_index *x, uint64_t hash) {
    const uint64_t word = x->directory[shoal_place(x, hash)];
    const uint32_t mask = shoal_mask(word);
    for (uint32_t i = shoal_home(hash) & mask;; i = (i + 1) & mask) {
        shoal_bucket *b = shoal_segment(word) + i;
        unsigned match = shoal_match(b, hash);
        if (match) return (shoal_entry){b, __builtin_ctz(match)};
        if (b->tag[SHOAL_LANES - 1] == 0) return (shoal_entry){NULL, 0};
    }
}

/* Of a hash with a row or one that is counted. */
static shoal_entry shoal_find_any(const shoal_index *x, uint64_t hash) {
    const uint64_t word = x->directory[shoal_place(x, hash)], want = hash | SHOAL_PLACE_BITS;
    const uint32_t mask = shoal_mask(word);
    for (uint32_t i = shoal_home(hash) & mask;; i = (i + 1) & mask) {
        shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++)
            if ((b->tag[k] | SHOAL_PLACE_BITS) == want && shoal_taken(b->tag[k]))
                return (shoal_entry){b, k};
        if (b->tag[SHOAL_LANES - 1] == 0) return (shoal_entry){NULL, 0};
    }
}

/* First lane on the hash's way that holds no entry. */
SHOAL_INLINE shoal_entry shoal_vacancy(uint64_t word, uint64_t hash) {
    const uint32_t mask = shoal_mask(word);
    shoal_bucket *segment = shoal_segment(word);
    for (uint32_t i = shoal_home(hash) & mask;; i = (i + 1) & mask)
        for (int k = 0; k < SHOAL_LANES; k++)
            if (!shoal_taken(segment[i].tag[k])) return (shoal_entry){segment + i, k};
}

/* At most 80% full: a search then reads 1.1 lines on average. */
SHOAL_INLINE uint32_t shoal_segment_limit(uint64_t word) {
    return (shoal_mask(word) + 1) * SHOAL_LANES * 4 / 5;
}

static int shoal_index_init(shoal_index *x) {
    memset(x, 0, sizeof *x);
    const size_t places = (size_t)1 << SHOAL_FIRST_DEPTH;
    x->depth = SHOAL_FIRST_DEPTH;
    x->directory = calloc(places, sizeof *x->directory);
    x->used = calloc(places, sizeof *x->used);
    x->local_depth = malloc(places);
    if (!x->directory || !x->used || !x->local_depth) return 0;
    if (!shoal_map(&x->levels[0].map, SHOAL_LEVEL_BYTES(0))) return 0;
    memset(x->local_depth, SHOAL_FIRST_DEPTH, places);
    x->levels[0].segments = (uint32_t)places;
    for (size_t p = 0; p < places; p++)
        x->directory[p] = (uint64_t)(uintptr_t)((shoal_bucket *)x->levels[0].map.start + p);
    return 1;
}

/* Upper halves of split segments go with the arena. */
static void shoal_index_destroy(shoal_index *x) {
    for (int k = 0; k <= SHOAL_SEGMENT_LOG; k++) shoal_unmap(&x->levels[k].map);
    free(x->directory);
    free(x->used);
    free(x->local_depth);
}

/* Resident bytes, without the arena's: of a level, the pages its segments touch. */
static size_t shoal_index_memory(const shoal_index *x) {
    size_t bytes = ((size_t)1 << x->depth) * (sizeof(uint64_t) + sizeof(uint32_t) + 1);
    for (int k = 0; k <= SHOAL_SEGMENT_LOG; k++)
        bytes += shoal_resident(x->levels[k].map.start, SHOAL_LEVEL_BYTES(k));
    return bytes;
}

/* Gives a counted hash a row. The entry keeps its use count and version. */
SHOAL_INLINE void shoal_index_admit(shoal_index *x, shoal_entry e, uint32_t row) {
    const uint64_t meta = e.bucket->meta[e.lane];
    e.bucket->meta[e.lane] = shoal_meta(row, shoal_uses_of(meta), shoal_version_of(meta));
    e.bucket->tag[e.lane] = shoal_tag(e.bucket->tag[e.lane], row);
    x->counting--;
    x->live++;
}

SHOAL_INLINE void shoal_index_drop(shoal_index *x, shoal_entry e) {
    if (shoal_live(e.bucket->tag[e.lane])) x->live--;
    else x->counting--;
    e.bucket->tag[e.lane] = SHOAL_TOMB;
}

#endif
