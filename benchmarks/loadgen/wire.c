/* Wire protocols of the generator: the NATS client protocol and Redis' RESP; Beam's is in beam.c.
 *
 * Rules: parsing never trusts a length (a reply over 1 MiB ends the run); one append is one
 * contiguous piece of the connection's output buffer; nothing here does a system call except the
 * blocking handshake before the clock starts.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_REPLY = 1024 * 1024 };

static const options_t *opts;
static char **targets; /* NATS: "PUB subject " or "HPUB subject "; Redis: XADD up to the payload */
static int *target_lens;
static uint64_t next_target; /* all appenders cycle through the targets together */
static char tail[64];        /* NATS: " size\r\n" */
static int tail_len;
static char run_id[24];

_Noreturn void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "loadgen: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(2);
}

void buffer_reserve(buffer_t *b, size_t more) {
    if (b->capacity - b->end >= more) return;
    buffer_compact(b);
    if (b->capacity - b->end >= more) return;
    size_t capacity = b->capacity ? b->capacity : 4096;
    while (capacity - b->end < more) capacity *= 2;
    b->data = realloc(b->data, capacity);
    if (!b->data) die("out of memory for a buffer of %zu bytes", capacity);
    b->capacity = capacity;
}

void buffer_put(buffer_t *b, const void *bytes, size_t len) {
    buffer_reserve(b, len);
    memcpy(b->data + b->end, bytes, len);
    b->end += len;
}

void buffer_compact(buffer_t *b) {
    if (b->start == 0) return;
    memmove(b->data, b->data + b->start, b->end - b->start);
    b->end -= b->start;
    b->start = 0;
}

/* Replaces "{}" of the subject by the number, or appends ".number" when there are several. */
static void target_name(char *name, size_t capacity, int number) {
    const char *braces = strstr(opts->subject, "{}");
    int len;
    if (braces)
        len = snprintf(name, capacity, "%.*s%d%s", (int)(braces - opts->subject), opts->subject,
                       number, braces + 2);
    else if (opts->subjects > 1 && !(opts->bare_zero && number == 0))
        len = snprintf(name, capacity, "%s.%d", opts->subject, number);
    else
        len = snprintf(name, capacity, "%s", opts->subject);
    if (len >= (int)capacity) die("subject is longer than %d bytes", MAX_SUBJECT - 1);
}

void wire_init(const options_t *options) {
    opts = options;
    snprintf(run_id, sizeof run_id, "%x%x", (unsigned)getpid(), (unsigned)random());
    targets = calloc((size_t)opts->subjects, sizeof *targets);
    target_lens = calloc((size_t)opts->subjects, sizeof *target_lens);
    for (int i = 0; i < opts->subjects; i++) {
        char name[MAX_SUBJECT];
        target_name(name, sizeof name, i);
        if (opts->redis)
            target_lens[i] = asprintf(&targets[i],
                                      "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n"
                                      "$1\r\nv\r\n$%d\r\n",
                                      strlen(name), name, opts->size);
        else
            target_lens[i] = asprintf(&targets[i], "%s %s ", opts->msg_id ? "HPUB" : "PUB", name);
    }
    tail_len = snprintf(tail, sizeof tail, " %d\r\n", opts->size);
}

static void put_nats_headers(connection_t *c, int index, const appender_t *appender) {
    char headers[128], sizes[64];
    int len = snprintf(headers, sizeof headers, "NATS/1.0\r\nNats-Msg-Id: %s-%d-%llu\r\n\r\n",
                       run_id, index, (unsigned long long)appender->sent);
    int sizes_len = snprintf(sizes, sizeof sizes, " %d %d\r\n", len, len + opts->size);
    buffer_put(&c->out, sizes, (size_t)sizes_len);
    buffer_put(&c->out, headers, (size_t)len);
}

/* Adds one append of this appender to the connection's output. Each payload is its own: the
 * first 8 bytes count the appends of this appender. */
void wire_put_append(connection_t *c, int index, appender_t *appender) {
    if (opts->beam) {
        beam_put_append(c, index, appender);
        return;
    }
    if (opts->ping) {
        c->fifo[c->fifo_head] = index; /* --ping has one appender on each connection */
        c->fifo_len = 1;
        buffer_put(&c->out, "PING\r\n", 6);
        appender->sent++;
        return;
    }
    int target = (int)(next_target++ % (uint64_t)opts->subjects);
    size_t stamp = opts->size < 8 ? (size_t)opts->size : 8;
    memcpy(appender->payload, &appender->sent, stamp);
    buffer_put(&c->out, targets[target], (size_t)target_lens[target]);
    if (opts->redis) {
        c->fifo[(c->fifo_head + c->fifo_len++) % c->fifo_capacity] = index;
    } else {
        char number[16];
        int len = snprintf(number, sizeof number, "%d", index);
        buffer_put(&c->out, c->inbox, (size_t)c->inbox_len);
        buffer_put(&c->out, number, (size_t)len);
        if (opts->msg_id) put_nats_headers(c, index, appender);
        else buffer_put(&c->out, tail, (size_t)tail_len);
    }
    buffer_put(&c->out, appender->payload, (size_t)opts->size + 2);
    appender->sent++;
}

/* Finds the line that starts at `start`; returns its length without CR LF, or -1 if incomplete. */
int find_line(const char *start, size_t available, size_t *consumed) {
    const char *newline = memchr(start, '\n', available);
    if (!newline) return -1;
    *consumed = (size_t)(newline - start) + 1;
    int len = (int)(newline - start);
    return len > 0 && start[len - 1] == '\r' ? len - 1 : len;
}

int split_tokens(char *line, int len, char **tokens, int *lens) {
    int count = 0;
    for (int i = 0; i < len && count < MAX_TOKENS;) {
        while (i < len && line[i] == ' ') i++;
        int from = i;
        while (i < len && line[i] != ' ') i++;
        if (i > from) tokens[count] = line + from, lens[count++] = i - from;
    }
    return count;
}

/* Parses MSG or HMSG at `line`. Returns bytes of the body with CR LF, or 0 if not yet complete. */
static size_t parse_message(char *line, int len, size_t line_bytes, size_t available,
                            reply_fn reply) {
    char *tokens[MAX_TOKENS];
    int lens[MAX_TOKENS];
    int count = split_tokens(line, len, tokens, lens);
    bool headers = line[0] == 'H';
    if (count < (headers ? 5 : 4)) die("malformed reply line: %.*s", len, line);
    long size = strtol(tokens[count - 1], NULL, 10);
    long header_size = headers ? strtol(tokens[count - 2], NULL, 10) : 0;
    if (size < 0 || size > MAX_REPLY || header_size > size) die("reply of %ld bytes", size);
    if (available < line_bytes + (size_t)size + 2) return 0;
    const char *body = line + line_bytes;
    const char *dot = memrchr(tokens[1], '.', (size_t)lens[1]);
    if (!dot) die("reply on a subject that is not ours: %.*s", lens[1], tokens[1]);
    const char *json = body + header_size;
    size_t json_len = (size_t)(size - header_size);
    bool ok = memmem(json, json_len, "\"seq\"", 5) && !memmem(json, json_len, "\"error\"", 7);
    reply((int)strtol(dot + 1, NULL, 10), ok, json_len ? json : body,
          json_len ? json_len : (size_t)header_size);
    return (size_t)size + 2;
}

static void parse_nats(connection_t *c, reply_fn reply) {
    for (;;) {
        char *line = c->in.data + c->in.start;
        size_t available = c->in.end - c->in.start, line_bytes = 0;
        int len = find_line(line, available, &line_bytes);
        if (len < 0) break;
        size_t body = 0;
        if (len >= 4 && (!strncasecmp(line, "MSG ", 4) || !strncasecmp(line, "HMSG", 4))) {
            body = parse_message(line, len, line_bytes, available, reply);
            if (body == 0) break;
        } else if (len >= 4 && !strncasecmp(line, "PING", 4)) {
            buffer_put(&c->out, "PONG\r\n", 6);
        } else if (len >= 4 && !strncasecmp(line, "-ERR", 4)) {
            reply(-1, false, line, (size_t)len);
        } else if (len >= 4 && opts->ping && !strncasecmp(line, "PONG", 4)) {
            reply(c->fifo[c->fifo_head], true, line, (size_t)len);
        } /* INFO, PONG and +OK need no answer */
        c->in.start += line_bytes + body;
    }
    buffer_compact(&c->in);
}

static void parse_redis(connection_t *c, reply_fn reply) {
    for (;;) {
        char *line = c->in.data + c->in.start;
        size_t available = c->in.end - c->in.start, line_bytes = 0, body = 0;
        int len = find_line(line, available, &line_bytes);
        if (len < 0) break;
        if (line[0] == '$') {
            long size = strtol(line + 1, NULL, 10);
            if (size < 0 || size > MAX_REPLY) die("reply of %ld bytes", size);
            body = (size_t)size + 2;
            if (available < line_bytes + body) break;
        }
        if (c->fifo_len == 0) die("a reply that was not asked for: %.*s", len, line);
        int index = c->fifo[c->fifo_head];
        c->fifo_head = (c->fifo_head + 1) % c->fifo_capacity;
        c->fifo_len--;
        reply(index, line[0] == '$' || line[0] == '+', line, (size_t)len);
        c->in.start += line_bytes + body;
    }
    buffer_compact(&c->in);
}

void wire_parse(connection_t *c, reply_fn reply) {
    if (opts->beam) beam_parse(c, reply);
    else if (opts->redis) parse_redis(c, reply);
    else parse_nats(c, reply);
}

/* A connected blocking socket with TCP_NODELAY and a receive timeout of 5 s. */
int connect_to(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("bad address %s", host);
    struct timeval timeout = {.tv_sec = 5};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (struct sockaddr *)&address, sizeof address))
        die("cannot connect to %s:%d: %s", host, port, strerror(errno));
    return fd;
}

void write_all(int fd, const char *text, size_t len) {
    while (len > 0) {
        ssize_t done = write(fd, text, len);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) die("handshake write: %s", strerror(errno));
        text += done, len -= (size_t)done;
    }
}

/* Reads (blocking, the socket has a receive timeout) up to and with a line that starts so. */
static void expect_line(connection_t *c, const char *start) {
    for (;;) {
        size_t consumed = 0;
        char *line = c->in.data + c->in.start;
        int len = c->in.data ? find_line(line, c->in.end - c->in.start, &consumed) : -1;
        if (len < 0) {
            buffer_reserve(&c->in, READ_CHUNK);
            ssize_t got = read(c->fd, c->in.data + c->in.end, c->in.capacity - c->in.end);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0)
                die("no %s from the server: %s", start,
                    got ? strerror(errno) : "connection closed");
            c->in.end += (size_t)got;
            continue;
        }
        c->in.start += consumed;
        if (!strncasecmp(line, "-ERR", 4)) die("server refused: %.*s", len, line);
        if (memmem(line, (size_t)len, "\"tls_required\":true", 19)) die("server wants TLS");
        if (!strncasecmp(line, start, strlen(start))) return;
    }
}

/* NATS: INFO, CONNECT, SUB of the inbox, PING, PONG. Beam's log: HTTP/2. Redis needs nothing. */
void wire_handshake(connection_t *c, int number) {
    if (opts->beam) beam_handshake(c, opts);
    if (opts->beam || opts->redis) return;
    c->inbox_len = snprintf(c->inbox, sizeof c->inbox, "_INBOX.%s%d.", run_id, number);
    char subject[sizeof c->inbox + 1];
    snprintf(subject, sizeof subject, "%s*", c->inbox);
    nats_handshake(c, number, subject);
}

/* INFO, CONNECT, SUB of one subject with sid 1, PING, PONG; dies if the server says no. */
void nats_handshake(connection_t *c, int number, const char *subject) {
    char text[512 + MAX_SUBJECT];
    expect_line(c, "INFO");
    int len = snprintf(text, sizeof text,
                       "CONNECT {\"verbose\":false,\"pedantic\":false,\"tls_required\":false,"
                       "\"headers\":true,\"no_responders\":true,\"echo\":true,\"protocol\":1,"
                       "\"lang\":\"c\",\"version\":\"1\",\"name\":\"loadgen-%d\"}\r\n"
                       "SUB %s 1\r\nPING\r\n",
                       number, subject);
    write_all(c->fd, text, (size_t)len);
    expect_line(c, "PONG");
}
