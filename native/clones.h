/* Compiler vocabulary of the kernels: run-time dispatch, inlining, prefetch, named numbers.
 *
 * Owns no kernel. Every hot function is compiled once per instruction set by the
 * compiler (target_clones) and chosen when the extension is loaded, so one wheel
 * runs everywhere without -march. The build sets -ffp-contract=off: without it
 * the AVX clones would fuse multiply and add and a row's initial value, or a
 * trained weight, would depend on the machine that computed it.
 */
#ifndef SHOAL_CLONES_H
#define SHOAL_CLONES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Sanitizers instrument the dispatch itself, which runs before they are set up,
 * so they get the baseline code; AArch64 has NEON in its baseline. */
#if (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)) && !defined(SHOAL_NO_CLONES)
#define SHOAL_NO_CLONES
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(SHOAL_NO_CLONES)
#define SHOAL_HAS_LEVELS 1
#endif
#if defined(SHOAL_HAS_LEVELS) && defined(__GLIBC__)
#define SHOAL_CLONES \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHOAL_CLONES
#endif

#ifdef SHOAL_HAS_LEVELS
/* Every choice of a clone first calls libgcc's __cpu_indicator_init, which the linker leads here
 * (setup.py). SHOAL_CPU=x86-64-v3 or x86-64-v2 in the environment then takes the newer levels
 * away, so that their code is tested on any machine. The bits are those of the interface between
 * libgcc and the compiler. No function of another library may be called: the choice is made while
 * the extension is being linked. */
extern char **environ;
extern unsigned __cpu_features2[];
int __real___cpu_indicator_init(void);

static int shoal_is_entry(const char *entry, const char *wanted) {
    while (*wanted && *entry == *wanted) entry++, wanted++;
    return *entry == *wanted;
}

__attribute__((visibility("hidden"))) int __wrap___cpu_indicator_init(void) {
    enum { WORD = 2, V3 = 1 << (97 - 96), V4 = 1 << (98 - 96) };
    const int result = __real___cpu_indicator_init();
    for (char **entry = environ; entry && *entry; entry++) {
        if (shoal_is_entry(*entry, "SHOAL_CPU=x86-64-v3")) __cpu_features2[WORD] &= ~V4;
        if (shoal_is_entry(*entry, "SHOAL_CPU=x86-64-v2")) __cpu_features2[WORD] &= ~(V3 | V4);
    }
    return result;
}
#endif

#define SHOAL_INLINE static inline __attribute__((always_inline))
/* A function that ThreadSanitizer does not look into, as it reads what another thread may be
 * writing, or touches it: by design, which is to be said where this stands. All other accesses
 * of the kernels are checked. */
#ifdef __SANITIZE_THREAD__
#define SHOAL_RACY __attribute__((noinline, no_sanitize("thread")))
#else
#define SHOAL_RACY
#endif
#define SHOAL_LIKELY(x) __builtin_expect(!!(x), 1)
#define SHOAL_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SHOAL_LINE 64 /* bytes in a cache line */

/* Into the second-level cache: it can have more misses in flight than the first. */
SHOAL_INLINE void shoal_prefetch(const void *address) { __builtin_prefetch(address, 0, 2); }

/* A list of numbers with the names that they have in Python: as an enumeration, and as names
 * in its order (kernels.pxd). */
#define SHOAL_NUMBER(number, name) number,
#define SHOAL_NAME(number, name) #name,

/* Run `call` with its dimension argument `n` as a compile-time constant for the
 * common widths, so that the loop over a row unrolls to whole vectors. */
#define SHOAL_WITH_CONSTANT_DIM(dim, call)             \
    switch (dim) {                                     \
        case 1: { enum { n = 1 }; call; } break;       \
        case 4: { enum { n = 4 }; call; } break;       \
        case 8: { enum { n = 8 }; call; } break;       \
        case 16: { enum { n = 16 }; call; } break;     \
        case 32: { enum { n = 32 }; call; } break;     \
        case 64: { enum { n = 64 }; call; } break;     \
        case 128: { enum { n = 128 }; call; } break;   \
        default: { const int64_t n = (dim); call; }    \
    }

#endif
