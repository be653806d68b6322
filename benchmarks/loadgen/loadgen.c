/* loadgen: a native load generator for durable logs (closed loop; NATS, Redis RESP, Beam's log).
 *
 * A logical appenders share N connections. Each appender sends one append, waits for its own ack,
 * and only then sends the next. That is the workload of Beam's curve. With --rate it is open loop:
 * appends are due at fixed times, and latency counts from the due time (no coordinated omission).
 *
 * Rules: one thread; all replies that one epoll turn brings are parsed, then each connection gets
 * one write; an append counts only when its reply says so (JSON with "seq" and without "error");
 * the first `warmup` part of the run is not counted; a run always ends (time, count, or 2 s of
 * waiting for the last acks). Errors are counted, and the first one's text is printed.
 */
#define _GNU_SOURCE
#include "loadgen.h"
#include "hist.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND_NS = 1000000000;

static options_t opts;
static connection_t *connections;
static appender_t *appenders;
static connection_t **dirty;
static int dirty_count, open_connections, busy_count, epoll_fd, timer_fd = -1;
static hist_t latencies;
static uint64_t acks, errors, replies;
static char first_error[ERROR_TEXT_MAX];
static int64_t started_ns, measure_from_ns, stop_ns, turn_ns, last_counted_ns;
static uint64_t next_slot; /* open loop: the next append that will become due */
static bool stopping;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void mark_dirty(connection_t *c) {
    if (c->dirty) return;
    c->dirty = true;
    dirty[dirty_count++] = c;
}

static int64_t due_ns(uint64_t slot) {
    return started_ns + (int64_t)((double)slot / opts.rate * 1e9);
}

/* Sends the appender's next append, unless the run is over or (open loop) it is not yet due. */
static void send_next(int index) {
    appender_t *a = &appenders[index];
    if (stopping || !a->connection->open) return;
    a->started_ns = turn_ns;
    if (opts.rate > 0) {
        int64_t due = due_ns(a->sent * (uint64_t)opts.appenders + (uint64_t)index);
        if (due > turn_ns) return;
        a->started_ns = due;
    }
    a->busy = true;
    busy_count++;
    wire_put_append(a->connection, index, a);
    mark_dirty(a->connection);
}

static void note_error(const char *text, size_t len) {
    if (errors++ == 0) snprintf(first_error, sizeof first_error, "%.*s", (int)len, text);
}

static void on_reply(int index, bool ok, const char *text, size_t len) {
    replies++;
    if (!ok) note_error(text, len);
    if (index < 0) return; /* an error of the connection, not of one append */
    if (index >= opts.appenders || !appenders[index].busy) {
        note_error("a reply nobody waits for", 24);
        return;
    }
    appender_t *a = &appenders[index];
    a->busy = false;
    busy_count--;
    if (ok && turn_ns >= measure_from_ns && turn_ns <= stop_ns) {
        acks++;
        last_counted_ns = turn_ns;
        hist_add(&latencies, turn_ns - a->started_ns);
    }
    if (replies >= (uint64_t)opts.max_appends && !stopping) stopping = true, stop_ns = turn_ns;
    send_next(index);
}

static void close_connection(connection_t *c, const char *why) {
    note_error(why, strlen(why));
    c->open = false;
    open_connections--;
    close(c->fd);
    for (int i = 0; i < opts.appenders; i++)
        if (appenders[i].connection == c && appenders[i].busy) {
            appenders[i].busy = false;
            busy_count--;
        }
}

static void watch(connection_t *c, int operation, bool writable) {
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    c->wants_writable = writable;
    if (epoll_ctl(epoll_fd, operation, c->fd, &event)) die("epoll_ctl: %s", strerror(errno));
}

static void flush_connection(connection_t *c) {
    while (c->out.start < c->out.end) {
        ssize_t done = write(c->fd, c->out.data + c->out.start, c->out.end - c->out.start);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno == EAGAIN) {
            if (!c->wants_writable) watch(c, EPOLL_CTL_MOD, true);
            return;
        }
        if (done < 0) {
            close_connection(c, strerror(errno));
            return;
        }
        c->out.start += (size_t)done;
    }
    c->out.start = c->out.end = 0;
    if (c->wants_writable) watch(c, EPOLL_CTL_MOD, false);
}

static void read_connection(connection_t *c) {
    buffer_reserve(&c->in, READ_CHUNK);
    ssize_t got = read(c->fd, c->in.data + c->in.end, c->in.capacity - c->in.end);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        close_connection(c, got ? strerror(errno) : "connection closed by the server");
        return;
    }
    c->in.end += (size_t)got;
    turn_ns = now_ns();
    wire_parse(c, on_reply);
    mark_dirty(c);
}

/* Open loop: starts every append that has become due and arms the timer for the next. */
static void start_due(void) {
    while (!stopping && due_ns(next_slot) <= turn_ns) {
        int index = (int)(next_slot++ % (uint64_t)opts.appenders);
        if (!appenders[index].busy) send_next(index);
    }
    int64_t at = due_ns(next_slot);
    struct itimerspec spec = {.it_value = {.tv_sec = at / SECOND_NS, .tv_nsec = at % SECOND_NS}};
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

static void run_turn(void) {
    struct epoll_event ready[256];
    int count = epoll_wait(epoll_fd, ready, 256, 50);
    if (count < 0 && errno != EINTR) die("epoll_wait: %s", strerror(errno));
    turn_ns = now_ns();
    for (int i = 0; i < count; i++) {
        connection_t *c = ready[i].data.ptr;
        if (!c) {
            uint64_t ignored;
            if (read(timer_fd, &ignored, sizeof ignored) < 0) continue;
        } else if (c->open) {
            if (ready[i].events & EPOLLOUT) mark_dirty(c);
            if (ready[i].events & ~(uint32_t)EPOLLOUT) read_connection(c);
        }
    }
    if (timer_fd >= 0) start_due();
    for (int i = 0; i < dirty_count; i++) {
        dirty[i]->dirty = false;
        if (dirty[i]->open) flush_connection(dirty[i]);
    }
    dirty_count = 0;
}

static void open_connection(connection_t *c, int number) {
    c->fd = connect_to(opts.host, opts.port);
    c->fifo_capacity = opts.appenders;
    c->fifo = calloc((size_t)opts.appenders, sizeof *c->fifo);
    c->number = number;
    c->windows = calloc((size_t)(opts.appenders / opts.connections + 1), sizeof *c->windows);
    for (int i = number; i < opts.appenders; i += opts.connections)
        c->windows[i / opts.connections] = &appenders[i];
    wire_handshake(c, number);
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
    c->open = true;
    open_connections++;
    watch(c, EPOLL_CTL_ADD, false);
}

static void prepare(void) {
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections = calloc((size_t)opts.connections, sizeof *connections);
    appenders = calloc((size_t)opts.appenders, sizeof *appenders);
    dirty = calloc((size_t)opts.connections, sizeof *dirty);
    wire_init(&opts);
    for (int i = 0; i < opts.connections; i++) open_connection(&connections[i], i);
    for (int i = 0; i < opts.appenders; i++) {
        appenders[i].connection = &connections[i % opts.connections];
        appenders[i].payload = malloc((size_t)opts.size + 2);
        for (int at = 0; at < opts.size; at += 256) {
            int part = opts.size - at < 256 ? opts.size - at : 256;
            if (getrandom(appenders[i].payload + at, (size_t)part, 0) != part) die("getrandom");
        }
        memcpy(appenders[i].payload + opts.size, "\r\n", 2);
    }
    if (opts.rate > 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &event);
    }
}

static void run(void) {
    started_ns = turn_ns = now_ns();
    measure_from_ns = started_ns + (int64_t)(opts.seconds * opts.warmup * 1e9);
    stop_ns = started_ns + (int64_t)(opts.seconds * 1e9);
    for (int i = 0; opts.rate <= 0 && i < opts.appenders; i++) send_next(i);
    while (turn_ns < stop_ns && !stopping && open_connections > 0) run_turn();
    stopping = true;
    int64_t give_up_ns = now_ns() + 2 * SECOND_NS;
    while (busy_count > 0 && open_connections > 0 && turn_ns < give_up_ns) run_turn();
}

static void print_escaped(const char *text) {
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') printf("\\%c", *text);
        else if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f) putchar(' ');
        else putchar(*text);
    }
}

static void report(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double elapsed = (double)(stop_ns - measure_from_ns) / 1e9, rate = 0;
    if (elapsed > 0) rate = (double)acks / elapsed;
    else elapsed = 0; /* the run hit --max-appends within its warm-up */
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    double p50 = hist_quantile_ns(&latencies, 0.5) / 1e3;
    double p90 = hist_quantile_ns(&latencies, 0.9) / 1e3;
    double p99 = hist_quantile_ns(&latencies, 0.99) / 1e3, max = (double)latencies.max_ns / 1e3;
    double p999 = hist_quantile_ns(&latencies, 0.999) / 1e3;
    bool late = last_counted_ns && stop_ns - last_counted_ns > SECOND_NS;
    if (opts.json) {
        printf("{\"appends_per_s\": %.1f, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, "
               "\"p999_us\": %.1f, \"max_us\": %.1f, \"acks\": %llu, \"replies_total\": %llu, "
               "\"errors\": %llu, \"unanswered\": %d, \"stalled_at_end\": %s, \"elapsed_s\": %.3f, "
               "\"connections\": %d, \"appenders\": %d, \"size_bytes\": %d, \"subjects\": %d, "
               "\"rate\": %.1f, \"client_cpu_s\": %.3f, \"first_error\": \"",
               rate, p50, p90, p99, p999, max, (unsigned long long)acks,
               (unsigned long long)replies, (unsigned long long)errors, busy_count,
               late ? "true" : "false", elapsed,
               opts.connections, opts.appenders, opts.size, opts.subjects, opts.rate, cpu);
        print_escaped(first_error);
        printf("\"}\n");
    } else {
        printf("%10.0f appends/s  p50 %.0f  p90 %.0f  p99 %.0f  p99.9 %.0f  max %.0f us  "
               "errors %llu  unanswered %d  (%d appenders, %d connections, %d B, %.1f s counted)\n",
               rate, p50, p90, p99, p999, max, (unsigned long long)errors, busy_count,
               opts.appenders, opts.connections, opts.size, elapsed);
        if (late) printf("warning: no ack in the last second of the run\n");
    }
    if (errors) fprintf(stderr, "loadgen: first error: %s\n", first_error);
}

int main(int argc, char **argv) {
    parse_options(argc, argv, &opts);
    srandom((unsigned)now_ns());
    if (opts.ceiling_port >= 0) return serve_ceiling(opts.host, opts.ceiling_port, opts.seconds);
    if (opts.respond) return serve_responder(opts.host, opts.port, opts.subject, opts.seconds);
    prepare();
    run();
    report();
    return acks == 0 ? 1 : 0;
}
