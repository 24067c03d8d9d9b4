/* A snapshot: every row, and every id that is counted, as it was at one moment, read while
 * updates go on.
 *
 * The caller sees to it that no update is under way when it begins. From then on
 * whoever is about to change a row for the first time keeps a copy of it (copy on
 * write), and the reader, which goes over the segments as an export does, takes each
 * row that was not yet kept. A bit a row says which of the two has had it. Rows that
 * come to exist later have their bit set from the start. So the memory that it costs
 * is at most that of the rows changed while it is read, and updates wait for a
 * row's lock at most. An entry that counts has no row and so no such bit: its header has the
 * number of the last snapshot that had it, or that is older than it.
 */
#ifndef SHOAL_SNAPSHOT_H
#define SHOAL_SNAPSHOT_H

#include "census.h"

/* Copies in one block: fewer of wide rows, of which few may be changed. */
enum { SHOAL_KEPT_ROWS = 1024, SHOAL_KEPT_BYTES = 1 << 20 };

typedef struct shoal_kept {
    struct shoal_kept *next;
    int64_t count;
    char entries[]; /* as many as it has room for: hash, header, record if it has one */
} shoal_kept;

struct shoal_snapshot {
    pthread_mutex_t lock; /* of the lists of copies */
    shoal_kept *kept;     /* of rows: the newest block first; only that one has room */
    shoal_kept *counted;  /* the same of entries that count */
    uint64_t *seen;       /* a bit a row */
    uint32_t rows;        /* rows from here on are newer than the snapshot */
    size_t entry;         /* bytes of a row's copy */
    int64_t entries;      /* of rows, in a block */
    int failed;           /* no memory for a copy */
};

enum { SHOAL_COUNTED_BYTES = 16 }; /* of the copy of an entry that counts */

static void shoal_kept_free(shoal_kept *block) {
    while (block) {
        shoal_kept *next = block->next;
        free(block);
        block = next;
    }
}

static void shoal_snapshot_free(struct shoal_snapshot *s) {
    if (!s) return;
    shoal_kept_free(s->kept);
    shoal_kept_free(s->counted);
    pthread_mutex_destroy(&s->lock);
    free(s->seen);
    free(s);
}

/* Snapshots are numbered from 1 on, and again when a header has no room for more: then no entry
 * may have the number of an old one. Exclusive structure lock held. */
static void shoal_snapshot_number(shoal_store *t) {
    if (++t->snapshots < 1u << SHOAL_SNAPSHOT_BITS) return;
    t->snapshots = 1;
    const shoal_index *x = &t->index;
    for (uint64_t place = 0; place < 1ULL << x->depth; place++) {
        const uint64_t word = x->directory[place]; /* a segment may come more than once */
        for (uint32_t i = 0; i <= shoal_mask(word); i++)
            for (int k = 0; k < SHOAL_LANES; k++) {
                shoal_bucket *b = shoal_segment(word) + i;
                if (shoal_counts(b->tag[k]))
                    b->meta[k] = shoal_count_meta(0, shoal_uses_of(b->meta[k]),
                                                  shoal_version_of(b->meta[k]));
            }
    }
}

/* 0: no memory, or another snapshot is being read. */
static int shoal_snapshot_begin(shoal_store *t) {
    struct shoal_snapshot *s = calloc(1, sizeof *s);
    if (!s) return 0;
    pthread_mutex_init(&s->lock, NULL);
    s->entry = 16 + shoal_round_up(t->stride, 8);
    s->entries = SHOAL_KEPT_BYTES / (int64_t)s->entry;
    if (s->entries > SHOAL_KEPT_ROWS) s->entries = SHOAL_KEPT_ROWS;
    if (s->entries < 1) s->entries = 1;
    pthread_rwlock_wrlock(&t->lock);
    s->rows = t->next_row;
    s->seen = calloc(s->rows / 64u + 1u, sizeof *s->seen);
    const int begun = s->seen && !t->snapshot;
    if (begun) {
        t->snapshot = s;
        shoal_snapshot_number(t);
    }
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

/* Keeps a copy; record: of a row, or NULL. */
static void shoal_snapshot_copy(shoal_store *t, uint64_t hash, uint64_t header, const char *record) {
    struct shoal_snapshot *s = t->snapshot;
    shoal_kept **list = record ? &s->kept : &s->counted;
    const size_t bytes = record ? s->entry : SHOAL_COUNTED_BYTES;
    const int64_t room = record ? s->entries : SHOAL_KEPT_ROWS;
    pthread_mutex_lock(&s->lock);
    if (!*list || (*list)->count == room) {
        shoal_kept *block = malloc(sizeof *block + (size_t)room * bytes);
        if (block) {
            block->next = *list;
            block->count = 0;
            *list = block;
        } else {
            __atomic_store_n(&s->failed, 1, __ATOMIC_RELAXED);
        }
    }
    if (!s->failed) {
        char *entry = (*list)->entries + (size_t)(*list)->count++ * bytes;
        memcpy(entry, &hash, 8);
        memcpy(entry + 8, &header, 8);
        if (record) memcpy(entry + 16, record, t->stride);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Call before a row is changed; meta: its header's place, header: its value unlocked. */
SHOAL_INLINE void shoal_preserve(shoal_store *t, const uint64_t *meta, uint64_t hash,
                                 uint64_t header) {
    if (SHOAL_UNLIKELY(t->census != NULL)) shoal_note_left(t, 1, hash, header);
    if (SHOAL_LIKELY(!t->snapshot)) return;
    const shoal_bucket *b = (const shoal_bucket *)((uintptr_t)meta & ~(uintptr_t)(SHOAL_LINE - 1));
    const uint32_t row = shoal_row_of(b->tag[meta - b->meta], header);
    if (shoal_snapshot_lacks(t->snapshot, row))
        shoal_snapshot_copy(t, hash, header, shoal_record(t, row));
}

/* Call before an entry that counts is changed; header: its value unlocked. Returns it with the
 * number of the snapshot, which has the entry now. Its lock, or the structure lock exclusively,
 * is held. */
SHOAL_INLINE uint64_t shoal_preserve_count(shoal_store *t, uint64_t hash, uint64_t header) {
    if (SHOAL_UNLIKELY(t->census != NULL)) shoal_note_left(t, 0, hash, header);
    if (SHOAL_LIKELY(!t->snapshot) || shoal_snapshot_of(header) == t->snapshots) return header;
    shoal_snapshot_copy(t, hash, header, NULL);
    return shoal_count_meta(t->snapshots, shoal_uses_of(header), shoal_version_of(header));
}

#endif
