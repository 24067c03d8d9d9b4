/* A snapshot: every row as it was at one moment, read while updates go on.
 *
 * The caller sees to it that no update is under way when it begins. From then on
 * whoever is about to change a row for the first time keeps a copy of it (copy on
 * write), and the reader, which goes over the segments as an export does, takes each
 * row that was not yet kept. A bit a row says which of the two has had it. Rows that
 * come to exist later have their bit set from the start. So the memory that it costs
 * is at most that of the rows changed while it is read, and updates wait for a
 * row's lock at most.
 */
#ifndef SHOAL_SNAPSHOT_H
#define SHOAL_SNAPSHOT_H

#include "store.h"

enum { SHOAL_KEPT_ROWS = 1024 }; /* copies in one block */

typedef struct shoal_kept {
    struct shoal_kept *next;
    int64_t count;
    char entries[]; /* SHOAL_KEPT_ROWS of: hash, header, record */
} shoal_kept;

struct shoal_snapshot {
    pthread_mutex_t lock; /* of the list of copies */
    shoal_kept *kept;     /* the newest block first; only that one has room */
    uint64_t *seen;       /* a bit a row */
    uint32_t rows;        /* rows from here on are newer than the snapshot */
    size_t entry;         /* bytes of a copy */
    int failed;           /* no memory for a copy */
};

static void shoal_snapshot_free(struct shoal_snapshot *s) {
    if (!s) return;
    while (s->kept) {
        shoal_kept *next = s->kept->next;
        free(s->kept);
        s->kept = next;
    }
    pthread_mutex_destroy(&s->lock);
    free(s->seen);
    free(s);
}

/* 0: no memory, or another snapshot is being read. */
static int shoal_snapshot_begin(shoal_store *t) {
    struct shoal_snapshot *s = calloc(1, sizeof *s);
    if (!s) return 0;
    pthread_mutex_init(&s->lock, NULL);
    s->entry = 16 + shoal_round_up(t->stride, 8);
    pthread_rwlock_wrlock(&t->lock);
    s->rows = t->next_row;
    s->seen = calloc(s->rows / 64u + 1u, sizeof *s->seen);
    const int begun = s->seen && !t->snapshot;
    if (begun) t->snapshot = s;
    pthread_rwlock_unlock(&t->lock);
    if (!begun) shoal_snapshot_free(s);
    return begun;
}

static void shoal_snapshot_end(shoal_store *t) {
    pthread_rwlock_wrlock(&t->lock);
    struct shoal_snapshot *s = t->snapshot;
    t->snapshot = NULL;
    pthread_rwlock_unlock(&t->lock);
    shoal_snapshot_free(s);
}

/* Whether the snapshot still lacks the row; from now on it does not. The row's lock,
 * or the structure lock exclusively, is held; other rows share the word. */
SHOAL_INLINE int shoal_snapshot_lacks(struct shoal_snapshot *s, uint32_t row) {
    if (row >= s->rows) return 0;
    const uint64_t bit = 1ULL << (row & 63u);
    return !(__atomic_fetch_or(&s->seen[row >> 6], bit, __ATOMIC_RELAXED) & bit);
}

static void shoal_snapshot_copy(shoal_store *t, uint32_t row, uint64_t hash, uint64_t header) {
    struct shoal_snapshot *s = t->snapshot;
    pthread_mutex_lock(&s->lock);
    if (!s->kept || s->kept->count == SHOAL_KEPT_ROWS) {
        shoal_kept *block = malloc(sizeof *block + SHOAL_KEPT_ROWS * s->entry);
        if (block) {
            block->next = s->kept;
            block->count = 0;
            s->kept = block;
        } else {
            __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
        }
    }
    if (!s->failed) {
        char *entry = s->kept->entries + (size_t)s->kept->count++ * s->entry;
        memcpy(entry, &hash, 8);
        memcpy(entry + 8, &header, 8);
        memcpy(entry + 16, shoal_record(t, row), t->stride);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Call before a row is changed; meta: its header's place, header: its value unlocked. */
SHOAL_INLINE void shoal_preserve(shoal_store *t, const uint64_t *meta, uint64_t hash,
                                 uint64_t header) {
    if (SHOAL_LIKELY(!t->snapshot)) return;
    const shoal_bucket *b = (const shoal_bucket *)((uintptr_t)meta & ~(uintptr_t)(SHOAL_LINE - 1));
    const uint32_t row = shoal_row_of(b->tag[meta - b->meta], header);
    if (shoal_snapshot_lacks(t->snapshot, row)) shoal_snapshot_copy(t, row, hash, header);
}

#endif
