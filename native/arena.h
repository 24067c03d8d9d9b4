/* Memory of one store: blocks of two sizes (index segments, row chunks).
 *
 * Blocks never move. They are cut from large mappings that ask for huge pages
 * (design.md measured 1.3x on random rows), so a store has few mappings however
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

typedef struct {
    char *start; /* aligned to a huge page */
    void *mapping;
    size_t mapped;
} shoal_region;

typedef struct {
    void **items;
    size_t count, capacity;
} shoal_blocks;

typedef struct {
    pthread_mutex_t lock;
    size_t block_bytes[SHOAL_BLOCK_SIZES];
    shoal_region *regions;
    size_t region_count;
    char *cursor, *end;
    size_t total; /* bytes cut so far, free blocks included */
    size_t idle;  /* bytes in free blocks, given back to the system */
    shoal_blocks free[SHOAL_BLOCK_SIZES];
} shoal_arena;

static int shoal_arena_init(shoal_arena *a, size_t segment_bytes, size_t chunk_bytes) {
    memset(a, 0, sizeof *a);
    a->block_bytes[SHOAL_SEGMENT] = segment_bytes;
    a->block_bytes[SHOAL_CHUNK] = chunk_bytes;
    return pthread_mutex_init(&a->lock, NULL) == 0;
}

static void shoal_arena_destroy(shoal_arena *a) {
    for (size_t i = 0; i < a->region_count; i++) munmap(a->regions[i].mapping, a->regions[i].mapped);
    free(a->regions);
    for (int k = 0; k < SHOAL_BLOCK_SIZES; k++) free(a->free[k].items);
    pthread_mutex_destroy(&a->lock);
}

/* Reserves address space only: pages become resident when a block is written. */
static int shoal_arena_extend(shoal_arena *a, size_t need) {
    size_t size = a->total / 8;
    if (size < SHOAL_HUGE_PAGE) size = SHOAL_HUGE_PAGE;
    if (size > ((size_t)256 << 20)) size = (size_t)256 << 20;
    if (size < need) size = need;
    size = (size + SHOAL_HUGE_PAGE - 1) & ~(SHOAL_HUGE_PAGE - 1);
    shoal_region *grown = realloc(a->regions, (a->region_count + 1) * sizeof *grown);
    if (!grown) return 0;
    a->regions = grown;
    shoal_region *r = &grown[a->region_count];
    r->mapped = size + SHOAL_HUGE_PAGE;
    r->mapping = mmap(NULL, r->mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->mapping == MAP_FAILED) return 0;
    r->start = (char *)(((uintptr_t)r->mapping + SHOAL_HUGE_PAGE - 1) & ~(SHOAL_HUGE_PAGE - 1));
#ifdef MADV_HUGEPAGE
    madvise(r->start, size, MADV_HUGEPAGE); /* a wish: small pages are slower, not wrong */
#endif
    a->region_count++;
    a->cursor = r->start;
    a->end = r->start + size;
    return 1;
}

/* A zeroed block, or NULL. */
static void *shoal_arena_take(shoal_arena *a, int kind) {
    size_t bytes = a->block_bytes[kind];
    void *block = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->free[kind].count) {
        block = a->free[kind].items[--a->free[kind].count];
        a->idle -= bytes;
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
    a->idle += bytes;
    pthread_mutex_unlock(&a->lock);
}

#endif
