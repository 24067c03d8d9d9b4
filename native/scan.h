/* Removal, iteration and compaction of a row store.
 *
 * Iteration goes segment by segment and holds the shared structure lock for one
 * segment at a time, so it delays nobody. Its cursor is the segment's place read
 * backwards (as in Redis SCAN): in that order the halves of a split segment lie
 * where their parent lay, so a row present throughout is seen exactly once,
 * however much the store grows or is compacted between two calls.
 */
#ifndef SHOAL_SCAN_H
#define SHOAL_SCAN_H

#include "traffic.h"

SHOAL_INLINE uint32_t shoal_reversed(uint32_t x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0F0F0F0Fu) | (x & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(x);
}

/* ---- removal ---- */

/* Returns the number of rows removed, or -1 without memory. */
static int64_t shoal_remove(shoal_store *t, const int64_t *ids, int64_t n) {
    int64_t removed = 0;
    int ready = 1;
    for (int64_t base = 0; base < n && ready; base += SHOAL_INSERTS) {
        pthread_rwlock_wrlock(&t->lock);
        for (int64_t i = base; i < n && i < base + SHOAL_INSERTS && ready; i++) {
            const uint64_t hash = shoal_hash_of(t, ids[i]);
            shoal_entry e = shoal_find(&t->index, hash);
            if (!e.bucket) continue;
            shoal_preserve(t, &e.bucket->meta[e.lane], hash, e.bucket->meta[e.lane]);
            ready = shoal_push_row(t, shoal_row_of(e.bucket->tag[e.lane], e.bucket->meta[e.lane]));
            if (!ready) break;
            shoal_index_drop(&t->index, e);
            removed++;
        }
        pthread_rwlock_unlock(&t->lock);
    }
    return ready ? removed : -1;
}

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
    uint32_t *versions, *uses;
    int64_t filled, room; /* rows */
} shoal_rows;

/* The same, of each part of the routing slots apart. */
typedef struct {
    shoal_rows **parts;
    const uint16_t *part_of; /* of each slot; NULL: there is one part */
} shoal_split;

SHOAL_INLINE shoal_rows *shoal_part_for(const shoal_split *s, int64_t id) {
    return s->parts[s->part_of ? s->part_of[shoal_slot(shoal_mix64((uint64_t)id))] : 0];
}

/* Fetches where the part's next row goes. The lines of many parts are more than the processor
 * foresees, and taking the next row's lock would wait for them. */
SHOAL_INLINE void shoal_prefetch_place(const shoal_store *t, const shoal_rows *out) {
    const int64_t at = out->filled;
    __builtin_prefetch(out->ids + at, 1);
    __builtin_prefetch(out->versions + at, 1);
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
    out->versions[at] = shoal_version_of(header);
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
            shoal_export_row(t, b, k, hash, out);
        }
    }
    *cursor = shoal_cursor_after(x, *cursor, place);
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
    int room = 1;
    pthread_mutex_lock(&s->lock);
    while (s->kept && room) {
        shoal_kept *block = s->kept;
        while (block->count) {
            const char *entry = block->entries + (size_t)(block->count - 1) * s->entry;
            uint64_t hash, header;
            memcpy(&hash, entry, 8);
            memcpy(&header, entry + 8, 8);
            const int64_t id = shoal_id_of(t, hash);
            shoal_rows *part = shoal_part_for(out, id);
            room = part->filled < part->room;
            if (!room) break;
            shoal_export_record(t, id, header, entry + 16, part);
            part->filled++;
            block->count--;
        }
        if (!block->count) {
            s->kept = block->next;
            free(block);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return room;
}

static int shoal_snapshot_failed(const shoal_store *t) {
    return __atomic_load_n(&t->snapshot->failed, __ATOMIC_RELAXED);
}

/* ---- compaction: the only operation that moves rows ---- */

/* A row takes its bit with it. Exclusive structure lock held; lower < row. */
static void shoal_snapshot_moved(shoal_store *t, uint32_t row, uint32_t lower) {
    if (!t->snapshot) return;
    const uint32_t rows = t->snapshot->rows;
    uint64_t *seen = t->snapshot->seen;
    const int lacked = row < rows && !(seen[row >> 6] >> (row & 63u) & 1u);
    if (lower >= rows) return; /* then both are newer than the snapshot */
    if (lacked) __atomic_fetch_and(&seen[lower >> 6], ~(1ULL << (lower & 63u)), __ATOMIC_RELAXED);
    else __atomic_fetch_or(&seen[lower >> 6], 1ULL << (lower & 63u), __ATOMIC_RELAXED);
}

/* Moves the segment's rows from `boundary` on into free rows below it. */
static int shoal_lower_rows(shoal_store *t, uint64_t word) {
    for (uint32_t i = 0; i <= shoal_mask(word); i++) {
        shoal_bucket *b = shoal_segment(word) + i;
        for (int k = 0; k < SHOAL_LANES; k++) {
            if (!shoal_live(b->tag[k])) continue;
            uint32_t row = shoal_row_of(b->tag[k], b->meta[k]);
            if (row < t->boundary || !t->free_low.count) continue;
            if (!shoal_push_row(t, row)) return 0;
            uint32_t lower = t->free_low.items[--t->free_low.count];
            memcpy(shoal_record(t, lower), shoal_record(t, row), t->stride);
            shoal_snapshot_moved(t, row, lower);
            b->tag[k] = shoal_tag(b->tag[k], lower);
            b->meta[k] = (b->meta[k] & ((1ULL << 45) - 1)) | (uint64_t)(lower & 0x7FFFFu) << 45;
        }
    }
    return 1;
}

/* Joins a split segment with its other half while both together leave room to
 * grow, then moves an unsplit one to the smallest level that leaves it room. */
static int shoal_shrink_segment(shoal_index *x, uint32_t place, shoal_arena *arena) {
    while (x->local_depth[place] > SHOAL_FIRST_DEPTH) {
        const uint64_t local = x->local_depth[place], step = 1ULL << (local - 1);
        const uint32_t low = place & (uint32_t)(step - 1u), high = low | (uint32_t)step;
        if (x->local_depth[high] != local || x->local_depth[low] != local) return 1;
        const uint64_t keep = x->directory[low], drop = x->directory[high];
        const uint32_t moved = shoal_count_live(drop);
        if (shoal_count_live(keep) + moved > shoal_segment_limit(keep) * 3 / 4) return 1;
        if (x->used[low] + moved > shoal_segment_limit(keep) &&
            !shoal_split_segment(x, low, 0, arena)) /* not crowded: tombs go */
            return 0;
        shoal_rehash(shoal_segment(drop), 1u << SHOAL_SEGMENT_LOG, high, keep, 0, 0);
        x->used[low] += moved;
        for (uint64_t i = low; i < 1ULL << x->depth; i += step) {
            x->directory[i] = keep;
            x->local_depth[i] = (uint8_t)(local - 1);
        }
        shoal_arena_give(arena, SHOAL_SEGMENT, shoal_segment(drop));
        place = low;
    }
    const uint64_t word = x->directory[place];
    const uint32_t live = shoal_count_live(word), now = (uint32_t)(word & 15u);
    uint32_t log = now;
    while (log > 0 && live <= shoal_segment_limit(log - 1) * 3 / 4) log--;
    return log < now || x->used[place] > live ? shoal_resize_segment(x, place, log) : 1;
}

/* Frees the chunks that hold only free rows from `boundary` on. */
static void shoal_trim_chunks(shoal_store *t) {
    if (t->free_high.count == t->next_row - t->boundary) { /* every row up there is free */
        t->next_row = t->boundary;
        t->free_high.count = 0;
        size_t chunks = ((size_t)t->next_row + (1u << t->chunk_shift) - 1u) >> t->chunk_shift;
        while (t->chunk_count > (chunks ? chunks : 1))
            shoal_arena_give(&t->arena, SHOAL_CHUNK, t->chunks[--t->chunk_count]);
    }
    t->boundary = SHOAL_MAX_ROWS;
    for (size_t i = 0; i < t->free_high.count; i++) shoal_push_row(t, t->free_high.items[i]);
    t->free_high.count = 0;
}

/* Segment by segment: moves rows into the gaps that removal left and shrinks the
 * index, then gives the memory at the end back. One lock hold per segment;
 * rows inserted meanwhile may keep the end in use until the next compaction. */
static int shoal_compact(shoal_store *t) {
    int ready = 1;
    pthread_rwlock_wrlock(&t->lock);
    if (t->boundary == SHOAL_MAX_ROWS && t->free_low.count) {
        shoal_row_list all = t->free_low;
        memset(&t->free_low, 0, sizeof t->free_low);
        /* a little above the live rows, so that inserts meanwhile find room below */
        uint64_t boundary = (uint64_t)t->index.live + (uint64_t)t->index.live / 64;
        t->boundary = boundary < t->next_row ? (uint32_t)boundary : t->next_row;
        for (size_t i = 0; i < all.count && ready; i++) ready = shoal_push_row(t, all.items[i]);
        free(all.items);
        for (uint64_t cursor = 0; ready && !(cursor >> 32);) {
            uint32_t place = shoal_place(&t->index, shoal_reversed((uint32_t)cursor));
            uint64_t word = t->index.directory[place];
            cursor = shoal_cursor_after(&t->index, cursor, place);
            ready = shoal_lower_rows(t, word);
            ready = ready && shoal_shrink_segment(&t->index, place, &t->arena);
            pthread_rwlock_unlock(&t->lock); /* let the others in */
            pthread_rwlock_wrlock(&t->lock);
        }
        shoal_trim_chunks(t);
    }
    pthread_rwlock_unlock(&t->lock);
    return ready ? SHOAL_OK : SHOAL_NO_MEMORY;
}

#endif
