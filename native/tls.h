/* One connection with TLS, read and written without Python.
 *
 * shoal_tls_read, shoal_tls_write and shoal_tls_shake try once, and wait for nothing: they say what the
 * socket must be ready for before the next try, so one thread can have many connections. Those below
 * them wait. One thread at a time has a connection; another one ends it by shutdown(2) of the socket.
 *
 * An end of the stream that is not announced is an end like any other: the messages of the data
 * plane give their sizes, so one that is cut off is never taken for a whole one.
 */
#ifndef SHOAL_TLS_H
#define SHOAL_TLS_H

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "clock.h"
#include "openssl.h"

enum {
    SHOAL_TLS_DONE,
    SHOAL_TLS_READS,  /* once the socket has something to read */
    SHOAL_TLS_WRITES, /* once it takes something */
    SHOAL_TLS_LATE,
    SHOAL_TLS_ENDED,
    SHOAL_TLS_FAILED, /* see error and why */
    SHOAL_TLS_RECORD = 16 << 10 /* bytes, at most */
};

/* socket: does not block. used: some thread has it. failed: for good. seconds: for an answer of which
 * nothing is taken. signalled: has the handlers of signals run, as one has come; returns whether one has
 * raised. speaker: the worker for whom its requests may speak; -1: none. error: of the system; 0: `why`
 * is OpenSSL's. */
typedef struct {
    const shoal_openssl *lib;
    void *ssl;
    int socket, used, failed;
    double seconds;
    int (*signalled)(void);
    int64_t speaker;
    int error;
    char why[160];
} shoal_tls;

/* Nothing is to be done with the connection any more. */
static void shoal_tls_fail(shoal_tls *t, int error) {
    t->failed = 1;
    t->error = error;
    snprintf(t->why, sizeof t->why, "the connection is closed");
}

static void shoal_tls_describe(shoal_tls *t) {
    const unsigned long code = t->lib->ERR_peek_last_error();
    const char *reason = t->lib->ERR_reason_error_string(code), *detail = "";
    if ((code & SHOAL_SSL_REASON) == SHOAL_SSL_NOT_VERIFIED) {
        const long result = t->lib->SSL_get_verify_result(t->ssl);
        detail = result == SHOAL_X509_OTHER_HOST ? "hostname mismatch"
                                                 : t->lib->X509_verify_cert_error_string(result);
    }
    snprintf(t->why, sizeof t->why, "TLS: %s%s%s", reason ? reason : "an error without a reason",
             *detail ? ": " : "", detail);
    t->lib->ERR_clear_error();
}

static void shoal_tls_begin(const shoal_tls *t) {
    t->lib->ERR_clear_error(); /* of this thread: SSL_get_error looks at what others have left */
    errno = 0;
}

/* What became of a call that did not succeed. */
static int shoal_tls_outcome(shoal_tls *t, int result) {
    const int error = errno;
    switch (t->lib->SSL_get_error(t->ssl, result)) {
        case SHOAL_SSL_READS: return SHOAL_TLS_READS;
        case SHOAL_SSL_WRITES: return SHOAL_TLS_WRITES;
        case SHOAL_SSL_ENDED: shoal_tls_fail(t, 0); return SHOAL_TLS_ENDED;
        case SHOAL_SSL_SYSTEM: shoal_tls_fail(t, error); return error ? SHOAL_TLS_FAILED : SHOAL_TLS_ENDED;
        default:
            shoal_tls_fail(t, 0);
            shoal_tls_describe(t);
            return SHOAL_TLS_FAILED;
    }
}

static int shoal_tls_shake(shoal_tls *t) {
    if (t->failed) return SHOAL_TLS_FAILED;
    shoal_tls_begin(t);
    const int result = t->lib->SSL_do_handshake(t->ssl);
    return result == 1 ? SHOAL_TLS_DONE : shoal_tls_outcome(t, result);
}

/* Reads up to a record. What the other end sends beside data, such as tickets and new keys, is handled
 * on the way, and may be all that there was. */
static int shoal_tls_read(shoal_tls *t, void *to, size_t size, size_t *got) {
    *got = 0;
    if (t->failed) return SHOAL_TLS_FAILED;
    shoal_tls_begin(t);
    return t->lib->SSL_read_ex(t->ssl, to, size, got) == 1 ? SHOAL_TLS_DONE : shoal_tls_outcome(t, 0);
}

/* Writes one record or more of `size` bytes. The next try must go on with the same bytes, wherever they
 * are then. */
static int shoal_tls_write(shoal_tls *t, const void *from, size_t size, size_t *sent) {
    *sent = 0;
    if (t->failed) return SHOAL_TLS_FAILED;
    shoal_tls_begin(t);
    return t->lib->SSL_write_ex(t->ssl, from, size, sent) == 1 ? SHOAL_TLS_DONE
                                                               : shoal_tls_outcome(t, 0);
}

/* Whether bytes have come that the socket no longer has: then it may be silent for ever, and reading is
 * what to try first. */
static int shoal_tls_holds(const shoal_tls *t) {
    return t->lib->SSL_has_pending(t->ssl);
}

/* ---- waiting ---- */

/* Waits for what a try has asked for; 0: it is late. until: a moment; INFINITY: never late. The next try
 * fails where the handler of a signal has raised. */
static int shoal_tls_wait(shoal_tls *t, int wants, double until) {
    struct pollfd one = {t->socket, wants == SHOAL_TLS_WRITES ? POLLOUT : POLLIN, 0};
    for (;;) {
        const double left = until - shoal_now();
        if (left <= 0) return 0;
        const int ready = poll(&one, 1, left > 1e6 ? 1000000000 : (int)(left * 1000) + 1);
        if (ready > 0) return 1;
        if (ready < 0 && errno == EINTR && t->signalled()) {
            shoal_tls_fail(t, EINTR);
            return 1;
        }
    }
}

static int shoal_tls_handshake(shoal_tls *t, double until) {
    for (;;) {
        const int result = shoal_tls_shake(t);
        if (result != SHOAL_TLS_READS && result != SHOAL_TLS_WRITES) return result;
        if (!shoal_tls_wait(t, result, until)) return SHOAL_TLS_LATE;
    }
}

/* Receives some bytes, or whole: all of them. While it waits for the first, OpenSSL has no buffer. */
static int shoal_tls_receive(shoal_tls *t, char *to, size_t size, int whole, double until, size_t *got) {
    int wants = t->failed || shoal_tls_holds(t) ? SHOAL_TLS_DONE : SHOAL_TLS_READS;
    size_t each;
    *got = 0;
    for (;;) {
        if (wants != SHOAL_TLS_DONE && !shoal_tls_wait(t, wants, until)) return SHOAL_TLS_LATE;
        wants = shoal_tls_read(t, to + *got, size - *got, &each);
        *got += each;
        if (wants == SHOAL_TLS_DONE && (!whole || *got == size)) return SHOAL_TLS_DONE;
        if (wants == SHOAL_TLS_ENDED || wants == SHOAL_TLS_FAILED) return wants;
    }
}

/* Sends all bytes. seconds: after which, if the socket took nothing, it is late; 0: never. */
static int shoal_tls_send(shoal_tls *t, const char *from, size_t size, double seconds) {
    while (size) {
        size_t sent;
        const int result = shoal_tls_write(t, from, size, &sent);
        from += sent;
        size -= sent;
        if (result == SHOAL_TLS_DONE) continue;
        if (result != SHOAL_TLS_READS && result != SHOAL_TLS_WRITES) return result;
        if (!shoal_tls_wait(t, result, seconds > 0 ? shoal_now() + seconds : INFINITY))
            return SHOAL_TLS_LATE;
    }
    return SHOAL_TLS_DONE;
}

/* Sends parts one after another, in as few records as possible. Of a long part, what fills whole
 * records is not copied. seconds: as shoal_tls_send takes them. */
static int shoal_tls_send_parts(shoal_tls *t, const struct iovec *part, int count, double seconds) {
    char *const record = malloc(SHOAL_TLS_RECORD);
    size_t filled = 0;
    int result = SHOAL_TLS_DONE;
    if (!record) {
        shoal_tls_fail(t, ENOMEM);
        return SHOAL_TLS_FAILED;
    }
    for (int k = 0; k < count && result == SHOAL_TLS_DONE; k++) {
        const char *from = part[k].iov_base;
        size_t left = part[k].iov_len;
        while (left && result == SHOAL_TLS_DONE) {
            size_t taken = left - left % SHOAL_TLS_RECORD;
            if (filled || !taken) {
                taken = left < SHOAL_TLS_RECORD - filled ? left : SHOAL_TLS_RECORD - filled;
                memcpy(record + filled, from, taken);
                filled += taken;
                if (filled == SHOAL_TLS_RECORD) {
                    result = shoal_tls_send(t, record, filled, seconds);
                    filled = 0;
                }
            } else {
                result = shoal_tls_send(t, from, taken, seconds);
            }
            from += taken;
            left -= taken;
        }
    }
    if (filled && result == SHOAL_TLS_DONE) result = shoal_tls_send(t, record, filled, seconds);
    free(record);
    return result;
}

#endif
