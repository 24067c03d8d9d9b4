/* One connection of the data plane, whose pulls and pushes are answered without Python.
 *
 * A connection has a thread, which waits for a request, answers it and waits for the next one
 * without ever holding Python's lock. It comes back to Python with the first request that is not
 * answered here, which is then in the buffer as it came. A thread for each rather than one for many
 * with epoll: the next request may be Python's, and so needs no other thread to be woken.
 */
#ifndef SHOAL_CONNECTION_H
#define SHOAL_CONNECTION_H

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "answer.h"
#include "push.h"
#include "tls.h"

enum { SHOAL_FOR_PYTHON, SHOAL_IDLE, SHOAL_LATE, SHOAL_CLOSED, SHOAL_BROKEN, SHOAL_HALF_APPLIED, SHOAL_ANSWERED };

enum { SHOAL_BUSY, SHOAL_ENDING, SHOAL_FLAGS }; /* places in the flags */

/* start, end: of the bytes in the buffer that were received and not taken. begin: where a message
 * is best to begin. pull, push: kinds of requests. flags: of others, too; see SHOAL_BUSY. part_seconds:
 * for what was begun to go on. pause: a file; while it is there Python has every request; or NULL. tls:
 * by which it is read and written; NULL: it is plain. error: of the system, for SHOAL_BROKEN of a plain
 * one. broken: for SHOAL_HALF_APPLIED, see push.h. */
typedef struct {
    int socket;
    uint8_t *buffer;
    size_t size, begin, start, end;
    int pull, push;
    uint8_t *flags;
    double part_seconds;
    const char *pause;
    shoal_tls *tls;
    int error;
    shoal_push_record *broken;
} shoal_connection;

static int shoal_received(shoal_connection *c, ssize_t got) {
    if (got > 0) {
        c->end += (size_t)got;
        return SHOAL_ANSWERED;
    }
    c->error = got ? errno : 0;
    return got ? SHOAL_BROKEN : SHOAL_CLOSED;
}

/* The same of what TLS has said. */
static int shoal_result(int outcome) {
    switch (outcome) {
        case SHOAL_TLS_DONE: return SHOAL_ANSWERED;
        case SHOAL_TLS_LATE: return SHOAL_LATE;
        case SHOAL_TLS_ENDED: return SHOAL_CLOSED;
        default: return SHOAL_BROKEN;
    }
}

static int shoal_receive_tls(shoal_connection *c, double until) {
    size_t got;
    char *const to = (char *)c->buffer + c->end;
    const int outcome = shoal_tls_receive(c->tls, to, c->size - c->end, 0, until, &got);
    c->end += got;
    return shoal_result(outcome);
}

/* Receives until there are so many bytes of the message. */
static int shoal_await(shoal_connection *c, size_t wanted) {
    const double until = shoal_now() + c->part_seconds;
    while (c->end - c->start < wanted) {
        if (c->tls) {
            const int result = shoal_receive_tls(c, until);
            if (result != SHOAL_ANSWERED) return result;
            continue;
        }
        const double left = until - shoal_now();
        struct pollfd one = {c->socket, POLLIN, 0};
        if (left <= 0) return SHOAL_LATE;
        const int ready = poll(&one, 1, left > 1e6 ? 1000000000 : (int)(left * 1000) + 1);
        if (ready <= 0) continue; /* late, or a signal */
        const ssize_t got = recv(c->socket, c->buffer + c->end, c->size - c->end, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
        const int result = shoal_received(c, got);
        if (result != SHOAL_ANSWERED) return result;
    }
    return SHOAL_ANSWERED;
}

/* The socket's own limit is for each call of the system: for what it takes nothing of. */
static int shoal_send_all(shoal_connection *c, const char *from, size_t size) {
    if (c->tls) return shoal_result(shoal_tls_send(c->tls, from, size, c->tls->seconds));
    while (size) {
        const ssize_t sent = send(c->socket, from, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) {
            c->error = errno;
            return errno == EAGAIN || errno == EWOULDBLOCK ? SHOAL_LATE : SHOAL_BROKEN;
        }
        from += sent;
        size -= (size_t)sent;
    }
    return SHOAL_ANSWERED;
}

/* The first bytes of a request; SHOAL_IDLE: none came in time. */
static int shoal_await_request(shoal_connection *c) {
    if (c->tls) {
        const int result = shoal_receive_tls(c, shoal_now() + c->part_seconds);
        return result == SHOAL_LATE ? SHOAL_IDLE : result;
    }
    for (;;) {
        const ssize_t got = recv(c->socket, c->buffer + c->end, c->size - c->end, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return SHOAL_IDLE;
        return shoal_received(c, got);
    }
}

/* One request, of which there is at least a byte. */
static int shoal_exchange(shoal_answerer *a, shoal_connection *c) {
    const int64_t speaker = c->tls ? c->tls->speaker : SHOAL_ANYBODY;
    uint64_t size;
    shoal_message made;
    if (c->start + SHOAL_MESSAGE_PREFIX > c->size) return SHOAL_FOR_PYTHON;
    int result = shoal_await(c, SHOAL_MESSAGE_PREFIX);
    if (result != SHOAL_ANSWERED) return result;
    const uint8_t *prefix = c->buffer + c->start, kind = prefix[4];
    if (memcmp(prefix, "SHD1", 4) || memcmp(prefix + 5, "\0\0\0", 3)) return SHOAL_FOR_PYTHON;
    if (kind != c->pull && kind != c->push) return SHOAL_FOR_PYTHON;
    memcpy(&size, prefix + 8, sizeof size);
    if (size > c->size - c->start - SHOAL_MESSAGE_PREFIX) return SHOAL_FOR_PYTHON;
    result = shoal_await(c, SHOAL_MESSAGE_PREFIX + size);
    if (result != SHOAL_ANSWERED) return result;
    if (c->pause && access(c->pause, F_OK) == 0) return SHOAL_FOR_PYTHON;
    const uint8_t *frame = c->buffer + c->start + SHOAL_MESSAGE_PREFIX;
    if (kind == c->push) {
        char answer[SHOAL_PUSH_ANSWER];
        const double began = shoal_now();
        made.start = answer;
        result = shoal_apply_frame(a, speaker, frame, size, &made, &c->broken);
        if (result == SHOAL_PUSH_BROKEN) return SHOAL_HALF_APPLIED;
        if (result == SHOAL_PUSH_FOR_PYTHON) return SHOAL_FOR_PYTHON;
        shoal_count_answer(a, &a->pushed, shoal_now() - began);
        c->start += SHOAL_MESSAGE_PREFIX + size;
        return shoal_send_all(c, made.start, made.size);
    }
    if (!shoal_answer(a, speaker, frame, size, &made)) return SHOAL_FOR_PYTHON;
    c->start += SHOAL_MESSAGE_PREFIX + size;
    result = shoal_send_all(c, made.start, made.size);
    free(made.start);
    return result;
}

/* Answers requests until there is something else; returns what. SHOAL_BUSY is set from the first byte
 * of a request on, and stays set for SHOAL_FOR_PYTHON. */
static int shoal_serve(shoal_answerer *a, shoal_connection *c) {
    for (;;) {
        if (__atomic_load_n(&c->flags[SHOAL_ENDING], __ATOMIC_RELAXED)) return SHOAL_IDLE;
        if (c->start == c->end) {
            c->start = c->end = c->begin;
            const int result = shoal_await_request(c);
            if (result != SHOAL_ANSWERED) return result;
        }
        __atomic_store_n(&c->flags[SHOAL_BUSY], 1, __ATOMIC_RELAXED);
        const int result = shoal_exchange(a, c);
        if (result == SHOAL_FOR_PYTHON) return result;
        __atomic_store_n(&c->flags[SHOAL_BUSY], 0, __ATOMIC_RELAXED);
        if (result != SHOAL_ANSWERED) return result;
    }
}

#endif
