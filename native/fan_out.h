/* One request to each of many servers, and their answers, without Python.
 *
 * All parts of a step's arrays are sent from where they lie and received where they belong; only
 * headers are made and read here. Answers are read in the order in which they come. Nothing here
 * decides that an answer is bad: one that is not plain (a refusal, fields that are not known, other
 * arrays than were asked for) goes to Python as it came, for that server alone. The frame is
 * proto/wire/frames.py's, the message around it proto/plane/message.py's.
 */
#ifndef SHOAL_FAN_OUT_H
#define SHOAL_FAN_OUT_H

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "clock.h"
#include "halves.h"
#include "tls.h"
#include "wire.h"

enum {
    SHOAL_FAN_NUMBERS = 8,    /* in an answer: fields 1 to 7 */
    SHOAL_FAN_PIECES = 32,    /* of a request's header */
    SHOAL_FAN_SOON_MS = 2,
    SHOAL_FAN_VECTORS = 512,  /* in one call of the system, which takes 1,024 at most */
    SHOAL_FAN_ROOM = 32 << 10 /* of the beginning of an answer, as a connection has (ROOM_BYTES) */
};

/* What became of a server: not asked here; under way; done; or Python's. SHOAL_FAN_UNSENT: nothing
 * was sent. SHOAL_FAN_UNREAD: the answer is not plain. The last four are failures. */
enum {
    SHOAL_FAN_NOT_ASKED,
    SHOAL_FAN_SENDING,
    SHOAL_FAN_WAITING,
    SHOAL_FAN_FILLING,
    SHOAL_FAN_DONE,
    SHOAL_FAN_UNSENT,
    SHOAL_FAN_UNREAD,
    SHOAL_FAN_UNTAKEN,
    SHOAL_FAN_LATE,
    SHOAL_FAN_CLOSED,
    SHOAL_FAN_BROKEN
};

/* Rows of one array in memory, a server's after another's: server s has those from offsets[s] to
 * offsets[s + 1]. columns: of a row; 0: on the wire the array has one dimension. type, width: of its
 * elements there. decoded: where 16 bits become float32, or NULL. */
typedef struct {
    char *data;
    const int64_t *offsets;
    int64_t columns;
    int type, width;
    float *decoded;
} shoal_fan_array;

/* Arrays in their order; the last `optional` ones are there for some servers only. */
typedef struct {
    shoal_fan_array *arrays;
    int count, optional;
} shoal_fan_arrays;

/* A piece of a request's header: `size` bytes that all servers share, or a field of which each server
 * has its own value. each: the bytes; int64, double or, of `size` elements a server, float. */
enum { SHOAL_FAN_SHARED, SHOAL_FAN_INTEGERS, SHOAL_FAN_REALS, SHOAL_FAN_SCALES, SHOAL_FAN_SPECS };

typedef struct {
    int kind;
    unsigned field;
    size_t size;
    const void *each;
} shoal_fan_piece;

/* One server's message: its request, then its answer. tls: by which its connection is read and written;
 * NULL: it is plain. head: of the request. begin: of the arrays in the message. size, done: bytes of all,
 * and those sent or received. kept: what has come, for the next read or for Python. */
typedef struct {
    int socket, arrays, error;
    shoal_tls *tls;
    uint8_t *head, *kept;
    size_t begin, size, done, kept_size;
    double until;
} shoal_fan_way;

/* All of them. kind, answer: of the messages. has: of each server, if its request has the optional
 * arrays, or NULL. flag: the field of an answer that says so of the answer; 0: none. specs: the field
 * of an answer with its ArraySpecs. fields: the last one that is known. reals, flags: bits of those that
 * are a double, or a bool; the others are integers. numbers: what answers say, by server and field.
 * status: of each server; other threads may read it. room: of SHOAL_FAN_ROOM. */
typedef struct {
    int servers, kind, answer, pieces, flag, specs, fields, begun;
    unsigned reals, flags;
    size_t most_bytes;
    double seconds;
    shoal_fan_piece piece[SHOAL_FAN_PIECES];
    shoal_fan_arrays sent, wanted;
    const int64_t *has;
    shoal_fan_way *ways;
    uint8_t *status;
    int64_t *numbers;
    uint8_t *arena;
    struct pollfd *polled;
    int *pending;
    uint8_t *room;
    uint8_t ignored[SHOAL_FRAME_ALIGNMENT];
} shoal_fan;

static inline void shoal_fan_set(shoal_fan *f, int s, int status) {
    if (status > SHOAL_FAN_DONE) /* what was read before is of no answer */
        memset(f->numbers + (size_t)s * SHOAL_FAN_NUMBERS, 0, SHOAL_FAN_NUMBERS * sizeof(int64_t));
    __atomic_store_n(&f->status[s], (uint8_t)status, __ATOMIC_RELEASE);
}

/* ---- the connection: the only places that read and write, as plain sockets do ---- */

/* What TLS has done, as a call of the system would say it. A try is repeated until it says EAGAIN, so
 * nothing that came is held back when the socket is waited for. */
static ssize_t shoal_fan_tried(const shoal_tls *t, int outcome, size_t moved) {
    switch (outcome) {
        case SHOAL_TLS_DONE: return (ssize_t)moved;
        case SHOAL_TLS_READS:
        case SHOAL_TLS_WRITES: errno = EAGAIN; return -1;
        case SHOAL_TLS_ENDED: return 0;
        default: errno = t->error ? t->error : EPROTO; return -1;
    }
}

/* One record. Its bytes are the same in the next try, as they are gathered alike. */
static ssize_t shoal_fan_write_record(shoal_tls *t, const struct iovec *from, int count) {
    uint8_t record[SHOAL_TLS_RECORD];
    size_t filled = 0, sent;
    if (from[0].iov_len >= sizeof record) {
        const int outcome = shoal_tls_write(t, from[0].iov_base, sizeof record, &sent);
        return shoal_fan_tried(t, outcome, sent);
    }
    for (int k = 0; k < count && filled < sizeof record; k++) {
        const size_t left = sizeof record - filled;
        const size_t some = from[k].iov_len < left ? from[k].iov_len : left;
        memcpy(record + filled, from[k].iov_base, some);
        filled += some;
    }
    const int outcome = shoal_tls_write(t, record, filled, &sent);
    return shoal_fan_tried(t, outcome, sent);
}

static ssize_t shoal_fan_write(shoal_fan_way *way, struct iovec *from, int count) {
    if (way->tls) return shoal_fan_write_record(way->tls, from, count);
    struct msghdr message = {.msg_iov = from, .msg_iovlen = (size_t)count};
    return sendmsg(way->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t shoal_fan_read(shoal_fan_way *way, struct iovec *to, int count) {
    if (way->tls) {
        size_t got;
        const int outcome = shoal_tls_read(way->tls, to[0].iov_base, to[0].iov_len, &got);
        return shoal_fan_tried(way->tls, outcome, got);
    }
    struct msghdr message = {.msg_iov = to, .msg_iovlen = (size_t)count};
    return recvmsg(way->socket, &message, MSG_DONTWAIT);
}

/* ---- where a message's bytes are ---- */

static inline int64_t shoal_fan_rows(const shoal_fan_array *a, int s) {
    return a->offsets[s + 1] - a->offsets[s];
}

static inline size_t shoal_fan_row_bytes(const shoal_fan_array *a) {
    return (size_t)(a->columns ? a->columns : 1) * (size_t)a->width;
}

static inline size_t shoal_fan_padding(size_t position) { return -position % SHOAL_FRAME_ALIGNMENT; }

/* The size of a message whose arrays begin at `begin`. */
static size_t shoal_fan_size(const shoal_fan_arrays *of, int count, int s, size_t begin) {
    size_t position = begin;
    for (int k = 0; k < count; k++)
        position += shoal_fan_padding(position) +
                    (size_t)shoal_fan_rows(&of->arrays[k], s) * shoal_fan_row_bytes(&of->arrays[k]);
    return position;
}

typedef struct {
    struct iovec *out;
    int count;
    size_t position, from;
} shoal_fan_gathered;

/* The next bytes of a message; those before `from` are left out. */
static void shoal_fan_add(shoal_fan_gathered *g, void *data, size_t size) {
    const size_t end = g->position + size;
    if (size && end > g->from && g->count < SHOAL_FAN_VECTORS) {
        const size_t skipped = g->from > g->position ? g->from - g->position : 0;
        g->out[g->count++] = (struct iovec){(char *)data + skipped, size - skipped};
    }
    g->position = end;
}

/* Where the bytes of a message from `from` on are, or the first of them. padding: what is sent, or
 * overwritten, between arrays. */
static int shoal_fan_gather(const shoal_fan_way *way, const shoal_fan_arrays *of, int s, size_t from,
                            uint8_t *padding, struct iovec *out) {
    shoal_fan_gathered g = {out, 0, 0, from};
    shoal_fan_add(&g, way->head, way->begin);
    for (int k = 0; k < way->arrays; k++) {
        const shoal_fan_array *const a = &of->arrays[k];
        const size_t row = shoal_fan_row_bytes(a);
        shoal_fan_add(&g, padding, shoal_fan_padding(g.position));
        shoal_fan_add(&g, a->data + (size_t)a->offsets[s] * row, (size_t)shoal_fan_rows(a, s) * row);
    }
    return g.count;
}

/* ---- requests ---- */

/* The number of the next field of a message, which is skipped; 0: there is none that protobuf packs. */
static unsigned shoal_fan_skip_field(shoal_bytes *in) {
    uint64_t tag, value;
    shoal_bytes bytes;
    size_t size = 0;
    if (!shoal_read_short(in, &tag)) return 0;
    switch (tag & 7) {
        case SHOAL_WIRE_VARINT:
            if (!shoal_read_varint(in, &value)) return 0;
            break;
        case SHOAL_WIRE_BYTES:
            if (!shoal_read_bytes(in, &bytes)) return 0;
            break;
        case SHOAL_WIRE_FIXED64: size = 8; break;
        case SHOAL_WIRE_FIXED32: size = 4; break;
        default: return 0;
    }
    if ((size_t)(in->end - in->at) < size) return 0;
    in->at += size;
    return (unsigned)(tag >> 3);
}

/* Puts the fields that all servers share between the pieces that are there, which are sorted: each
 * before the first of a higher number. 0: it is no message, or there are too many pieces. */
static int shoal_fan_share(shoal_fan *f, const uint8_t *packed, size_t size) {
    const shoal_bytes all = {packed, packed + size};
    shoal_fan_piece merged[SHOAL_FAN_PIECES];
    shoal_bytes in = all;
    int count = 0, next = 0;
    while (in.at < in.end) {
        const uint8_t *const begin = in.at;
        const unsigned number = shoal_fan_skip_field(&in);
        if (!number) return 0;
        while (next < f->pieces && f->piece[next].field <= number) {
            if (f->piece[next].field == number || count == SHOAL_FAN_PIECES) return 0;
            merged[count++] = f->piece[next++];
        }
        shoal_fan_piece *const last = count ? &merged[count - 1] : NULL;
        if (last && last->kind == SHOAL_FAN_SHARED) last->size += (size_t)(in.at - begin);
        else if (count == SHOAL_FAN_PIECES) return 0;
        else merged[count++] = (shoal_fan_piece){SHOAL_FAN_SHARED, number, (size_t)(in.at - begin), begin};
    }
    while (next < f->pieces) {
        if (count == SHOAL_FAN_PIECES) return 0;
        merged[count++] = f->piece[next++];
    }
    memcpy(f->piece, merged, (size_t)count * sizeof *merged);
    f->pieces = count;
    return 1;
}

/* Bytes of a header at most, with both prefixes. */
static size_t shoal_fan_head_room(const shoal_fan *f) {
    size_t room = SHOAL_MESSAGE_PREFIX + SHOAL_FRAME_PREFIX;
    for (int k = 0; k < f->pieces; k++) {
        const shoal_fan_piece *const p = &f->piece[k];
        if (p->kind == SHOAL_FAN_SHARED) room += p->size;
        else if (p->kind == SHOAL_FAN_SCALES) room += 2 * 5 + p->size * sizeof(float);
        else if (p->kind == SHOAL_FAN_SPECS) room += (size_t)f->sent.count * SHOAL_PUT_ARRAY;
        else room += 5 + 10;
    }
    return room;
}

static void shoal_fan_put_scales(shoal_out *out, const shoal_fan_piece *p, int s) {
    const float *const scales = (const float *)p->each + (size_t)s * p->size;
    size_t plain = 0;
    while (plain < p->size && scales[plain] == 1.0f) plain++;
    if (plain == p->size) return;
    shoal_put_varint(out, p->field << 3 | SHOAL_WIRE_BYTES);
    shoal_put_varint(out, p->size * sizeof(float));
    memcpy(out->at, scales, p->size * sizeof(float));
    out->at += p->size * sizeof(float);
}

static void shoal_fan_put_piece(const shoal_fan *f, shoal_out *out, const shoal_fan_piece *p, int s) {
    uint64_t value;
    switch (p->kind) {
        case SHOAL_FAN_SHARED:
            memcpy(out->at, p->each, p->size);
            out->at += p->size;
            break;
        case SHOAL_FAN_INTEGERS:
            shoal_put_number(out, p->field, (uint64_t)((const int64_t *)p->each)[s]);
            break;
        case SHOAL_FAN_REALS:
            memcpy(&value, (const double *)p->each + s, sizeof value);
            if (!value) break; /* as protobuf has it */
            shoal_put_varint(out, p->field << 3 | SHOAL_WIRE_FIXED64);
            memcpy(out->at, &value, sizeof value);
            out->at += sizeof value;
            break;
        case SHOAL_FAN_SCALES: shoal_fan_put_scales(out, p, s); break;
        default:
            for (int k = 0; k < f->ways[s].arrays; k++) {
                const shoal_fan_array *const a = &f->sent.arrays[k];
                const uint64_t shape[2] = {(uint64_t)shoal_fan_rows(a, s), (uint64_t)a->columns};
                shoal_put_array(out, p->field, a->type, shape, a->columns ? 2 : 1);
            }
    }
}

/* Makes the head of a server's request; 0: it is too large to be sent. */
static int shoal_fan_make(shoal_fan *f, int s, uint8_t *head) {
    shoal_fan_way *const way = &f->ways[s];
    shoal_out out = {head + SHOAL_MESSAGE_PREFIX + SHOAL_FRAME_PREFIX};
    const uint8_t *const header = out.at;
    way->head = head;
    way->arrays = f->sent.count - (f->has && f->has[s] ? 0 : f->sent.optional);
    for (int k = 0; k < f->pieces; k++) shoal_fan_put_piece(f, &out, &f->piece[k], s);
    const uint32_t length = (uint32_t)(out.at - header);
    way->begin = (size_t)(out.at - head);
    way->size = shoal_fan_size(&f->sent, way->arrays, s, way->begin);
    const uint64_t announced = way->size - SHOAL_MESSAGE_PREFIX;
    memcpy(head, "SHD1\0\0\0\0", 8);
    head[4] = (uint8_t)f->kind;
    memcpy(head + 8, &announced, 8);
    memcpy(head + SHOAL_MESSAGE_PREFIX, shoal_frame_magic, 4);
    memcpy(head + SHOAL_MESSAGE_PREFIX + 4, &length, 4);
    return announced <= f->most_bytes;
}

static void shoal_fan_fail(shoal_fan *f, int s, ssize_t got) {
    f->ways[s].error = got < 0 ? errno : 0;
    shoal_fan_set(f, s, got < 0 ? SHOAL_FAN_BROKEN : SHOAL_FAN_CLOSED);
}

/* Sends what the system takes now. */
static void shoal_fan_send(shoal_fan *f, int s) {
    uint8_t zeros[SHOAL_FRAME_ALIGNMENT] = {0};
    shoal_fan_way *const way = &f->ways[s];
    struct iovec from[SHOAL_FAN_VECTORS];
    while (way->done < way->size) {
        const int count = shoal_fan_gather(way, &f->sent, s, way->done, zeros, from);
        const ssize_t sent = shoal_fan_write(way, from, count);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (sent <= 0) {
            shoal_fan_fail(f, s, sent);
            return;
        }
        way->done += (size_t)sent;
        way->until = shoal_now() + f->seconds; /* of a call of the system, in which nothing is taken */
    }
    way->done = 0;
    shoal_fan_set(f, s, SHOAL_FAN_WAITING);
}

/* ---- answers ---- */

static int shoal_fan_same(const shoal_array *found, const shoal_fan_array *wanted, int s) {
    return found->type == wanted->type && found->dims == (wanted->columns ? 2 : 1) &&
           found->shape[0] == (uint64_t)shoal_fan_rows(wanted, s) &&
           (!wanted->columns || found->shape[1] == (uint64_t)wanted->columns);
}

/* Reads the header of an answer; 0: it is Python's. */
static int shoal_fan_read_header(shoal_fan *f, int s, shoal_bytes in) {
    int64_t *const numbers = f->numbers + (size_t)s * SHOAL_FAN_NUMBERS;
    unsigned seen = 0;
    int arrays = 0;
    shoal_field field;
    shoal_array found;
    memset(numbers, 0, SHOAL_FAN_NUMBERS * sizeof *numbers);
    while (in.at < in.end) {
        if (!shoal_read_field(&in, (unsigned)f->fields, &seen, &field)) return 0;
        const unsigned bit = 1u << field.number;
        if (field.number == (unsigned)f->specs) {
            seen &= ~bit; /* there may be several */
            if (field.wire != SHOAL_WIRE_BYTES || arrays == f->wanted.count ||
                !shoal_read_array(field.bytes, &found) ||
                !shoal_fan_same(&found, &f->wanted.arrays[arrays++], s))
                return 0;
        } else if (f->reals & bit) {
            if (field.wire != SHOAL_WIRE_FIXED64) return 0;
            memcpy(&numbers[field.number], &field.real, sizeof field.real);
        } else {
            const uint64_t most = f->flags & bit ? 1 : INT64_MAX;
            if (field.wire != SHOAL_WIRE_VARINT || field.value > most) return 0;
            numbers[field.number] = (int64_t)field.value;
        }
    }
    f->ways[s].arrays = arrays;
    return arrays == f->wanted.count - (f->flag && numbers[f->flag] ? 0 : f->wanted.optional);
}

/* Keeps what has come of an answer; without memory the connection is given up. */
static void shoal_fan_keep(shoal_fan *f, int s, size_t got, int status) {
    shoal_fan_way *const way = &f->ways[s];
    if (!(way->kept = malloc(got ? got : 1))) {
        way->error = ENOMEM;
        status = SHOAL_FAN_BROKEN;
    } else {
        memcpy(way->kept, f->room, got);
        way->kept_size = got;
    }
    shoal_fan_set(f, s, status);
}

static void shoal_fan_finish(shoal_fan *f, int s) {
    for (int k = 0; k < f->ways[s].arrays; k++) {
        const shoal_fan_array *const a = &f->wanted.arrays[k];
        const int64_t width = a->columns ? a->columns : 1;
        const int64_t first = a->offsets[s] * width, n = shoal_fan_rows(a, s) * width;
        if (!a->decoded || !n) continue;
        if (a->type == SHOAL_WIRE_BFLOAT16)
            shoal_decode_bfloat16((const uint16_t *)a->data + first, a->decoded + first, n);
        else shoal_decode_float16((const uint16_t *)a->data + first, a->decoded + first, n);
    }
    shoal_fan_set(f, s, SHOAL_FAN_DONE);
}

/* Looks at the first `got` bytes of an answer, in the room. What is written to the arrays has been
 * checked before: each has the size that was asked for, and all together are the whole message. */
static void shoal_fan_look(shoal_fan *f, int s, size_t got) {
    static const size_t begin = SHOAL_MESSAGE_PREFIX + SHOAL_FRAME_PREFIX;
    shoal_fan_way *const way = &f->ways[s];
    struct iovec to[SHOAL_FAN_VECTORS];
    uint64_t size;
    uint32_t length;
    if (got < SHOAL_MESSAGE_PREFIX) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_WAITING);
        return;
    }
    memcpy(&size, f->room + 8, sizeof size);
    if (memcmp(f->room, "SHD1", 4) || f->room[4] != f->answer || memcmp(f->room + 5, "\0\0\0", 3) ||
        size < SHOAL_FRAME_PREFIX || size > f->most_bytes) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_UNREAD);
        return;
    }
    if (got < begin) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_WAITING);
        return;
    }
    memcpy(&length, f->room + SHOAL_MESSAGE_PREFIX + 4, sizeof length);
    if (memcmp(f->room + SHOAL_MESSAGE_PREFIX, shoal_frame_magic, 4) ||
        length > size - SHOAL_FRAME_PREFIX || length > SHOAL_FAN_ROOM - begin) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_UNREAD);
        return;
    }
    if (got < begin + length) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_WAITING);
        return;
    }
    way->size = (size_t)size + SHOAL_MESSAGE_PREFIX;
    if (got > way->size ||
        !shoal_fan_read_header(f, s, (shoal_bytes){f->room + begin, f->room + begin + length}) ||
        shoal_fan_size(&f->wanted, way->arrays, s, begin + length) != way->size) {
        shoal_fan_keep(f, s, got, SHOAL_FAN_UNREAD);
        return;
    }
    way->begin = way->done = begin + length;
    while (way->done < got) {
        const int count = shoal_fan_gather(way, &f->wanted, s, way->done, f->ignored, to);
        for (int k = 0; k < count && way->done < got; k++) {
            const size_t left = got - way->done, some = to[k].iov_len < left ? to[k].iov_len : left;
            memcpy(to[k].iov_base, f->room + way->done, some);
            way->done += some;
        }
    }
    if (way->done == way->size) shoal_fan_finish(f, s);
    else shoal_fan_set(f, s, SHOAL_FAN_FILLING);
}

/* Receives what has come. */
static void shoal_fan_receive(shoal_fan *f, int s) {
    shoal_fan_way *const way = &f->ways[s];
    struct iovec to[SHOAL_FAN_VECTORS];
    while (f->status[s] == SHOAL_FAN_WAITING || f->status[s] == SHOAL_FAN_FILLING) {
        const int begins = f->status[s] == SHOAL_FAN_WAITING;
        const size_t kept = begins ? way->kept_size : 0;
        int count = 1;
        if (begins) to[0] = (struct iovec){f->room + kept, SHOAL_FAN_ROOM - kept};
        else count = shoal_fan_gather(way, &f->wanted, s, way->done, f->ignored, to);
        const ssize_t got = shoal_fan_read(way, to, count);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (got <= 0) {
            shoal_fan_fail(f, s, got);
            return;
        }
        if (!begins) {
            way->done += (size_t)got;
            if (way->done == way->size) shoal_fan_finish(f, s);
            continue;
        }
        if (kept) {
            memcpy(f->room, way->kept, kept);
            free(way->kept);
            way->kept = NULL;
            way->kept_size = 0;
        }
        shoal_fan_look(f, s, kept + (size_t)got);
    }
}

/* ---- all servers ---- */

static inline int shoal_fan_under_way(const shoal_fan *f, int s) {
    return f->status[s] >= SHOAL_FAN_SENDING && f->status[s] <= SHOAL_FAN_FILLING;
}

/* Sends to or receives from a server, as far as goes now. */
static void shoal_fan_go_on(shoal_fan *f, int s) {
    if (f->status[s] == SHOAL_FAN_SENDING) shoal_fan_send(f, s);
    if (f->status[s] != SHOAL_FAN_SENDING) shoal_fan_receive(f, s);
}

/* Receives small answers one server after another, as long as each comes soon: the others come
 * meanwhile, so most are there when they are looked at, and few waits are needed. poll would tell of
 * each as it comes, and look at all others each time. 0: a signal has come. */
static int shoal_fan_in_turn(shoal_fan *f) {
    for (int s = 0; s < f->servers; s++) {
        while (shoal_fan_under_way(f, s)) {
            struct pollfd one = {f->ways[s].socket, POLLIN, 0};
            shoal_fan_go_on(f, s);
            if (!shoal_fan_under_way(f, s)) break;
            if (f->status[s] != SHOAL_FAN_WAITING) return 1;
            const int ready = poll(&one, 1, SHOAL_FAN_SOON_MS);
            if (ready < 0 && errno == EINTR) return 0;
            if (ready <= 0) return 1;
        }
    }
    return 1;
}

/* The servers that are under way, and what each waits for; returns how many they are. until: the
 * first moment at which one of them is late. large: some are in the middle of a message. */
static int shoal_fan_pending(shoal_fan *f, double *until, int *large) {
    const double now = shoal_now();
    int count = 0;
    *until = now + f->seconds;
    *large = 0;
    for (int s = 0; s < f->servers; s++) {
        const int sends = f->status[s] == SHOAL_FAN_SENDING;
        if (!shoal_fan_under_way(f, s)) continue;
        if (f->ways[s].until <= now) {
            shoal_fan_set(f, s, sends ? SHOAL_FAN_UNTAKEN : SHOAL_FAN_LATE);
            continue;
        }
        if (f->ways[s].until < *until) *until = f->ways[s].until;
        *large |= f->status[s] != SHOAL_FAN_WAITING;
        f->pending[count] = s;
        f->polled[count++] = (struct pollfd){f->ways[s].socket, sends ? POLLOUT : POLLIN, 0};
    }
    return count;
}

/* Of so many servers, none of them asked; 0: no memory. */
static int shoal_fan_new(shoal_fan *f, int servers) {
    const size_t n = (size_t)servers + 1;
    memset(f, 0, sizeof *f);
    f->servers = servers;
    f->ways = calloc(n, sizeof *f->ways);
    f->polled = calloc(n, sizeof *f->polled);
    f->pending = calloc(n, sizeof *f->pending);
    return f->ways && f->polled && f->pending;
}

/* Makes all requests, before any is sent; 0: no memory. */
static int shoal_fan_begin(shoal_fan *f) {
    const size_t room = shoal_fan_head_room(f);
    if (!(f->arena = malloc(room * (size_t)f->servers + 1))) return 0;
    uint8_t *head = f->arena;
    for (int s = 0; s < f->servers; s++) {
        if (f->status[s] != SHOAL_FAN_SENDING) continue;
        if (!shoal_fan_make(f, s, head)) shoal_fan_set(f, s, SHOAL_FAN_UNSENT);
        head += f->ways[s].begin;
    }
    return 1;
}

/* Sends all requests and receives all answers; 0: a signal has come, call again. */
static int shoal_fan_run(shoal_fan *f) {
    uint8_t room[SHOAL_FAN_ROOM];
    double until;
    int count, large;
    f->room = room;
    for (; f->begun < f->servers; f->begun++) {
        if (f->status[f->begun] != SHOAL_FAN_SENDING) continue;
        f->ways[f->begun].until = shoal_now() + f->seconds;
        shoal_fan_send(f, f->begun);
    }
    while ((count = shoal_fan_pending(f, &until, &large))) {
        if (!large) {
            if (!shoal_fan_in_turn(f)) return 0;
            if (!(count = shoal_fan_pending(f, &until, &large))) break;
        }
        const double left = until - shoal_now();
        const int ready = poll(f->polled, (nfds_t)count,
                               left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1000) + 1);
        if (ready < 0 && errno == EINTR) return 0;
        for (int k = 0; k < count; k++) {
            if (f->polled[k].revents) shoal_fan_go_on(f, f->pending[k]);
        }
    }
    return 1;
}

/* Adds an array; NULL: no memory. */
static shoal_fan_array *shoal_fan_add_array(shoal_fan_arrays *to) {
    shoal_fan_array *more = realloc(to->arrays, ((size_t)to->count + 1) * sizeof *more);
    if (!more) return NULL;
    to->arrays = more;
    return memset(&more[to->count++], 0, sizeof *more);
}

static void shoal_fan_free(shoal_fan *f) {
    for (int s = 0; f->ways && s < f->servers; s++) free(f->ways[s].kept);
    free(f->ways);
    free(f->arena);
    free(f->polled);
    free(f->pending);
    free(f->sent.arrays);
    free(f->wanted.arrays);
}

#endif
