/* How the index grows: segments that double, split, and the room that is made at once.
 *
 * Every function here needs the store's exclusive lock. How the index shrinks is in compaction.h.
 */
#ifndef SHOAL_GROWTH_H
#define SHOAL_GROWTH_H

#include "index.h"

SHOAL_INLINE void shoal_put(uint64_t word, uint64_t hash, uint64_t tag, uint64_t meta) {
    shoal_entry e = shoal_vacancy(word, hash);
    e.bucket->tag[e.lane] = tag;
    e.bucket->meta[e.lane] = meta;
}

/* Puts the entries of `from`, the segment at place `first`, into the segments
 * low and high; returns how many went to high: those with hash bit `bit` set (high
 * 0: none). Bits below `bit` are those of `first`, the others are in the tag. */
static uint32_t shoal_rehash(const shoal_bucket *from, uint32_t buckets, uint32_t first,
                             uint64_t low, uint64_t high, uint32_t bit) {
    uint32_t moved = 0;
    for (uint32_t i = 0; i < buckets; i++)
        for (int k = 0; k < SHOAL_LANES; k++) {
            uint64_t tag = from[i].tag[k];
            if (!shoal_taken(tag)) continue;
            uint64_t hash = (tag & ~SHOAL_PLACE_BITS) | (first & SHOAL_PLACE_BITS);
            uint64_t up = high ? hash >> bit & 1u : 0;
            shoal_put(up ? high : low, hash, tag, from[i].meta[k]);
            moved += (uint32_t)up;
        }
    return moved;
}

static uint32_t shoal_count_taken(uint64_t word) {
    uint32_t taken = 0;
    for (uint32_t i = 0; i <= shoal_mask(word); i++)
        for (int k = 0; k < SHOAL_LANES; k++)
            taken += (uint32_t)shoal_taken(shoal_segment(word)[i].tag[k]);
    return taken;
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

/* Moves an unsplit segment to the level of 2^log buckets (its own: tombs go). place: any of its
 * places, as the directory is larger than SHOAL_FIRST_DEPTH says where others are split, or were. */
static int shoal_resize_segment(shoal_index *x, uint32_t place, uint32_t log) {
    place &= (uint32_t)SHOAL_PLACE_BITS;
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
    for (uint64_t i = place; i < 1ULL << x->depth; i += 1ULL << SHOAL_FIRST_DEPTH)
        x->directory[i] = word;
    x->used[place] = shoal_count_taken(word);
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
        x->used[first] = shoal_count_taken(old);
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

/* Adds an entry for a hash that is absent; NULL bucket without memory. tag: of a row or of one
 * that counts. Counts neither: that is the caller's. */
static shoal_entry shoal_index_put(shoal_index *x, uint64_t hash, uint64_t tag, uint64_t meta,
                                   shoal_arena *arena) {
    for (;;) {
        uint32_t place = shoal_place(x, hash);
        uint64_t word = x->directory[place], limit = shoal_segment_limit(word);
        uint32_t *used = &x->used[place & (uint32_t)((1ULL << x->local_depth[place]) - 1u)];
        if (SHOAL_LIKELY(*used < limit)) {
            shoal_entry e = shoal_vacancy(word, hash);
            *used += e.bucket->tag[e.lane] == 0;
            e.bucket->tag[e.lane] = tag;
            e.bucket->meta[e.lane] = meta;
            return e;
        }
        int crowded = shoal_count_taken(word) * 2 > limit;
        int ready = (word & 15u) < SHOAL_SEGMENT_LOG
            ? shoal_resize_segment(x, place, (uint32_t)(word & 15u) + (crowded ? 1u : 0u))
            : shoal_split_segment(x, place, crowded, arena);
        if (!ready) return (shoal_entry){NULL, 0};
    }
}

/* Adds a row for a hash that is absent; NULL bucket without memory. */
static shoal_entry shoal_index_add(shoal_index *x, uint64_t hash, uint32_t row, uint32_t uses,
                                   uint32_t version, shoal_arena *arena) {
    shoal_entry e = shoal_index_put(x, hash, shoal_tag(hash, row), shoal_meta(row, uses, version), arena);
    x->live += e.bucket != NULL;
    return e;
}

#endif
