/* Keeps updates of --sync and pulls apart, of which each is to see whole updates: pulls go side by
 * side, and an update goes alone, before pulls that come later.
 */
#ifndef SHOAL_WHOLE_H
#define SHOAL_WHOLE_H

#include <pthread.h>
#include <stdint.h>

#include "clock.h"

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* by the clock of shoal_now */
    double seconds;         /* for which an update is waited for, at most; for good */
    int64_t update;         /* the last one that is applied; 0: none */
    int readers;
    int writing; /* an update is applied, or waits for readers */
} shoal_whole;

static int shoal_whole_init(shoal_whole *w, double seconds) {
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic)) return 0;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    const int made = !pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (made) pthread_mutex_init(&w->lock, NULL);
    w->seconds = seconds;
    return made;
}

static void shoal_whole_end(shoal_whole *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

/* Waits until this update is applied, for w->seconds at most, and none is under way. */
static void shoal_enter_reading(shoal_whole *w, int64_t after) {
    const double until = shoal_now() + w->seconds;
    const struct timespec end = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
    pthread_mutex_lock(&w->lock);
    for (;;) {
        const int waits = w->update < after && shoal_now() < until;
        if (waits) pthread_cond_timedwait(&w->changed, &w->lock, &end);
        else if (w->writing) pthread_cond_wait(&w->changed, &w->lock);
        else break;
    }
    w->readers++;
    pthread_mutex_unlock(&w->lock);
}

static void shoal_leave_reading(shoal_whole *w) {
    pthread_mutex_lock(&w->lock);
    if (!--w->readers && w->writing) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void shoal_enter_writing(shoal_whole *w) {
    pthread_mutex_lock(&w->lock);
    while (w->writing) pthread_cond_wait(&w->changed, &w->lock);
    w->writing = 1;
    while (w->readers) pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void shoal_leave_writing(shoal_whole *w) {
    pthread_mutex_lock(&w->lock);
    w->writing = 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Has this one be the last that is applied. Who waits for it goes on when it is left. */
static void shoal_note_update(shoal_whole *w, int64_t update) {
    pthread_mutex_lock(&w->lock);
    w->update = update;
    if (!w->writing) pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static int64_t shoal_last_update(shoal_whole *w) {
    pthread_mutex_lock(&w->lock);
    const int64_t update = w->update;
    pthread_mutex_unlock(&w->lock);
    return update;
}

#endif
