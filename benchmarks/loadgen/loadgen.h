/* Shared types of the native load generator. See loadgen.c for what it is and its rules. */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { READ_CHUNK = 256 * 1024, MAX_TOKENS = 8, MAX_SUBJECT = 256, ERROR_TEXT_MAX = 256 };

/* What the command line asked for. */
typedef struct {
    const char *host;
    int port;
    const char *subject; /* NATS subject or Redis key; "{}" is replaced by 0..subjects-1 */
    int subjects;
    int connections;
    int appenders;
    int size;          /* payload bytes */
    double seconds;    /* whole run, warm-up included */
    double warmup;     /* fraction of seconds that is not counted */
    double rate;       /* appends/s in total, open loop; 0 = closed loop */
    int64_t max_appends; /* the run ends early after this many replies */
    bool bare_zero;    /* of several subjects, number 0 has no suffix */
    bool msg_id;
    bool redis;
    bool beam; /* logspec.Log/Append over HTTP/2 */
    bool ping; /* PING and PONG instead of appends: the bare round trip */
    bool json;
    int ceiling_port; /* >= 0: be the no-op server on this port */
    bool respond;     /* be the no-op subscriber */
} options_t;

/* A growing byte buffer; bytes [start, end) are live. */
typedef struct {
    char *data;
    size_t start, end, capacity;
} buffer_t;

struct appender;

typedef struct {
    int fd;
    int number;
    bool open;
    bool dirty;          /* is in the list of connections to flush this turn */
    bool wants_writable; /* EPOLLOUT is registered */
    buffer_t in, out;
    char inbox[64];
    int inbox_len;
    int *fifo;           /* Redis: appenders in the order their replies will come */
    int fifo_head, fifo_len, fifo_capacity;
    int64_t window, stream_window; /* HTTP/2: what may be sent in all, and by a new call */
    struct appender **windows;     /* HTTP/2: its appenders, by the number of their call */
} connection_t;

typedef struct appender {
    connection_t *connection;
    char *payload;       /* size bytes, then CR LF */
    uint64_t sent;       /* appends sent so far */
    int64_t started_ns;  /* when the append in flight was sent (open loop: was due) */
    int64_t window;      /* HTTP/2: what its call may send */
    bool busy;
} appender_t;

/* Called by the wire code for each reply. `text` is the error when !ok. */
typedef void (*reply_fn)(int appender, bool ok, const char *text, size_t text_len);

void parse_options(int argc, char **argv, options_t *options); /* in options.c */

/* Helpers, in wire.c */
void buffer_reserve(buffer_t *b, size_t more);
void buffer_put(buffer_t *b, const void *bytes, size_t len);
void buffer_compact(buffer_t *b);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Wire protocols: encode one append, and parse whatever replies are complete. */
void wire_init(const options_t *options);
void wire_put_append(connection_t *c, int index, appender_t *appender);
void wire_parse(connection_t *c, reply_fn reply);
void wire_handshake(connection_t *c, int number);
void nats_handshake(connection_t *c, int number, const char *subject);
int find_line(const char *start, size_t available, size_t *consumed);
int split_tokens(char *line, int len, char **tokens, int *lens);
int connect_to(const char *host, int port);
void write_all(int fd, const char *text, size_t len);

/* Beam's log, in beam.c */
void beam_handshake(connection_t *c, const options_t *options);
void beam_put_append(connection_t *c, int index, appender_t *appender);
void beam_parse(connection_t *c, reply_fn reply);

/* The built-in no-op servers that measure the generator's own ceiling. */
int serve_ceiling(const char *host, int port, double seconds);
int serve_responder(const char *host, int port, const char *subject, double seconds);

#endif
