/* Iteration over a row store.
 *
 * Iteration goes segment by segment and holds the shared structure lock for one
 * segment at a time, so it delays nobody. Its cursor is the segment's place read
 * backwards (as in Redis SCAN): in that order the halves of a split segment lie
 * where their parent lay, so a row present throughout is seen exactly once,
 * however much the store grows or is compacted (compaction.h) between two calls.
 */
#ifndef SHOAL_SCAN_H
#define SHOAL_SCAN_H

#include "run.h"

static int shoal_contains(shoal_store *t, int64_t id) {
    pthread_rwlock_rdlock(&t->lock);
    int found = shoal_find(&t->index, shoal_hash_of(t, id)).bucket != NULL;
    pthread_rwlock_unlock(&t->lock);
    return found;
}

/* ---- iteration ---- */

/* Where an iteration writes; slots each [.., slot_width]. */
typedef struct {
    int64_t *ids;
    float *values;
    float *slots[SHOAL_MAX_SLOTS];
    int64_t *steps; /* of the last use */
    uint32_t *uses;
    int64_t filled, room; /* rows */
} shoal_rows;

/* The same, of each part of the routing slots apart. */
typedef struct {
    shoal_rows **parts;
    const uint16_t *part_of; /* of each slot; NULL: there is one part */
    int counting;            /* ids, versions and uses of what is counted, instead of rows */
    int chosen;              /* only what was used at the step `since` or later, of slots with a part */
    int64_t since;
} shoal_split;

enum { SHOAL_NO_PART = 0xFFFF };

SHOAL_INLINE shoal_rows *shoal_part_for(const shoal_split *s, int64_t id) {
    return s->parts[s->part_of ? s->part_of[shoal_slot(shoal_mix64((uint64_t)id))] : 0];
}

/* Whether a row, or a counted id, is one of those chosen, by its header. */
SHOAL_INLINE int shoal_is_of(const shoal_store *t, const shoal_split *s, uint64_t hash, uint64_t header) {
    if (SHOAL_LIKELY(!s->chosen)) return 1;
    const uint64_t mixed = shoal_mix64((uint64_t)shoal_id_of(t, hash));
    return s->part_of[shoal_slot(mixed)] != SHOAL_NO_PART && shoal_step_in(t, header) >= s->since;
}

/* Fetches where the part's next row goes. The lines of many parts are more than the processor
 * foresees, and taking the next row's lock would wait for them. */
SHOAL_INLINE void shoal_prefetch_place(const shoal_store *t, const shoal_rows *out) {
    const int64_t at = out->filled;
    __builtin_prefetch(out->ids + at, 1);
    __builtin_prefetch(out->steps + at, 1);
    __builtin_prefetch(out->uses + at, 1);
    const char *values = (const char *)(out->values + at * t->dim);
    for (int64_t line = 0; line < t->dim * 4; line += SHOAL_LINE)
        __builtin_prefetch(values + line, 1);
    for (int k = 0; k < t->slots; k++) {
        const char *slot = (const char *)(out->slots[k] + at * t->slot_width);
        for (int64_t line = 0; line < t->slot_width * 4; line += SHOAL_LINE)
            __builtin_prefetch(slot + line, 1);
    }
}

/* The part has room. Does not count the row. */
static void shoal_export_record(const shoal_store *t, int64_t id, uint64_t header,
                                const char *record, const shoal_rows *out) {
    const int64_t at = out->filled;
    const float *slots = (const float *)(record + t->slot_offset);
    out->ids[at] = id;
    shoal_decode(record, out->values + at * t->dim, t->dim, t->format);
    for (int k = 0; k < t->slots; k++)
        shoal_read(out->slots[k] + at * t->slot_width, slots + k * t->slot_width,
                   (size_t)t->slot_width * 4);
    out->steps[at] = shoal_step_in(t, header);
    out->uses[at] = shoal_uses_of(header);
}

/* A row without its lock: copied again if an update came between. */
static void shoal_export_row(const shoal_store *t, const shoal_bucket *b, int lane, uint64_t hash,
                             const shoal_split *out) {
    const uint64_t *meta = &b->meta[lane];
    const int64_t id = shoal_id_of(t, hash);
    shoal_rows *part = shoal_part_for(out, id);
    uint64_t seen;
    do {
        seen = shoal_stable_meta(meta);
        const uint32_t row = shoal_row_of(b->tag[lane], seen);
        shoal_export_record(t, id, seen, shoal_record(t, row), part);
    } while (!shoal_unchanged(meta, seen));
    part->filled++;
}

/* The cursor after the segment at `place`. */
SHOAL_INLINE uint64_t shoal_cursor_after(const shoal_index *x, uint64_t cursor, uint32_t place) {
    uint64_t width = (uint64_t)1 << (32 - x->local_depth[place]);
    return (cursor / width + 1) * width;
}

/* Copies the next segment's rows; room for SHOAL_SEGMENT_ROWS more in each part is
 * the caller's duty. 0: the store is at its end. */
static int shoal_export_segment(shoal_store *t, uint64_t *cursor, const shoal_split *out) {
    if (*cursor >> 32) return 0;
    pthread_rwlock_rdlock(&t->lock);
    const shoal_index *x = &t->index;
    const uint32_t place = shoal_place(x, shoal_reversed((uint32_t)*cursor));
    const uint64_t word = x->directory[place];
    for (uint32_t i = 0; i <= shoal_mask(word); i++) {
        const shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_live(b->tag[k])) continue;
            uint64_t hash = (b->tag[k] & ~SHOAL_PLACE_BITS) | (place & SHOAL_PLACE_BITS);
            /* after a compaction a segment may begin before the cursor */
            if (shoal_reversed((uint32_t)hash) < *cursor) continue;
            if (out->chosen && !shoal_is_of(t, out, hash, shoal_stable_meta(&b->meta[k]))) continue;
            shoal_export_row(t, b, k, hash, out);
        }
    }
    *cursor = shoal_cursor_after(x, *cursor, place);
    pthread_rwlock_unlock(&t->lock);
    return 1;
}

static void shoal_export_count(const shoal_store *t, uint64_t hash, uint64_t header,
                               const shoal_split *out) {
    const int64_t id = shoal_id_of(t, hash);
    shoal_rows *part = shoal_part_for(out, id);
    part->ids[part->filled] = id;
    part->steps[part->filled] = shoal_step_in(t, header);
    part->uses[part->filled++] = shoal_uses_of(header);
}

/* Copies what there is of one id, with room for it in `out`. 0: nothing, 1: it is counted, 2: it
 * has a row. */
static int shoal_export_one(shoal_store *t, int64_t id, const shoal_split *out) {
    const uint64_t hash = shoal_hash_of(t, id);
    int found = 0;
    pthread_rwlock_rdlock(&t->lock);
    shoal_entry e = shoal_find_any(&t->index, hash);
    if (e.bucket && shoal_live(e.bucket->tag[e.lane])) {
        shoal_export_row(t, e.bucket, e.lane, hash, out);
        found = 2;
    } else if (e.bucket) {
        shoal_export_count(t, hash, shoal_stable_meta(&e.bucket->meta[e.lane]), out);
        found = 1;
    }
    pthread_rwlock_unlock(&t->lock);
    return found;
}

/* As shoal_export_segment, of the ids that are counted; fixed: as the snapshot has them and
 * were not kept. */
static int shoal_counting_segment(shoal_store *t, uint64_t *cursor, int fixed, const shoal_split *out) {
    if (*cursor >> 32) return 0;
    pthread_rwlock_rdlock(&t->lock);
    const uint32_t place = shoal_place(&t->index, shoal_reversed((uint32_t)*cursor));
    const uint64_t word = t->index.directory[place];
    for (uint32_t i = 0; i <= shoal_mask(word); i++) {
        shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_counts(b->tag[k])) continue;
            uint64_t hash = (b->tag[k] & ~SHOAL_PLACE_BITS) | (place & SHOAL_PLACE_BITS), held;
            if (!fixed) {
                const uint64_t seen = shoal_stable_meta(&b->meta[k]);
                if (shoal_reversed((uint32_t)hash) >= *cursor && shoal_is_of(t, out, hash, seen))
                    shoal_export_count(t, hash, seen, out);
                continue;
            }
            shoal_lock_row(&b->meta[k], &held);
            if (shoal_snapshot_of(held) != t->snapshots) {
                shoal_export_count(t, hash, held, out);
                held = shoal_count_meta(t->snapshots, shoal_uses_of(held), shoal_version_of(held));
            }
            __atomic_store_n(&b->meta[k], held, __ATOMIC_RELEASE);
        }
    }
    *cursor = shoal_cursor_after(&t->index, *cursor, place);
    pthread_rwlock_unlock(&t->lock);
    return 1;
}

/* ---- reading a snapshot ---- */

/* Copies the rows of the next segment that were not kept. A lock a row:
 * a reader that takes none could be overtaken by an update, and copy its result.
 * Otherwise as shoal_export_segment. */
static int shoal_snapshot_segment(shoal_store *t, uint64_t *cursor, const shoal_split *out) {
    if (*cursor >> 32) return 0;
    pthread_rwlock_rdlock(&t->lock);
    const shoal_index *x = &t->index;
    const uint32_t place = shoal_place(x, shoal_reversed((uint32_t)*cursor));
    const uint64_t word = x->directory[place];
    for (uint32_t ahead = 0, i = 0; i <= shoal_mask(word); i++) {
        for (; ahead <= shoal_mask(word) && ahead < i + 8; ahead++) {
            const shoal_bucket *b = shoal_segment(word) + ahead;
            for (int k = 0; k < SHOAL_LANES; k++) {
                if (!shoal_live(b->tag[k])) continue;
                const char *record = shoal_record(
                    t, shoal_row_of(b->tag[k], __atomic_load_n(&b->meta[k], __ATOMIC_RELAXED)));
                for (size_t line = 0; line < t->stride; line += SHOAL_LINE)
                    shoal_prefetch(record + line);
            }
        }
        shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_live(b->tag[k])) continue;
            uint64_t hash = (b->tag[k] & ~SHOAL_PLACE_BITS) | (place & SHOAL_PLACE_BITS), held;
            shoal_lock_row(&b->meta[k], &held);
            const uint32_t row = shoal_row_of(b->tag[k], held);
            if (shoal_snapshot_lacks(t->snapshot, row)) {
                const int64_t id = shoal_id_of(t, hash);
                shoal_rows *part = shoal_part_for(out, id);
                shoal_export_record(t, id, held, shoal_record(t, row), part);
                part->filled++;
                shoal_prefetch_place(t, part);
            }
            __atomic_store_n(&b->meta[k], held, __ATOMIC_RELEASE);
        }
    }
    *cursor = shoal_cursor_after(x, *cursor, place);
    pthread_rwlock_unlock(&t->lock);
    return 1;
}

/* Copies kept rows and drops them. Returns 1 when there is none left, 0 if the part of the
 * next one has no room. */
static int shoal_snapshot_kept(shoal_store *t, const shoal_split *out) {
    struct shoal_snapshot *s = t->snapshot;
    shoal_kept **list = out->counting ? &s->counted : &s->kept;
    const size_t bytes = out->counting ? SHOAL_COUNTED_BYTES : s->entry;
    int room = 1;
    pthread_mutex_lock(&s->lock);
    while (*list && room) {
        shoal_kept *block = *list;
        while (block->count) {
            const char *entry = block->entries + (size_t)(block->count - 1) * bytes;
            uint64_t hash, header;
            memcpy(&hash, entry, 8);
            memcpy(&header, entry + 8, 8);
            const int64_t id = shoal_id_of(t, hash);
            shoal_rows *part = shoal_part_for(out, id);
            room = part->filled < part->room;
            if (!room) break;
            if (out->counting) {
                shoal_export_count(t, hash, header, out);
            } else {
                shoal_export_record(t, id, header, entry + 16, part);
                part->filled++;
            }
            block->count--;
        }
        if (!block->count) {
            *list = block->next;
            free(block);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return room;
}

static int shoal_snapshot_failed(const shoal_store *t) {
    return __atomic_load_n(&t->snapshot->failed, __ATOMIC_RELAXED);
}

#endif
