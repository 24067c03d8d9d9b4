/* Fingerprint64 of FarmHash, of which tf.strings.to_hash_bucket_fast makes its buckets.
 *
 * A function of the bytes alone: the same on every machine and in every version. Rows of trained
 * tables are found again by it, so it must never change. From Geoff Pike's description of FarmHash
 * (github.com/google/farmhash, farmhashna). Words are read as little-endian.
 */
#ifndef SHOAL_FINGERPRINT_H
#define SHOAL_FINGERPRINT_H

#include "clones.h"

#define SHOAL_FARM_0 0xC3A5C85C97CB3127ULL
#define SHOAL_FARM_1 0xB492B66FBE98F273ULL
#define SHOAL_FARM_2 0x9AE16A3B2F90404FULL

typedef struct {
    uint64_t first, second;
} shoal_two;

SHOAL_INLINE uint64_t shoal_word64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

SHOAL_INLINE uint64_t shoal_word32(const uint8_t *at) {
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

SHOAL_INLINE uint64_t shoal_turned(uint64_t x, int by) { return x >> by | x << (64 - by); }

SHOAL_INLINE uint64_t shoal_folded(uint64_t x) { return x ^ x >> 47; }

SHOAL_INLINE uint64_t shoal_joined(uint64_t u, uint64_t v, uint64_t factor) {
    const uint64_t a = shoal_folded((u ^ v) * factor);
    return shoal_folded((v ^ a) * factor) * factor;
}

static uint64_t shoal_fingerprint_16(const uint8_t *s, uint64_t n) {
    const uint64_t factor = SHOAL_FARM_2 + 2 * n;
    if (n >= 8) {
        const uint64_t a = shoal_word64(s) + SHOAL_FARM_2, b = shoal_word64(s + n - 8);
        const uint64_t c = shoal_turned(b, 37) * factor + a;
        return shoal_joined(c, (shoal_turned(a, 25) + b) * factor, factor);
    }
    if (n >= 4) return shoal_joined(n + (shoal_word32(s) << 3), shoal_word32(s + n - 4), factor);
    if (n == 0) return SHOAL_FARM_2;
    const uint64_t low = s[0] + ((uint64_t)s[n >> 1] << 8), high = n + ((uint64_t)s[n - 1] << 2);
    return shoal_folded(low * SHOAL_FARM_2 ^ high * SHOAL_FARM_0) * SHOAL_FARM_2;
}

/* Of two words at each end; `first` says by what the first is multiplied. */
SHOAL_INLINE shoal_two shoal_ends(const uint8_t *s, uint64_t n, uint64_t first, uint64_t factor) {
    const uint64_t a = shoal_word64(s) * first, b = shoal_word64(s + 8);
    const uint64_t c = shoal_word64(s + n - 8) * factor, d = shoal_word64(s + n - 16) * SHOAL_FARM_2;
    return (shoal_two){shoal_turned(a + b, 43) + shoal_turned(c, 30) + d,
                       a + shoal_turned(b + SHOAL_FARM_2, 18) + c};
}

static uint64_t shoal_fingerprint_32(const uint8_t *s, uint64_t n) {
    const uint64_t factor = SHOAL_FARM_2 + 2 * n;
    const shoal_two ends = shoal_ends(s, n, SHOAL_FARM_1, factor);
    return shoal_joined(ends.first, ends.second, factor);
}

static uint64_t shoal_fingerprint_64(const uint8_t *s, uint64_t n) {
    const uint64_t factor = SHOAL_FARM_2 + 2 * n, a = shoal_word64(s) * SHOAL_FARM_2;
    const shoal_two ends = shoal_ends(s, n, SHOAL_FARM_2, factor);
    const uint64_t z = shoal_joined(ends.first, ends.second, factor);
    const uint64_t e = shoal_word64(s + 16) * factor, f = shoal_word64(s + 24);
    const uint64_t g = (ends.first + shoal_word64(s + n - 32)) * factor;
    const uint64_t h = (z + shoal_word64(s + n - 24)) * factor;
    return shoal_joined(shoal_turned(e + f, 43) + shoal_turned(g, 30) + h,
                        e + shoal_turned(f + a, 18) + g, factor);
}

/* Four words mixed into two seeds. */
SHOAL_INLINE shoal_two shoal_seeded(const uint8_t *s, uint64_t a, uint64_t b) {
    const uint64_t last = shoal_word64(s + 24), start = a + shoal_word64(s);
    const uint64_t sum = start + shoal_word64(s + 8) + shoal_word64(s + 16);
    return (shoal_two){sum + last, shoal_turned(b + start + last, 21) + shoal_turned(sum, 44) + start};
}

typedef struct {
    uint64_t x, y, z;
    shoal_two v, w;
} shoal_farm;

/* 64 bytes mixed into the state. times: 1, of the last ones 9. */
SHOAL_INLINE void shoal_mix_block(shoal_farm *t, const uint8_t *s, uint64_t factor, uint64_t times) {
    const uint64_t x =
        shoal_turned(t->x + t->y + t->v.first + shoal_word64(s + 8), 37) * factor ^ t->w.second * times;
    const uint64_t y = shoal_turned(t->y + t->v.second + shoal_word64(s + 48), 42) * factor +
                       t->v.first * times + shoal_word64(s + 40);
    const uint64_t z = shoal_turned(t->z + t->w.first, 33) * factor;
    t->v = shoal_seeded(s, t->v.second * factor, x + t->w.first);
    t->w = shoal_seeded(s + 32, z + t->w.second, y + shoal_word64(s + 16));
    t->x = z;
    t->y = y;
    t->z = x;
}

static uint64_t shoal_fingerprint(const uint8_t *s, uint64_t n) {
    if (n <= 16) return shoal_fingerprint_16(s, n);
    if (n <= 32) return shoal_fingerprint_32(s, n);
    if (n <= 64) return shoal_fingerprint_64(s, n);
    const uint64_t seed = 81, y = seed * SHOAL_FARM_1 + 113, rest = (n - 1) & 63;
    shoal_farm t = {.x = seed * SHOAL_FARM_2 + shoal_word64(s),
                    .y = y,
                    .z = shoal_folded(y * SHOAL_FARM_2 + 113) * SHOAL_FARM_2};
    const uint8_t *const end = s + (n - 1 - rest);
    for (; s != end; s += 64) shoal_mix_block(&t, s, SHOAL_FARM_1, 1);
    const uint64_t factor = SHOAL_FARM_1 + ((t.z & 0xFF) << 1);
    t.w.first += rest;
    t.v.first += t.w.first;
    t.w.first += t.v.first;
    shoal_mix_block(&t, end + rest - 63, factor, 9);
    return shoal_joined(
        shoal_joined(t.v.first, t.w.first, factor) + shoal_folded(t.y) * SHOAL_FARM_0 + t.z,
        shoal_joined(t.v.second, t.w.second, factor) + t.x, factor);
}

#endif
