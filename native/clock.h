/* The clock of deadlines and durations. */
#ifndef SHOAL_CLOCK_H
#define SHOAL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline double shoal_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9; /* as time.monotonic */
}

#endif
