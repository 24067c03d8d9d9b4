/* Threads that help with one large piece of work: the crew of a process.
 *
 * A piece of work is cut into parts, and whoever takes part in it takes the next one until there is
 * none left. So a helper that is woken late, or finds no free core, costs nothing: the others do its
 * parts; one that loses its core is waited for, for a part. One piece at a time has helpers; who finds them taken works alone. They are started where
 * first needed, never before a fork, and wait for the next piece from then on.
 */
#ifndef SHOAL_CREW_H
#define SHOAL_CREW_H

#include <fcntl.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    SHOAL_HELPERS = 3,
    SHOAL_HELPER_STACK = 512 << 10 /* bytes; the system gives what is used */
};

typedef struct {
    void (*work)(void *piece, int helping); /* takes parts until there is none left */
    void *piece;
    int places; /* for how many more helpers */
    int inside; /* helpers at work */
    fenv_t environment; /* of the thread that has the piece: its rounding */
} shoal_job;

/* The job and the threads are under the lock. */
typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t wanted, over;
    shoal_job *job; /* that has helpers, or NULL */
    int threads;
    int cores;      /* that the process may use; 0: nobody has said */
    int machine;    /* cores of the machine, where other processes count; 0: they do not */
    int under_way;  /* batches of rows, with a thread each */
} shoal_crew;

/* Also of a process that was forked, which has none of its parent's threads. */
static void shoal_crew_init(shoal_crew *crew) {
    memset(crew, 0, sizeof *crew);
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wanted, NULL);
    pthread_cond_init(&crew->over, NULL);
}

static void *shoal_help(void *given) {
    shoal_crew *const crew = given;
#ifdef __GLIBC__
    pthread_setname_np(pthread_self(), "updates"); /* for tools that list threads */
#endif
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        shoal_job *const job = crew->job;
        if (!job || !job->places) {
            pthread_cond_wait(&crew->wanted, &crew->lock);
            continue;
        }
        job->places--;
        job->inside++;
        pthread_mutex_unlock(&crew->lock);
        fesetenv(&job->environment);
        job->work(job->piece, 1);
        pthread_mutex_lock(&crew->lock);
        if (--job->inside == 0) pthread_cond_signal(&crew->over);
    }
    return NULL;
}

/* Starts a helper, if the system has room for it. Lock held. */
static void shoal_start_helper(shoal_crew *crew) {
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return;
    pthread_attr_setstacksize(&attributes, SHOAL_HELPER_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* Signals are for Python's threads: one that a helper took would wake none of them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    crew->threads += pthread_create(&thread, &attributes, shoal_help, crew) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* A batch of rows begins, or is over; 1, -1. */
static inline void shoal_count_batch(shoal_crew *crew, int change) {
    __atomic_fetch_add(&crew->under_way, change, __ATOMIC_RELAXED);
}

/* Threads of the whole machine that run, or could, this one among them; 0: the system does not say.
 * Takes some microseconds. */
static int shoal_running_threads(void) {
    char text[128];
    int running = 0;
    const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size < 0 ? 0 : size] = 0;
    return sscanf(text, "%*s %*s %*s %d/", &running) == 1 ? running : 0;
}

/* How many helpers a batch that is under way could have: as many as there are cores that no other batch
 * uses, nor anybody else on the machine. */
static int shoal_spare_cores(shoal_crew *crew) {
    const int machine = __atomic_load_n(&crew->machine, __ATOMIC_RELAXED);
    int spare = __atomic_load_n(&crew->cores, __ATOMIC_RELAXED) -
                __atomic_load_n(&crew->under_way, __ATOMIC_RELAXED);
    if (spare > 0 && machine) {
        const int free = machine - shoal_running_threads();
        spare = free < spare ? free : spare;
    }
    return spare < 0 ? 0 : spare < SHOAL_HELPERS ? spare : SHOAL_HELPERS;
}

/* Has a piece of work done by this thread and up to so many helpers; returns when it is. */
static void shoal_do_together(shoal_crew *crew, int helpers, void (*work)(void *piece, int helping),
                              void *piece) {
    shoal_job job = {work, piece, helpers, 0, {0}};
    fegetenv(&job.environment);
    pthread_mutex_lock(&crew->lock);
    const int taken = crew->job != NULL;
    if (!taken) {
        crew->job = &job;
        while (crew->threads < helpers) {
            const int before = crew->threads;
            shoal_start_helper(crew);
            if (crew->threads == before) break;
        }
        for (int k = 0; k < helpers; k++) pthread_cond_signal(&crew->wanted);
    }
    pthread_mutex_unlock(&crew->lock);
    work(piece, 0);
    if (taken) return;
    pthread_mutex_lock(&crew->lock);
    job.places = 0;
    while (job.inside) pthread_cond_wait(&crew->over, &crew->lock);
    crew->job = NULL;
    pthread_mutex_unlock(&crew->lock);
}

#endif
