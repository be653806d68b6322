/* The no-op server: speaks just enough of the NATS client protocol and acks every publish at once.
 *
 * It stores nothing. What the generator reaches against it is the generator's own ceiling, to be
 * published beside every result. One thread, epoll, one read and one write per ready connection.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const char INFO_LINE[] =
    "INFO {\"server_id\":\"ceiling\",\"version\":\"2.10.0\",\"headers\":true,"
    "\"max_payload\":1048576,\"proto\":1}\r\n";
static const char ACK[] = "{\"stream\":\"ceiling\",\"seq\":1}";

static int listen_on(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("bad address %s", host);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1024))
        die("cannot listen on %s:%d: %s", host, port, strerror(errno));
    socklen_t len = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &len);
    printf("{\"event\":\"ready\",\"port\":%d}\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void accept_all(int listener, int epoll) {
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), on = 1;
        if (fd < 0) return;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection_t *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->open = true;
        buffer_put(&c->out, INFO_LINE, sizeof INFO_LINE - 1);
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

/* Appends the ack of one "PUB subject reply size" or "HPUB subject reply hsize size" line. */
static bool put_ack(connection_t *c, const char *line, int len, size_t *body) {
    const char *end = line + len, *space = memrchr(line, ' ', (size_t)len);
    const char *reply = memchr(line, ' ', (size_t)len);
    reply = reply ? memchr(reply + 1, ' ', (size_t)(end - reply - 1)) : NULL;
    if (!space || !reply) return false;
    *body = (size_t)strtoul(space + 1, NULL, 10) + 2;
    if (reply == space) return true; /* no reply subject: nothing to say */
    const char *reply_end = memchr(reply + 1, ' ', (size_t)(end - reply - 1));
    char sizes[32];
    int sizes_len = snprintf(sizes, sizeof sizes, " 1 %zu\r\n", sizeof ACK - 1);
    buffer_put(&c->out, "MSG ", 4);
    buffer_put(&c->out, reply + 1, (size_t)(reply_end - reply - 1));
    buffer_put(&c->out, sizes, (size_t)sizes_len);
    buffer_put(&c->out, ACK, sizeof ACK - 1);
    buffer_put(&c->out, "\r\n", 2);
    return true;
}

static bool parse_input(connection_t *c) {
    while (c->in.start < c->in.end) {
        char *line = c->in.data + c->in.start;
        size_t available = c->in.end - c->in.start, body = 0;
        char *newline = memchr(line, '\n', available);
        if (!newline) break;
        int len = (int)(newline - line) - 1;
        if (len >= 4 && (!strncmp(line, "PUB ", 4) || !strncmp(line, "HPUB", 4))) {
            /* Peek at the size first: the ack goes out only when the whole body is here. */
            const char *space = memrchr(line, ' ', (size_t)len);
            size_t need = space ? (size_t)strtoul(space + 1, NULL, 10) + 2 : 0;
            if (available < (size_t)len + 2 + need) break;
            if (!put_ack(c, line, len, &body)) return false;
        } else if (len >= 4 && !strncmp(line, "PING", 4)) {
            buffer_put(&c->out, "PONG\r\n", 6);
        }
        c->in.start += (size_t)len + 2 + body;
    }
    buffer_compact(&c->in);
    return true;
}

static bool serve_ready(connection_t *c) {
    for (;;) {
        buffer_reserve(&c->in, READ_CHUNK);
        size_t room = c->in.capacity - c->in.end;
        ssize_t got = read(c->fd, c->in.data + c->in.end, room);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (got < 0) break;
        c->in.end += (size_t)got;
        if (!parse_input(c)) return false;
        if ((size_t)got < room) break;
    }
    while (c->out.start < c->out.end) {
        ssize_t done = write(c->fd, c->out.data + c->out.start, c->out.end - c->out.start);
        if (done < 0) return errno == EAGAIN || errno == EINTR;
        c->out.start += (size_t)done;
    }
    c->out.start = c->out.end = 0;
    return true;
}

/* Serves until killed or until `seconds` have passed. */
int serve_ceiling(const char *host, int port, double seconds) {
    int listener = listen_on(host, port), epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, ready[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    time_t until = time(NULL) + (time_t)seconds;
    while (time(NULL) < until) {
        int count = epoll_wait(epoll, ready, 256, 500);
        for (int i = 0; i < count; i++) {
            connection_t *c = ready[i].data.ptr;
            if (!c) {
                accept_all(listener, epoll);
            } else if (!serve_ready(c)) {
                close(c->fd);
                free(c->in.data), free(c->out.data), free(c);
            }
        }
    }
    return 0;
}
