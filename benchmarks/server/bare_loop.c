/* The exchanges of a call with many servers, and nothing else: send to all, then receive from all.
 * What any worker needs at least, for benchmarks/server/fan_out.py. */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

static int receive(int socket, uint8_t *to, size_t size) {
    while (size) {
        const ssize_t got = recv(socket, to, size, MSG_WAITALL);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        to += got;
        size -= (size_t)got;
    }
    return 1;
}

/* 0, or 1 + the server that did not take its request or did not answer. */
int exchange(int servers, const int *sockets, uint8_t *const *requests, const size_t *sizes,
             uint8_t *const *answers, size_t room) {
    for (int s = 0; s < servers; s++) {
        const uint8_t *at = requests[s];
        for (size_t left = sizes[s]; left;) {
            const ssize_t sent = send(sockets[s], at, left, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent < 0) return 1 + s;
            at += sent;
            left -= (size_t)sent;
        }
    }
    for (int s = 0; s < servers; s++) {
        uint8_t prefix[16];
        uint64_t size;
        if (!receive(sockets[s], prefix, sizeof prefix)) return 1 + s;
        memcpy(&size, prefix + 8, sizeof size);
        if (prefix[4] != 64 || size > room || !receive(sockets[s], answers[s], size)) return 1 + s;
    }
    return 0;
}
