/* The dense block: one flat vector with its optimizer slots, updated as a whole.
 *
 * The rules are those of the rows (steps.h). Owns the lock that keeps updates apart; readers take
 * none, and see the vector element by element.
 */
#ifndef SHOAL_DENSE_H
#define SHOAL_DENSE_H

#include <pthread.h>

#include "apply.h"

typedef struct {
    pthread_mutex_t lock;
    shoal_step step; /* what is the same in each update */
    float *values;   /* [n], and the slots behind them, [n] each */
    float *scratch;  /* [n] */
    int64_t n;
} shoal_dense;

/* gradient: [n]. step: the 1-based count of updates. */
static void shoal_dense_update(shoal_dense *d, const float *gradient, double rate, double scale,
                               int64_t step) {
    const shoal_step now = shoal_step_at(&d->step, rate, scale, (double)step);
    const shoal_apply_fn apply = shoal_apply_of(now.rule);
    float *w = d->values;
    if (!d->n) return;
    pthread_mutex_lock(&d->lock);
    if (!shoal_is_plain(&now)) {
        shoal_prepare_gradient(gradient, d->scratch, d->n, &now);
        gradient = d->scratch;
        if (now.decay != 0.0f) shoal_decay_weights(w, d->n, &now);
    }
    apply(&w, (size_t)d->n, gradient, 1, d->n, d->n, &now);
    pthread_mutex_unlock(&d->lock);
}

#endif
