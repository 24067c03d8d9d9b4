/* What a batch is, and the assignment of one: rows set as they are, for checkpoints.
 *
 * Records are taken first, and written without any lock, as nobody can find them yet: copying
 * and the clearing of fresh pages, most of the work, is done by as many threads as there are. Only
 * the index is changed under the exclusive lock. An id that has a row already gives its
 * record back.
 */
#ifndef SHOAL_ASSIGN_H
#define SHOAL_ASSIGN_H

#include "counting.h"

/* What a batch does; members of other operations are NULL. */
typedef struct {
    int64_t n;
    const int64_t *ids;
    float *out;               /* lookup: [n, dim] */
    int use_default;          /* lookup: missing rows read default_value */
    int64_t *reads;           /* lookup: adds up all ids, and those without a row; NULL: does not */
    const float *gradients;   /* update: [n, dim] */
    const shoal_step *step;
    int64_t number;           /* update: of the step */
    uint32_t version;         /* update: the same in headers (eras.h), while the structure lock is held */
    shoal_missed *missed;     /* update: notes ids without a row and goes on; NULL: stops there */
    const float *values;      /* assign: [n, dim] */
    const float *slots[SHOAL_MAX_SLOTS]; /* assign: each [n, slot_width] or NULL */
    const int64_t *steps;                /* assign: of the last use, [n] or NULL */
    const uint32_t *uses;                /* assign: [n] or NULL */
} shoal_batch;

/* Item i of the batch as a record; fresh: also what the batch does not have. */
SHOAL_INLINE void shoal_write_row(const shoal_store *t, const shoal_batch *b, int64_t i,
                                  char *record, int fresh) {
    float *slots = (float *)(record + t->slot_offset);
    shoal_encode(b->values + i * t->dim, record, t->dim, t->format);
    for (int k = 0; k < t->slots; k++, slots += t->slot_width) {
        if (b->slots[k])
            memcpy(slots, b->slots[k] + i * t->slot_width, (size_t)t->slot_width * 4);
        else if (fresh)
            for (int64_t c = 0; c < t->slot_width; c++) slots[c] = t->slot_initial[k];
    }
}

/* Has item i found under its hash, with its written record `row`. Exclusive lock held. */
SHOAL_INLINE int shoal_assign_row(shoal_store *t, const shoal_batch *b, uint64_t hash, int64_t i,
                                  uint32_t row) {
    shoal_entry e = shoal_find_any(&t->index, hash);
    if (SHOAL_LIKELY(!e.bucket)) {
        e = shoal_index_add(&t->index, hash, row, b->uses ? b->uses[i] : 0,
                            b->steps ? shoal_version_at(t, b->steps[i]) : 0, &t->arena);
        if (t->snapshot) shoal_snapshot_lacks(t->snapshot, row);
        if (e.bucket) return SHOAL_OK;
        shoal_push_row(t, row);
        return SHOAL_NO_MEMORY;
    }
    uint64_t *meta = &e.bucket->meta[e.lane];
    if (!shoal_live(e.bucket->tag[e.lane])) {
        shoal_preserve_count(t, hash, *meta);
        shoal_index_admit(&t->index, e, row);
        if (t->snapshot) shoal_snapshot_lacks(t->snapshot, row);
        *meta = shoal_meta(row, b->uses ? b->uses[i] : shoal_uses_of(*meta),
                           b->steps ? shoal_version_at(t, b->steps[i]) : shoal_version_of(*meta));
        return SHOAL_OK;
    }
    const uint32_t old = shoal_row_of(e.bucket->tag[e.lane], *meta);
    shoal_preserve(t, meta, hash, *meta);
    shoal_write_row(t, b, i, shoal_record(t, old), 0);
    *meta = shoal_meta(old, b->uses ? b->uses[i] : shoal_uses_of(*meta),
                       b->steps ? shoal_version_at(t, b->steps[i]) : shoal_version_of(*meta));
    return shoal_push_row(t, row) ? SHOAL_OK : SHOAL_NO_MEMORY;
}

/* Items base to base + n; n <= SHOAL_BLOCK. */
static int shoal_assign_block(shoal_store *t, const shoal_batch *b, const uint64_t *hashes,
                              int64_t base, int64_t n) {
    uint32_t rows[SHOAL_BLOCK];
    char *records[SHOAL_BLOCK];
    int64_t taken = 0, done = 0;
    int result = SHOAL_OK;
    pthread_rwlock_wrlock(&t->lock);
    for (; taken < n && (rows[taken] = shoal_take_row(t)) != SHOAL_MAX_ROWS; taken++)
        records[taken] = shoal_record(t, rows[taken]);
    pthread_rwlock_unlock(&t->lock);
    for (int64_t j = 0; j < taken; j++) shoal_write_row(t, b, base + j, records[j], 1);
    while (done < taken) {
        const int64_t end = done + SHOAL_INSERTS < taken ? done + SHOAL_INSERTS : taken;
        shoal_arena_prepare(&t->arena);
        pthread_rwlock_wrlock(&t->lock);
        for (int64_t j = done; j < end; j++)
            shoal_prefetch(shoal_home_bucket(&t->index, hashes[j]));
        for (; done < end; done++) {
            if (result == SHOAL_OK)
                result = shoal_assign_row(t, b, hashes[done], base + done, rows[done]);
            else
                shoal_push_row(t, rows[done]);
        }
        pthread_rwlock_unlock(&t->lock);
    }
    return taken < n ? SHOAL_NO_MEMORY : result;
}

#endif
