/* The third wire protocol of the generator: Beam's logspec.Log/Append, over HTTP/2 in clear text.
 *
 * Rules: an appender is a call, a stream of HTTP/2 of its own, with one proposal a request and one
 * request under way; an append is one DATA frame, so at most some 16 KiB. Windows are kept as
 * HTTP/2 has it, and running out of one ends the run: it would measure waiting for the server's
 * updates. A call that the server ends, ends the run too.
 */
#define _GNU_SOURCE
#include "loadgen.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8,
    ACK = 1, END_STREAM = 1, END_HEADERS = 4, FRAME_HEADER = 9, FRAME_MAX = 16384,
    INITIAL_WINDOW_SIZE = 4, FIRST_WINDOW = 65535, REQUEST_EXTRA = 32, OK_TAG = 0x0a
};

static const char PREFACE[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/* Literal or from HPACK's static table: POST, http, and four literals with known names but one. */
static const char REQUEST[] = "\x83\x86\x04\x13/logspec.Log/Append\x01\x07loadgen"
                              "\x0f\x10\x10" "application/grpc\x00\x02te\x08trailers";

static const options_t *opts;

static void put_frame_header(char *at, size_t len, int type, int flags, uint32_t stream) {
    unsigned char bytes[FRAME_HEADER] = {
        (unsigned char)(len >> 16), (unsigned char)(len >> 8), (unsigned char)len,
        (unsigned char)type, (unsigned char)flags, (unsigned char)(stream >> 24),
        (unsigned char)(stream >> 16), (unsigned char)(stream >> 8), (unsigned char)stream};
    memcpy(at, bytes, sizeof bytes);
}

static void put_frame(connection_t *c, int type, int flags, uint32_t stream, const void *payload,
                      size_t len) {
    char header[FRAME_HEADER];
    put_frame_header(header, len, type, flags, stream);
    buffer_put(&c->out, header, sizeof header);
    buffer_put(&c->out, payload, len);
}

static uint32_t number_at(const char *at) {
    const unsigned char *b = (const unsigned char *)at;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static size_t put_varint(char *at, uint64_t value) {
    size_t len = 0;
    for (; value > 0x7f; value >>= 7) at[len++] = (char)(value | 0x80);
    at[len++] = (char)value;
    return len;
}

/* Adds one request of one proposal to the connection's output; begins the call with the first. */
void beam_put_append(connection_t *c, int index, appender_t *appender) {
    uint32_t stream = (uint32_t)(index / opts->connections) * 2 + 1;
    if (appender->sent == 0) {
        put_frame(c, HEADERS, END_HEADERS, stream, REQUEST, sizeof REQUEST - 1);
        appender->window = c->stream_window;
    }
    memcpy(appender->payload, &appender->sent, opts->size < 8 ? (size_t)opts->size : 8);
    char head[FRAME_HEADER + REQUEST_EXTRA], *at = head + FRAME_HEADER + 5;
    *at++ = 0x08; /* sequence */
    at += put_varint(at, ++appender->sent);
    *at++ = 0x12; /* proposals */
    at += put_varint(at, (uint64_t)opts->size);
    size_t message = (size_t)(at - head) - FRAME_HEADER - 5 + (size_t)opts->size;
    put_frame_header(head, message + 5, DATA, 0, stream);
    char prefix[5] = {0, (char)(message >> 24), (char)(message >> 16), (char)(message >> 8),
                      (char)message};
    memcpy(head + FRAME_HEADER, prefix, sizeof prefix);
    buffer_put(&c->out, head, (size_t)(at - head));
    buffer_put(&c->out, appender->payload, (size_t)opts->size);
    c->window -= (int64_t)message + 5, appender->window -= (int64_t)message + 5;
    if (c->window < 0 || appender->window < 0) die("the server's window is used up");
}

static void take_settings(connection_t *c, const char *payload, size_t len, int flags) {
    if (flags & ACK) return;
    for (size_t at = 0; at + 6 <= len; at += 6)
        if (payload[at] == 0 && payload[at + 1] == INITIAL_WINDOW_SIZE)
            c->stream_window = number_at(payload + at + 2);
    put_frame(c, SETTINGS, ACK, 0, "", 0);
}

static void take_frame(connection_t *c, const char *frame, size_t len, reply_fn reply) {
    const char *payload = frame + FRAME_HEADER;
    int type = frame[3], flags = frame[4];
    uint32_t stream = number_at(frame + 5) & 0x7fffffff;
    int index = (int)(stream / 2) * opts->connections + c->number;
    if (stream && (index >= opts->appenders || stream % 2 == 0))
        die("stream %u is not ours", stream);
    switch (type) {
    case DATA:
        reply(index, len > 5 && payload[5] == OK_TAG, payload, len);
        break;
    case HEADERS:
        if (flags & END_STREAM) die("the server has ended a call");
        break;
    case SETTINGS: take_settings(c, payload, len, flags); break;
    case PING:
        if (!(flags & ACK)) put_frame(c, PING, ACK, 0, payload, len);
        break;
    case WINDOW_UPDATE:
        if (len != 4) die("malformed WINDOW_UPDATE");
        if (stream) c->windows[index / opts->connections]->window += number_at(payload);
        else c->window += number_at(payload);
        break;
    case RST_STREAM: die("the server has reset a call");
    case GOAWAY: die("the server goes away");
    default: break; /* what HTTP/2 may have besides needs no answer */
    }
}

void beam_parse(connection_t *c, reply_fn reply) {
    while (c->in.end - c->in.start >= FRAME_HEADER) {
        const char *frame = c->in.data + c->in.start;
        size_t len = number_at(frame) >> 8;
        if (len > FRAME_MAX) die("a frame of %zu bytes", len);
        if (c->in.end - c->in.start < FRAME_HEADER + len) break;
        take_frame(c, frame, len, reply);
        c->in.start += FRAME_HEADER + len;
    }
    buffer_compact(&c->in);
}

static void no_reply(int index, bool ok, const char *text, size_t len) {
    (void)ok, (void)text, (void)len;
    die("a reply to append %d before it was sent", index);
}

/* Greets, and waits (blocking) until the server takes as much at a time as this run sends. */
void beam_handshake(connection_t *c, const options_t *options) {
    opts = options;
    if (opts->size > FRAME_MAX - REQUEST_EXTRA - 5)
        die("--beam takes one frame, 16 KiB, an append");
    static const char settings[6] = {0, INITIAL_WINDOW_SIZE, 0x7f, '\xff', '\xff', '\xff'};
    static const char more[4] = {0x7f, '\xfe', 0, 0};
    c->window = c->stream_window = FIRST_WINDOW;
    buffer_put(&c->out, PREFACE, sizeof PREFACE - 1);
    put_frame(c, SETTINGS, 0, 0, settings, sizeof settings);
    put_frame(c, WINDOW_UPDATE, 0, 0, more, sizeof more);
    write_all(c->fd, c->out.data, c->out.end);
    c->out.start = c->out.end = 0;
    int64_t needed = (int64_t)(opts->appenders / opts->connections + 1) * (opts->size + 64);
    while (c->window < needed || c->out.end == 0) { /* the answer to its SETTINGS is due */
        buffer_reserve(&c->in, READ_CHUNK);
        ssize_t got = read(c->fd, c->in.data + c->in.end, c->in.capacity - c->in.end);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) die("no HTTP/2 from the server: %s", got ? strerror(errno) : "it hung up");
        c->in.end += (size_t)got;
        beam_parse(c, no_reply);
    }
}
