/* The one hash of the project: splitmix64, and its inverse.
 *
 * Bits 50..63 route an id to a server (16,384 slots). A store places its rows by the hash
 * of the id and a key of its own (store.h), and so does the search for distinct ids (batch.h).
 * Nobody outside the process knows the keys: ids could be chosen to fall into one place otherwise. The function is a bijection, which
 * lets a bucket keep 52 bits of the hash instead of the id.
 */
#ifndef SHOAL_MIXING_H
#define SHOAL_MIXING_H

#include "clones.h"

#define SHOAL_SLOT_BITS 14
#define SHOAL_GOLDEN 0x9E3779B97F4A7C15ULL

/* Steele, Lea and Flood (2014), constants of Stafford's variant 13. */
SHOAL_INLINE uint64_t shoal_mix64(uint64_t x) {
    x += SHOAL_GOLDEN;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

/* The multipliers are the inverses of those above modulo 2^64. */
SHOAL_INLINE uint64_t shoal_unmix64(uint64_t x) {
    x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642B2D24D8EC3ULL;
    x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96DE1B173F119089ULL;
    return (x ^ (x >> 30) ^ (x >> 60)) - SHOAL_GOLDEN;
}

SHOAL_INLINE uint32_t shoal_slot(uint64_t hash) { return (uint32_t)(hash >> (64 - SHOAL_SLOT_BITS)); }

#endif
