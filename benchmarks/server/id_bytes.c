/* Distinct ids as fewer bytes: sorted differences as varints, and five bytes each. See id_bytes.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DIGIT = 11, VALUES = 1 << DIGIT };

/* Sorts ids by value, with the place of each: least digit first. Returns where they lie. */
static uint64_t *sorted(uint64_t *ids, uint32_t *places, uint64_t *more, uint32_t *other, int64_t n) {
    uint64_t all = 0;
    for (int64_t i = 0; i < n; i++) all |= ids[i];
    for (int shift = 0; shift < 64 && all >> shift; shift += DIGIT) {
        uint32_t begins[VALUES] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++) begins[ids[i] >> shift & (VALUES - 1)]++;
        for (int v = 0; v < VALUES; v++) {
            const uint32_t count = begins[v];
            begins[v] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) {
            const uint32_t to = begins[ids[i] >> shift & (VALUES - 1)]++;
            more[to] = ids[i];
            other[to] = places[i];
        }
        uint64_t *const swapped = ids;
        uint32_t *const swapped_places = places;
        ids = more, more = swapped;
        places = other, other = swapped_places;
    }
    return ids;
}

/* The worker's end. inverse: of each of `calls` occurrences, the place of its id; made that of the
 * sorted ones. Returns the bytes written to out, of 10 * n. */
int64_t pack_differences(const uint64_t *ids, int64_t n, int32_t *inverse, int64_t calls, uint8_t *out) {
    uint64_t *const a = malloc(16 * (size_t)n);
    uint32_t *const p = malloc(12 * (size_t)n), *const rank = p + 2 * n;
    uint8_t *at = out;
    memcpy(a, ids, 8 * (size_t)n);
    for (int64_t i = 0; i < n; i++) p[i] = (uint32_t)i;
    const uint64_t *const found = sorted(a, p, a + n, p + n, n);
    const uint32_t *const places = found == a ? p : p + n;
    for (int64_t i = 0; i < n; i++) rank[places[i]] = (uint32_t)i;
    for (int64_t i = 0; i < calls; i++) inverse[i] = (int32_t)rank[inverse[i]];
    uint64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t step = found[i] - last;
        last = found[i];
        for (; step > 127; step >>= 7) *at++ = (uint8_t)(step | 128);
        *at++ = (uint8_t)step;
    }
    free(a);
    free(p);
    return at - out;
}

/* The server's end. */
void unpack_differences(const uint8_t *in, int64_t n, uint64_t *out) {
    uint64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        uint64_t step = 0;
        int shift = 0;
        for (; *in > 127; shift += 7) step |= (uint64_t)(*in++ & 127) << shift;
        last += step | (uint64_t)*in++ << shift;
        out[i] = last;
    }
}

/* The worker's end; -1: an id does not fit. out has 8 bytes more than 5 * n. */
int64_t pack_five(const uint64_t *ids, int64_t n, uint8_t *out) {
    uint64_t all = 0;
    for (int64_t i = 0; i < n; i++) {
        all |= ids[i];
        memcpy(out + 5 * i, &ids[i], 8);
    }
    return all >> 40 ? -1 : 5 * n;
}

/* The server's end. in has 8 bytes more than 5 * n. */
void unpack_five(const uint8_t *in, int64_t n, uint64_t *out) {
    for (int64_t i = 0; i < n; i++) {
        memcpy(&out[i], in + 5 * i, 8);
        out[i] &= ((uint64_t)1 << 40) - 1;
    }
}
