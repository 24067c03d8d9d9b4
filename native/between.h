/* What keeps pushes and sweeps apart: a part of a sweep is done between two pushes.
 *
 * Pushes that are applied without Python and those that Python applies enter here alike, and leave.
 * A push that is to have a part of a sweep behind it closes the way; whoever leaves last has the part
 * done and opens it again. The event clock's time is here too, as pushes move it in the order of their
 * steps. What a time does beyond that (another entry of a table's list, a sweep that falls due, a leap
 * that is to be confirmed) is ps/forgetting/clock.py's: such a push is not plain, and Python enters it.
 */
#ifndef SHOAL_BETWEEN_H
#define SHOAL_BETWEEN_H

#include "moments.h"

/* The most rows of a table, and the most ids that it counts. */
typedef struct {
    shoal_store *store;
    int64_t rows, counting;
} shoal_cap;

/* now: microseconds since 1970; SHOAL_NO_TIME before the first push that has one. until: a time from
 * here on is not plain. leap: nor is one that is further ahead; 0: however far. behind: pushes in a row
 * that were more than a leap behind. All but `now` and `behind` are as Python last said. */
typedef struct {
    int64_t now, until, leap, behind;
} shoal_clock;

#define SHOAL_NO_TIME INT64_MIN

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    shoal_moments *moments;
    int64_t under_way; /* pushes that entered and did not leave */
    int closed;        /* none enters */
    int64_t due_from;  /* behind a push of this step, or of a later one, there is a part to be done */
    int suspended;     /* and none however many rows there are */
    shoal_cap *caps;
    int cap_count;
    shoal_clock clock;
} shoal_between;

enum { SHOAL_ENTERED, SHOAL_NOT_PLAIN, SHOAL_NO_TICKET };

static int shoal_is_plain_time(const shoal_clock *c, int64_t time) {
    return c->now != SHOAL_NO_TIME && time < c->until && !(c->leap && time - c->now > c->leap);
}

/* `now` and `behind` are also read without the lock. */
static inline int64_t shoal_number(const int64_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline void shoal_set_number(int64_t *at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }

/* As EventClock.note, of a plain time. */
static void shoal_note_time(shoal_clock *c, int64_t time) {
    shoal_set_number(&c->behind, c->leap && c->now - time > c->leap ? c->behind + 1 : 0);
    if (time > c->now) shoal_set_number(&c->now, time);
}

/* Whether a table has more than its cap. Lock held. */
static int shoal_is_over(shoal_between *b) {
    for (int k = 0; k < b->cap_count && !b->suspended; k++) {
        const shoal_cap *cap = &b->caps[k];
        pthread_rwlock_rdlock(&cap->store->lock);
        const int over = cap->store->index.live > cap->rows || cap->store->index.counting > cap->counting;
        pthread_rwlock_unlock(&cap->store->lock);
        if (over) return 1;
    }
    return 0;
}

/* Waits until the way is open. Lock held. */
static void shoal_await_open(shoal_between *b) {
    while (b->closed) pthread_cond_wait(&b->opened, &b->lock);
}

/* Has a push with the ticket of this step be under way. Lock held. */
static void shoal_go(shoal_between *b, int64_t step) {
    b->under_way++;
    /* The others wait until all pushes up to this one are applied, and the part is done. */
    b->closed = step >= b->due_from;
}

/* Enters with the next ticket, as soon as the way is open. timed: the push has a time. Unless it
 * returns SHOAL_ENTERED, nothing was done. */
static int shoal_enter(shoal_between *b, uint64_t worker, int64_t pulled_version, int timed,
                       int64_t time, int64_t *step, int64_t *staleness) {
    int result = SHOAL_ENTERED;
    pthread_mutex_lock(&b->lock);
    shoal_await_open(b);
    if (timed && !shoal_is_plain_time(&b->clock, time)) result = SHOAL_NOT_PLAIN;
    else if (!shoal_take_ticket(b->moments, worker, pulled_version, step, staleness)) result = SHOAL_NO_TICKET;
    if (result == SHOAL_ENTERED) {
        if (timed) shoal_note_time(&b->clock, time);
        shoal_go(b, *step);
    }
    pthread_mutex_unlock(&b->lock);
    return result;
}

static void shoal_open(shoal_between *b) {
    pthread_mutex_lock(&b->lock);
    b->closed = 0;
    pthread_cond_broadcast(&b->opened);
    pthread_mutex_unlock(&b->lock);
}

/* A push that entered is over. applied: else a part waits for one that is. Returns whether its thread
 * is to have a part done now, and then to open the way. */
static int shoal_leave(shoal_between *b, int applied) {
    pthread_mutex_lock(&b->lock);
    b->under_way--;
    if (applied && shoal_is_over(b)) b->closed = 1;
    const int last = b->closed && !b->under_way;
    if (last && !applied) {
        b->closed = 0;
        pthread_cond_broadcast(&b->opened);
    }
    pthread_mutex_unlock(&b->lock);
    return last && applied;
}

#endif
