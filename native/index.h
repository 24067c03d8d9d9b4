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
 * batch (traffic.h). Changing the index needs the store's exclusive lock.
 *
 * Hash bits (shoal_hash_of): 0..11 and up choose the directory's place, 36..44 the
 * bucket. Entry, two words:
 *   tag   hash bits 12..63 << 12 | row bits 19..29 << 1 | occupied
 *   meta  row bits 0..18 << 45 | use count << 33 | locked << 32 | last version
 * The first segments are 4,096, so a place gives hash bits 0..11 back, and the
 * hash is a bijection: the id needs no room. A removed entry's tag is SHOAL_TOMB,
 * a never used one is 0; lanes fill in order, so a zero in the last lane ends a
 * search.
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
    SHOAL_MANY_USES = 2048 /* use counts from here on only say "as many or more" */
};
#define SHOAL_TOMB 2ULL
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
    int64_t live;         /* entries */
    shoal_level levels[SHOAL_SEGMENT_LOG + 1];
} shoal_index;

SHOAL_INLINE int shoal_live(uint64_t tag) { return (int)(tag & 1u); }

SHOAL_INLINE uint32_t shoal_row_of(uint64_t tag, uint64_t meta) {
    return (uint32_t)((tag & SHOAL_PLACE_BITS) >> 1) << 19 | (uint32_t)(meta >> 45);
}

SHOAL_INLINE uint32_t shoal_version_of(uint64_t meta) { return (uint32_t)meta; }

SHOAL_INLINE uint32_t shoal_uses_of(uint64_t meta) {
    uint32_t uses = (uint32_t)(meta >> 33) & 0xFFFu;
    return uses > SHOAL_MANY_USES ? SHOAL_MANY_USES : uses;
}

SHOAL_INLINE uint64_t shoal_tag(uint64_t hash, uint32_t row) {
    return (hash & ~SHOAL_PLACE_BITS) | (uint64_t)(row >> 19) << 1 | 1u;
}

SHOAL_INLINE uint64_t shoal_meta(uint32_t row, uint32_t uses, uint32_t version) {
    uses = uses > SHOAL_MANY_USES ? SHOAL_MANY_USES : uses;
    return (uint64_t)(row & 0x7FFFFu) << 45 | (uint64_t)uses << 33 | version;
}

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

/* First lane on the hash's way that holds no live entry. */
SHOAL_INLINE shoal_entry shoal_vacancy(uint64_t word, uint64_t hash) {
    const uint32_t mask = shoal_mask(word);
    shoal_bucket *segment = shoal_segment(word);
    for (uint32_t i = shoal_home(hash) & mask;; i = (i + 1) & mask)
        for (int k = 0; k < SHOAL_LANES; k++)
            if (!shoal_live(segment[i].tag[k])) return (shoal_entry){segment + i, k};
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

SHOAL_INLINE void shoal_put(uint64_t word, uint64_t hash, uint64_t tag, uint64_t meta) {
    shoal_entry e = shoal_vacancy(word, hash);
    e.bucket->tag[e.lane] = tag;
    e.bucket->meta[e.lane] = meta;
}

/* Puts the live entries of `from`, the segment at place `first`, into the segments
 * low and high; returns how many went to high: those with hash bit `bit` set (high
 * 0: none). Bits below `bit` are those of `first`, the others are in the tag. */
static uint32_t shoal_rehash(const shoal_bucket *from, uint32_t buckets, uint32_t first,
                             uint64_t low, uint64_t high, uint32_t bit) {
    uint32_t moved = 0;
    for (uint32_t i = 0; i < buckets; i++)
        for (int k = 0; k < SHOAL_LANES; k++) {
            uint64_t tag = from[i].tag[k];
            if (!shoal_live(tag)) continue;
            uint64_t hash = (tag & ~SHOAL_PLACE_BITS) | (first & SHOAL_PLACE_BITS);
            uint64_t up = high ? hash >> bit & 1u : 0;
            shoal_put(up ? high : low, hash, tag, from[i].meta[k]);
            moved += (uint32_t)up;
        }
    return moved;
}

static uint32_t shoal_count_live(uint64_t word) {
    uint32_t live = 0;
    for (uint32_t i = 0; i <= shoal_mask(word); i++)
        for (int k = 0; k < SHOAL_LANES; k++)
            live += (uint32_t)shoal_live(shoal_segment(word)[i].tag[k]);
    return live;
}

static int shoal_double_directory(shoal_index *x) {
    if (x->depth >= SHOAL_MAX_DEPTH) return 0;
    const size_t places = (size_t)1 << x->depth;
    void *directory = realloc(x->directory, 2 * places * sizeof *x->directory);
    if (directory) x->directory = directory;
    void *used = realloc(x->used, 2 * places * sizeof *x->used);
    if (used) x->used = used;
    void *local = realloc(x->local_depth, 2 * places);
    if (local) x->local_depth = local;
    if (!directory || !used || !local) return 0;
    memcpy(x->directory + places, x->directory, places * sizeof *x->directory);
    memcpy(x->local_depth + places, x->local_depth, places);
    memset(x->used + places, 0, places * sizeof *x->used);
    x->depth++;
    return 1;
}

/* Moves an unsplit segment to the level of 2^log buckets (its own: tombs go). */
static int shoal_resize_segment(shoal_index *x, uint32_t place, uint32_t log) {
    const uint64_t old = x->directory[place];
    const size_t old_bytes = sizeof(shoal_bucket) << (old & 15u);
    shoal_level *from = &x->levels[old & 15u], *to = &x->levels[log];
    if (!to->segments && !shoal_map(&to->map, SHOAL_LEVEL_BYTES(log))) return 0;
    shoal_bucket *copy = malloc(old_bytes);
    if (!copy) return 0;
    memcpy(copy, shoal_segment(old), old_bytes);
    memset(shoal_segment(old), 0, old_bytes); /* the place may be used again */
    shoal_bucket *segment = (shoal_bucket *)to->map.start + ((size_t)place << log);
    const uint64_t word = (uint64_t)(uintptr_t)segment | log;
    shoal_rehash(copy, shoal_mask(old) + 1, place, word, 0, 0);
    free(copy);
    x->directory[place] = word;
    x->used[place] = shoal_count_live(word);
    to->segments++;
    if (--from->segments == 0) shoal_unmap(&from->map);
    return 1;
}

/* A full segment splits, or only loses its tombs if they are many. It becomes its
 * own lower half: giving the memory back would break up a huge page. */
static int shoal_split_segment(shoal_index *x, uint32_t place, int crowded, shoal_arena *arena) {
    const uint32_t local = x->local_depth[place];
    const uint32_t first = place & (uint32_t)((1ULL << local) - 1u);
    const uint64_t old = x->directory[place];
    const size_t bytes = sizeof(shoal_bucket) << SHOAL_SEGMENT_LOG;
    const int empty = x->used[first] == 0; /* of a store that makes room for rows to come */
    shoal_bucket *copy = empty ? NULL : malloc(bytes), *upper = NULL;
    int ready = empty || copy != NULL;
    if (ready && crowded) {
        ready = local < x->depth || shoal_double_directory(x);
        ready = ready && (upper = shoal_arena_take(arena, SHOAL_SEGMENT)) != NULL;
    }
    if (!ready) {
        free(copy);
        return 0;
    }
    const uint64_t high = upper ? (uint64_t)(uintptr_t)upper | SHOAL_SEGMENT_LOG : 0;
    uint32_t moved = 0;
    if (!empty) {
        memcpy(copy, shoal_segment(old), bytes);
        memset(shoal_segment(old), 0, bytes);
        moved = shoal_rehash(copy, 1u << SHOAL_SEGMENT_LOG, first, old, high, local);
        free(copy);
        x->used[first] = shoal_count_live(old);
    }
    if (!high) return 1;
    const uint64_t step = 1ULL << local;
    x->used[first | step] = moved;
    for (uint64_t i = first; i < 1ULL << x->depth; i += step) {
        x->directory[i] = (i & step) ? high : old;
        x->local_depth[i] = (uint8_t)(local + 1);
    }
    return 1;
}

/* Makes room for so many entries in all, so that adding them moves none; 0: no memory. Hashes
 * spread evenly, so each segment gets its part at once. The few that get more grow later. */
static int shoal_index_reserve(shoal_index *x, int64_t entries, shoal_arena *arena) {
    uint32_t log = 0, depth = SHOAL_FIRST_DEPTH;
    while (log < SHOAL_SEGMENT_LOG && entries >> SHOAL_FIRST_DEPTH >= shoal_segment_limit(log)) log++;
    while (depth < SHOAL_MAX_DEPTH && entries >> depth >= shoal_segment_limit(SHOAL_SEGMENT_LOG))
        depth++;
    for (uint32_t place = 0; place < 1u << SHOAL_FIRST_DEPTH; place++)
        if ((x->directory[place] & 15u) < log && !shoal_resize_segment(x, place, log)) return 0;
    for (uint32_t local = SHOAL_FIRST_DEPTH; local < depth; local++)
        for (uint32_t place = 0; place < 1u << local; place++)
            if (x->local_depth[place] == local && !shoal_split_segment(x, place, 1, arena)) return 0;
    return 1;
}

/* Adds an entry for a hash that is absent; NULL bucket without memory. */
static shoal_entry shoal_index_add(shoal_index *x, uint64_t hash, uint32_t row, uint32_t uses,
                                   uint32_t version, shoal_arena *arena) {
    for (;;) {
        uint32_t place = shoal_place(x, hash);
        uint64_t word = x->directory[place], limit = shoal_segment_limit(word);
        uint32_t *used = &x->used[place & (uint32_t)((1ULL << x->local_depth[place]) - 1u)];
        if (SHOAL_LIKELY(*used < limit)) {
            shoal_entry e = shoal_vacancy(word, hash);
            *used += e.bucket->tag[e.lane] == 0;
            e.bucket->tag[e.lane] = shoal_tag(hash, row);
            e.bucket->meta[e.lane] = shoal_meta(row, uses, version);
            x->live++;
            return e;
        }
        int crowded = shoal_count_live(word) * 2 > limit;
        int ready = (word & 15u) < SHOAL_SEGMENT_LOG
            ? shoal_resize_segment(x, place, (uint32_t)(word & 15u) + (crowded ? 1u : 0u))
            : shoal_split_segment(x, place, crowded, arena);
        if (!ready) return (shoal_entry){NULL, 0};
    }
}

SHOAL_INLINE void shoal_index_drop(shoal_index *x, shoal_entry e) {
    e.bucket->tag[e.lane] = SHOAL_TOMB;
    x->live--;
}

#endif
