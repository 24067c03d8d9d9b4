/* Who updates rows of a store at the moment: the threads of one batch alone, or those of several.
 *
 * Threads of one batch update different rows, so they need no row locks against one another, and mark
 * rows for readers with ordinary writes (store.h). A thread enters for a block of ids at a time.
 */
#ifndef SHOAL_UPDATERS_H
#define SHOAL_UPDATERS_H

#include <pthread.h>

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t left;
    const void *alone; /* the batch that is, or NULL: each thread locks its rows */
    int inside;        /* threads */
} shoal_updaters;

static void shoal_updaters_init(shoal_updaters *u) {
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->left, NULL);
    u->alone = NULL;
    u->inside = 0;
}

static void shoal_updaters_destroy(shoal_updaters *u) {
    pthread_mutex_destroy(&u->lock);
    pthread_cond_destroy(&u->left);
}

/* Waits until no other batch is alone. may: the thread's batch may be. Returns whether it is. */
static int shoal_enter_updaters(shoal_updaters *u, const void *batch, int may) {
    pthread_mutex_lock(&u->lock);
    const int alone = may && (!u->inside || u->alone == batch);
    if (alone) u->alone = batch;
    while (!alone && u->alone) pthread_cond_wait(&u->left, &u->lock);
    u->inside++;
    pthread_mutex_unlock(&u->lock);
    return alone;
}

static void shoal_leave_updaters(shoal_updaters *u) {
    pthread_mutex_lock(&u->lock);
    if (--u->inside == 0 && u->alone) {
        u->alone = NULL;
        pthread_cond_broadcast(&u->left);
    }
    pthread_mutex_unlock(&u->lock);
}

#endif
