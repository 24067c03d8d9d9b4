/* The row store: stripes, their rows, locks and memory.
 *
 * A store has 2^k stripes, each with a lock, an index (index.h) and its rows in
 * chunks that never move. A chunk holds the values of its rows, then their
 * slots. Which rows a batch touches, and in what order, is traffic.h; iteration,
 * removal and compaction are scan.h.
 */
#ifndef SHOAL_STORE_H
#define SHOAL_STORE_H

#include "apply.h"
#include "index.h"
#include "initial.h"

enum { SHOAL_MAX_SLOTS = 3 };
#define SHOAL_CHUNK_TARGET ((size_t)32 << 10) /* bytes of values in a chunk, about */

typedef struct {
    pthread_mutex_t lock;
    shoal_index index;
    char **chunks;
    uint32_t chunk_count, chunk_room;
    uint32_t next_row;    /* rows ever used; free ones included */
    uint32_t *free_rows;
    uint32_t free_count, free_room;
} __attribute__((aligned(64))) shoal_stripe;

typedef struct {
    int64_t dim;
    int format;               /* of the values: SHOAL_FLOAT32, ... */
    int slots;                /* optimizer slots per row */
    int64_t slot_width;       /* floats in each: dim, or 1 */
    float slot_initial[SHOAL_MAX_SLOTS];
    shoal_initial initial;
    float default_value;
    uint64_t noise_key;
    size_t value_stride, slot_stride; /* bytes from a row's to the next one's */
    size_t slot_offset;       /* bytes from a chunk's start to its first slots */
    uint32_t chunk_shift;     /* 1 << chunk_shift rows in a chunk */
    uint32_t stripe_count, stripe_shift;
    shoal_stripe *stripes;
    shoal_arena arena;
    char *nursery;            /* every stripe's first chunk, in small pages */
    size_t nursery_bytes;
} shoal_store;

SHOAL_INLINE char *shoal_value(const shoal_store *t, const shoal_stripe *s, uint32_t row) {
    uint32_t within = row & ((1u << t->chunk_shift) - 1u);
    return s->chunks[row >> t->chunk_shift] + within * t->value_stride;
}

SHOAL_INLINE float *shoal_slots(const shoal_store *t, const shoal_stripe *s, uint32_t row) {
    uint32_t within = row & ((1u << t->chunk_shift) - 1u);
    return (float *)(s->chunks[row >> t->chunk_shift] + t->slot_offset + within * t->slot_stride);
}

SHOAL_INLINE void shoal_lock(shoal_stripe *s) { pthread_mutex_lock(&s->lock); }
SHOAL_INLINE void shoal_unlock(shoal_stripe *s) { pthread_mutex_unlock(&s->lock); }

static size_t shoal_round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static void shoal_store_destroy(shoal_store *t) {
    if (!t) return;
    for (uint32_t i = 0; t->stripes && i < t->stripe_count; i++) {
        shoal_stripe *s = &t->stripes[i];
        shoal_index_destroy(&s->index);
        free(s->chunks);
        free(s->free_rows);
        pthread_mutex_destroy(&s->lock);
    }
    free(t->stripes);
    if (t->nursery) munmap(t->nursery, t->nursery_bytes);
    shoal_arena_destroy(&t->arena);
    free(t);
}

/* dim >= 1; stripes a power of two from 256: the caller has checked. NULL: no memory. */
static shoal_store *shoal_store_create(int64_t dim, int format, int slots, int64_t slot_width,
                                       const float *slot_initial, shoal_initial initial,
                                       float default_value, uint64_t noise_key,
                                       uint32_t stripes) {
    shoal_store *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->dim = dim;
    t->format = format;
    t->slots = slots;
    t->slot_width = slot_width;
    for (int k = 0; k < slots; k++) t->slot_initial[k] = slot_initial[k];
    t->initial = initial;
    t->default_value = default_value;
    t->noise_key = noise_key;
    t->value_stride = (size_t)dim * (format == SHOAL_FLOAT32 ? 4 : 2);
    t->slot_stride = (size_t)slots * (size_t)slot_width * 4;
    uint32_t shift = 4;
    while (shift < 12 && (t->value_stride << shift) < SHOAL_CHUNK_TARGET) shift++;
    t->chunk_shift = shift;
    t->slot_offset = shoal_round_up(t->value_stride << shift, SHOAL_LINE);
    size_t chunk_bytes = shoal_round_up(t->slot_offset + (t->slot_stride << shift), SHOAL_LINE);
    t->stripe_count = stripes;
    t->stripe_shift = (uint32_t)__builtin_ctz(stripes);
    if (!shoal_arena_init(&t->arena, SHOAL_SEGMENT_BUCKETS * sizeof(shoal_bucket), chunk_bytes)) {
        free(t);
        return NULL;
    }
    /* Resident page by page: a small table must not cost 256 whole chunks. */
    t->nursery_bytes = shoal_round_up(chunk_bytes * stripes, 4096);
    void *nursery = mmap(NULL, t->nursery_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *memory = NULL;
    if (nursery == MAP_FAILED ||
        posix_memalign(&memory, SHOAL_LINE, stripes * sizeof(shoal_stripe))) {
        if (nursery != MAP_FAILED) munmap(nursery, t->nursery_bytes);
        shoal_store_destroy(t);
        return NULL;
    }
#ifdef MADV_NOHUGEPAGE
    madvise(nursery, t->nursery_bytes, MADV_NOHUGEPAGE);
#endif
    t->nursery = nursery;
    t->stripes = memory;
    memset(t->stripes, 0, stripes * sizeof(shoal_stripe));
    int ready = 1;
    for (uint32_t i = 0; i < stripes; i++) {
        shoal_stripe *s = &t->stripes[i];
        pthread_mutex_init(&s->lock, NULL);
        ready = ready && shoal_index_init(&s->index, t->stripe_shift);
        s->chunks = malloc(sizeof *s->chunks);
        ready = ready && s->chunks;
        if (!ready) continue;
        s->chunk_room = s->chunk_count = 1;
        s->chunks[0] = t->nursery + i * chunk_bytes;
    }
    if (ready) return t;
    shoal_store_destroy(t);
    return NULL;
}

/* Bytes this store keeps resident: pages handed out, index, directories, stripes.
 * Huge pages are resident whole, so arena blocks count in full; the nursery
 * counts the pages that its rows reach. */
static size_t shoal_store_memory(shoal_store *t) {
    const size_t page = 4096;
    size_t bytes = sizeof *t + t->stripe_count * sizeof(shoal_stripe);
    for (uint32_t i = 0; i < t->stripe_count; i++) {
        shoal_stripe *s = &t->stripes[i];
        shoal_lock(s);
        size_t places = (size_t)1 << s->index.depth;
        bytes += places * (sizeof(void *) + sizeof(uint32_t) + 1);
        if (s->index.bucket_mask + 1 < SHOAL_SEGMENT_BUCKETS)
            bytes += (s->index.bucket_mask + 1) * sizeof(shoal_bucket);
        bytes += s->chunk_room * sizeof(void *) + s->free_room * sizeof(uint32_t);
        size_t rows = s->next_row < 1u << t->chunk_shift ? s->next_row : 1u << t->chunk_shift;
        bytes += shoal_round_up(rows * t->value_stride, page);
        bytes += shoal_round_up(rows * t->slot_stride, page);
        shoal_unlock(s);
    }
    pthread_mutex_lock(&t->arena.lock);
    bytes += t->arena.total - t->arena.idle;
    pthread_mutex_unlock(&t->arena.lock);
    return bytes;
}

static int64_t shoal_store_count(shoal_store *t) {
    int64_t rows = 0;
    for (uint32_t i = 0; i < t->stripe_count; i++) {
        shoal_lock(&t->stripes[i]);
        rows += t->stripes[i].index.live;
        shoal_unlock(&t->stripes[i]);
    }
    return rows;
}

/* A row number that is free, its chunk present; SHOAL_MAX_ROWS: none to be had. */
static uint32_t shoal_take_row(shoal_store *t, shoal_stripe *s) {
    if (s->free_count) return s->free_rows[--s->free_count];
    if (s->next_row >= SHOAL_MAX_ROWS) return SHOAL_MAX_ROWS;
    if (s->next_row >> t->chunk_shift >= s->chunk_count) {
        if (s->chunk_count == s->chunk_room) {
            uint32_t room = s->chunk_room + s->chunk_room / 2 + 4;
            char **chunks = realloc(s->chunks, room * sizeof *chunks);
            if (!chunks) return SHOAL_MAX_ROWS;
            s->chunks = chunks;
            s->chunk_room = room;
        }
        char *chunk = shoal_arena_take(&t->arena, SHOAL_CHUNK);
        if (!chunk) return SHOAL_MAX_ROWS;
        s->chunks[s->chunk_count++] = chunk;
    }
    return s->next_row++;
}

/* Initial values and slots of a row just taken. */
static void shoal_start_row(shoal_store *t, shoal_stripe *s, uint32_t row, int64_t id,
                            float *scratch) {
    char *value = shoal_value(t, s, row);
    float *slots = shoal_slots(t, s, row);
    if (t->format == SHOAL_FLOAT32) {
        shoal_fill_initial(&t->initial, id, (float *)value, t->dim);
    } else {
        shoal_fill_initial(&t->initial, id, scratch, t->dim);
        shoal_encode(scratch, value, t->dim, t->format);
    }
    for (int k = 0; k < t->slots; k++)
        for (int64_t i = 0; i < t->slot_width; i++) slots[k * t->slot_width + i] = t->slot_initial[k];
}

/* The entry of a hash, added with its initial row if absent; NULL bucket: no memory. */
static shoal_entry shoal_insert(shoal_store *t, shoal_stripe *s, uint64_t hash, float *scratch) {
    uint32_t row = shoal_take_row(t, s);
    if (row == SHOAL_MAX_ROWS) return (shoal_entry){NULL, 0};
    uint64_t stripe = hash & 0xFFu;
    shoal_entry e = shoal_index_add(&s->index, stripe, hash, row, 0, 0, &t->arena);
    if (!e.bucket) {
        if (row + 1 == s->next_row) s->next_row--;
        return e;
    }
    shoal_start_row(t, s, row, (int64_t)shoal_unmix64(hash), scratch);
    return e;
}

#endif
