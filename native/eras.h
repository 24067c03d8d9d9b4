/* Steps of 64 bits in headers of 32.
 *
 * A header has the step of the last use as a version, counted from the store's `base`. A store's
 * steps only rise, so the base follows them: each time an era of 2^30 steps begins it moves to the
 * beginning of the third era before. Steps of the last three eras and of this one are told
 * apart; older ones count as the base. The base is a function of the steps alone, so a store
 * that is restored has the same.
 */
#ifndef SHOAL_ERAS_H
#define SHOAL_ERAS_H

#include "snapshot.h"

enum { SHOAL_ERA_BITS = 30 };

SHOAL_INLINE int64_t shoal_base_at(int64_t step) {
    const int64_t era = step >> SHOAL_ERA_BITS;
    return era > 3 ? (era - 3) << SHOAL_ERA_BITS : 0;
}

SHOAL_INLINE uint64_t shoal_lowered(uint64_t header, uint64_t by) {
    const uint64_t version = shoal_version_of(header);
    return header - (version < by ? version : by);
}

static void shoal_lower_kept(shoal_kept *block, size_t bytes, uint64_t by) {
    for (; block; block = block->next)
        for (int64_t i = 0; i < block->count; i++) {
            char *place = block->entries + (size_t)i * bytes + 8;
            uint64_t header;
            memcpy(&header, place, 8);
            header = shoal_lowered(header, by);
            memcpy(place, &header, 8);
        }
}

/* Has the base be the one that `step` asks for, unless it is beyond that already. */
static void shoal_advance(shoal_store *t, int64_t step) {
    if (__atomic_load_n(&t->base, __ATOMIC_RELAXED) >= shoal_base_at(step)) return;
    pthread_rwlock_wrlock(&t->lock);
    if (t->base < shoal_base_at(step)) {
        const uint64_t by = (uint64_t)(shoal_base_at(step) - t->base);
        shoal_index *x = &t->index;
        for (uint64_t place = 0; place < 1ULL << x->depth; place++) {
            if (place >> x->local_depth[place]) continue; /* the segment came at its first place */
            shoal_bucket *segment = shoal_segment(x->directory[place]);
            for (uint32_t i = 0; i <= shoal_mask(x->directory[place]); i++)
                for (int k = 0; k < SHOAL_LANES; k++)
                    if (shoal_taken(segment[i].tag[k]))
                        segment[i].meta[k] = shoal_lowered(segment[i].meta[k], by);
        }
        struct shoal_snapshot *const s = t->snapshot;
        if (s) {
            pthread_mutex_lock(&s->lock);
            shoal_lower_kept(s->kept, s->entry, by);
            shoal_lower_kept(s->counted, SHOAL_COUNTED_BYTES, by);
        }
        /* Who reads copies holds the snapshot's lock alone: headers and base change together. */
        __atomic_store_n(&t->base, shoal_base_at(step), __ATOMIC_RELAXED);
        if (s) pthread_mutex_unlock(&s->lock);
    }
    pthread_rwlock_unlock(&t->lock);
}

#endif
