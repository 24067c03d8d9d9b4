/* What a server knows of the pushes of one worker: see ps/model/pushes.py. */
#ifndef SHOAL_PUSHES_H
#define SHOAL_PUSHES_H

#include <pthread.h>
#include <stdint.h>

typedef struct {
    pthread_mutex_t lock; /* held while one of its pushes is applied */
    int64_t incarnation, fenced;
    uint64_t sequence, pending;
    int64_t task, records_done;
} shoal_push_record;

#endif
