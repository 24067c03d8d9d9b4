/* Memory of one store: blocks of two sizes (index segments, row chunks).
 *
 * Blocks never move. They are cut from large mappings that ask for huge pages
 * (worth 1.3x on random rows), so a store has few mappings however
 * large it grows. Freed blocks go back to the system at once (their pages are
 * dropped) and to a list for reuse.
 */
#ifndef SHOAL_ARENA_H
#define SHOAL_ARENA_H

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "clones.h"

enum { SHOAL_SEGMENT = 0, SHOAL_CHUNK = 1, SHOAL_BLOCK_SIZES = 2 };
#define SHOAL_HUGE_PAGE ((size_t)2 << 20)

/* Zeroed address space, resident page by page as it is written. */
typedef struct {
    char *start; /* aligned to a huge page if the size is one or more; NULL: none */
    void *mapping;
    size_t mapped;
} shoal_mapping;

static int shoal_map(shoal_mapping *m, size_t bytes) {
    const int huge = bytes >= SHOAL_HUGE_PAGE;
    m->mapped = huge ? bytes + SHOAL_HUGE_PAGE : bytes;
    m->mapping = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    m->start = NULL;
    if (m->mapping == MAP_FAILED) return 0;
    m->start = (char *)m->mapping;
    if (!huge) return 1;
    m->start += -(uintptr_t)m->start & (SHOAL_HUGE_PAGE - 1);
#ifdef MADV_HUGEPAGE
    madvise(m->start, bytes, MADV_HUGEPAGE); /* a wish: small pages are slower, not wrong */
#endif
    return 1;
}

/* Bytes of a mapping that are in memory. Asked of the system: whether a touched page
 * is 4 KiB or 2 MiB is its choice, and what was dropped it alone knows. */
static size_t shoal_resident(char *start, size_t bytes) {
    enum { PAGES = 4096 };
    const size_t page = 4096;
    unsigned char present[PAGES];
    size_t total = 0;
    for (size_t at = 0; start && at < bytes; at += PAGES * page) {
        size_t length = bytes - at < PAGES * page ? bytes - at : PAGES * page;
        size_t pages = (length + page - 1) / page;
        if (mincore(start + at, length, present)) return bytes; /* not to be had: all of it */
        for (size_t i = 0; i < pages; i++) total += (present[i] & 1u) * page;
    }
    return total;
}

static void shoal_unmap(shoal_mapping *m) {
    if (m->start) munmap(m->mapping, m->mapped);
    m->start = NULL;
}

typedef struct {
    void **items;
    size_t count, capacity;
} shoal_blocks;

typedef struct {
    pthread_mutex_t lock;
    size_t block_bytes[SHOAL_BLOCK_SIZES];
    shoal_mapping *regions;
    size_t region_count;
    char *cursor, *ready, *end; /* free from cursor on; pages are resident up to ready */
    size_t total; /* bytes cut so far, free blocks included */
    shoal_blocks free[SHOAL_BLOCK_SIZES];
} shoal_arena;

static int shoal_arena_init(shoal_arena *a, size_t segment_bytes, size_t chunk_bytes) {
    memset(a, 0, sizeof *a);
    a->block_bytes[SHOAL_SEGMENT] = segment_bytes;
    a->block_bytes[SHOAL_CHUNK] = chunk_bytes;
    return pthread_mutex_init(&a->lock, NULL) == 0;
}

static void shoal_arena_destroy(shoal_arena *a) {
    for (size_t i = 0; i < a->region_count; i++) shoal_unmap(&a->regions[i]);
    free(a->regions);
    for (int k = 0; k < SHOAL_BLOCK_SIZES; k++) free(a->free[k].items);
    pthread_mutex_destroy(&a->lock);
}

/* Bytes in memory. Regions stay until the arena is destroyed, so that the lock need not
 * be held while the system is asked, which takes milliseconds for gigabytes. */
static size_t shoal_arena_resident(shoal_arena *a) {
    size_t bytes = 0;
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&a->lock);
        const size_t count = a->region_count;
        shoal_mapping region = {0};
        if (i < count) region = a->regions[i];
        pthread_mutex_unlock(&a->lock);
        if (i >= count) return bytes + count * sizeof *a->regions;
        bytes += shoal_resident(region.start, region.mapped - SHOAL_HUGE_PAGE);
    }
}

/* Reserves address space only: pages become resident when a block is written. */
static int shoal_arena_extend(shoal_arena *a, size_t need) {
    size_t size = a->total / 8;
    if (size < SHOAL_HUGE_PAGE) size = SHOAL_HUGE_PAGE;
    if (size > ((size_t)256 << 20)) size = (size_t)256 << 20;
    if (size < need) size = need;
    size = (size + SHOAL_HUGE_PAGE - 1) & ~(SHOAL_HUGE_PAGE - 1);
    shoal_mapping *grown = realloc(a->regions, (a->region_count + 1) * sizeof *grown);
    if (!grown) return 0;
    a->regions = grown;
    shoal_mapping *r = &grown[a->region_count];
    if (!shoal_map(r, size)) return 0;
    a->region_count++;
    a->cursor = a->ready = r->start;
    a->end = r->start + size;
    return 1;
}

/* Adds nothing to a word of each page. Whoever has taken a block meanwhile may be writing it. */
SHOAL_RACY static void shoal_touch(char *from, const char *to) {
    for (; from < to; from += 4096) __atomic_fetch_or((uint64_t *)from, 0, __ATOMIC_RELAXED);
}

/* Makes the pages of the next blocks resident, so that whoever takes them later,
 * holding locks, does not wait for the system to clear them (0.1 ms or more each).
 * The touch changes nothing: a block may have been taken meanwhile. */
static void shoal_arena_prepare(shoal_arena *a) {
    const size_t need = a->block_bytes[SHOAL_CHUNK] + 2 * a->block_bytes[SHOAL_SEGMENT];
    pthread_mutex_lock(&a->lock);
    char *from = a->ready, *to = a->cursor + need < a->end ? a->cursor + need : a->end;
    int touch = from < to;
    if (touch) {
        to = (char *)(((uintptr_t)to + SHOAL_HUGE_PAGE - 1) & ~(SHOAL_HUGE_PAGE - 1));
        a->ready = to;
    }
    pthread_mutex_unlock(&a->lock);
    if (touch) shoal_touch(from, to);
}

/* A zeroed block, or NULL. */
static void *shoal_arena_take(shoal_arena *a, int kind) {
    size_t bytes = a->block_bytes[kind];
    void *block = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->free[kind].count) {
        block = a->free[kind].items[--a->free[kind].count];
    } else if ((size_t)(a->end - a->cursor) >= bytes || shoal_arena_extend(a, bytes)) {
        block = a->cursor;
        a->cursor += bytes;
        a->total += bytes;
    }
    pthread_mutex_unlock(&a->lock);
    return block;
}

/* Pages wholly inside the block are dropped, the rest is cleared: both read as
 * zero when the block is taken again. */
static void shoal_arena_give(shoal_arena *a, int kind, void *block) {
    const uintptr_t page = 4096;
    size_t bytes = a->block_bytes[kind];
    char *start = (char *)block, *end = start + bytes;
    char *first = (char *)(((uintptr_t)start + page - 1) & ~(page - 1));
    char *last = (char *)((uintptr_t)end & ~(page - 1));
    if (first < last && madvise(first, (size_t)(last - first), MADV_DONTNEED) == 0) {
        memset(start, 0, (size_t)(first - start));
        memset(last, 0, (size_t)(end - last));
    } else {
        memset(start, 0, bytes);
    }
    pthread_mutex_lock(&a->lock);
    shoal_blocks *list = &a->free[kind];
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        void **items = realloc(list->items, capacity * sizeof *items);
        if (!items) { /* the block is lost to reuse, not to correctness */
            pthread_mutex_unlock(&a->lock);
            return;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = block;
    pthread_mutex_unlock(&a->lock);
}

#endif
