/* The no-op responder: a NATS client that subscribes to a subject and acks every message at once.
 *
 * It stores nothing. With the generator publishing through the same nats-server, it shows what
 * the two hops through that server cost: the ceiling of any log that sits behind it.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char ACK[] = "{\"stream\":\"responder\",\"seq\":1}";

/* Answers "MSG subject sid reply size" or "HMSG subject sid reply hsize size". Returns the bytes
 * of the body with CR LF, or 0 when it is not all here yet. */
static size_t answer(connection_t *c, char *line, int len, size_t line_bytes, size_t available) {
    char *tokens[MAX_TOKENS], text[32];
    int lens[MAX_TOKENS], count = split_tokens(line, len, tokens, lens);
    if (count < 4) die("malformed message line: %.*s", len, line);
    size_t body = (size_t)strtoul(tokens[count - 1], NULL, 10) + 2;
    if (available < line_bytes + body) return 0;
    if (count < (line[0] == 'H' ? 6 : 5)) return body; /* no reply subject */
    int text_len = snprintf(text, sizeof text, " %zu\r\n", sizeof ACK - 1);
    buffer_put(&c->out, "PUB ", 4);
    buffer_put(&c->out, tokens[3], (size_t)lens[3]);
    buffer_put(&c->out, text, (size_t)text_len);
    buffer_put(&c->out, ACK, sizeof ACK - 1);
    buffer_put(&c->out, "\r\n", 2);
    return body;
}

static void answer_all(connection_t *c) {
    for (;;) {
        char *line = c->in.data + c->in.start;
        size_t available = c->in.end - c->in.start, line_bytes = 0, body = 0;
        int len = find_line(line, available, &line_bytes);
        if (len < 0) break;
        if (!strncmp(line, "MSG ", 4) || !strncmp(line, "HMSG", 4)) {
            body = answer(c, line, len, line_bytes, available);
            if (body == 0) break;
        } else if (!strncmp(line, "PING", 4)) {
            buffer_put(&c->out, "PONG\r\n", 6);
        } else if (!strncmp(line, "-ERR", 4)) {
            die("%.*s", len, line);
        }
        c->in.start += line_bytes + body;
    }
    buffer_compact(&c->in);
}

/* Answers until killed, until the server goes away, or until `seconds` have passed. */
int serve_responder(const char *host, int port, const char *subject, double seconds) {
    connection_t c = {.fd = connect_to(host, port), .open = true};
    nats_handshake(&c, 0, subject);
    printf("{\"event\":\"ready\",\"port\":%d}\n", port);
    fflush(stdout);
    for (time_t until = time(NULL) + (time_t)seconds; time(NULL) < until;) {
        buffer_reserve(&c.in, READ_CHUNK);
        ssize_t got = read(c.fd, c.in.data + c.in.end, c.in.capacity - c.in.end);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) break;
        c.in.end += (size_t)got;
        answer_all(&c);
        while (c.out.start < c.out.end) {
            ssize_t done = write(c.fd, c.out.data + c.out.start, c.out.end - c.out.start);
            if (done < 0) return 1;
            c.out.start += (size_t)done;
        }
        c.out.start = c.out.end = 0;
    }
    return 0;
}
