/* Compaction of a row store, the only operation that moves rows. */
#ifndef SHOAL_COMPACTION_H
#define SHOAL_COMPACTION_H

#include "expiry.h"

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
        const uint32_t moved = shoal_count_taken(drop);
        if (shoal_count_taken(keep) + moved > shoal_segment_limit(keep) * 3 / 4) return 1;
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
    place &= (uint32_t)SHOAL_PLACE_BITS;
    const uint64_t word = x->directory[place];
    const uint32_t live = shoal_count_taken(word), now = (uint32_t)(word & 15u);
    uint32_t log = now;
    while (log > 0 && live <= shoal_segment_limit(log - 1) * 3 / 4) log--;
    return log < now || x->used[place] > live ? shoal_resize_segment(x, place, log) : 1;
}

/* Gives back what a list does not need. */
static void shoal_fit_list(shoal_row_list *list) {
    uint32_t *items = list->count ? realloc(list->items, list->count * sizeof *items) : NULL;
    if (!list->count) free(list->items);
    else if (!items) return; /* as it was */
    list->items = items;
    list->room = list->count;
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
    shoal_fit_list(&t->free_high);
    shoal_fit_list(&t->free_low);
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
