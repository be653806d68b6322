/* The command line of the generator. */
#define _GNU_SOURCE
#include "loadgen.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

static const char HELP[] =
    "loadgen: closed-loop appenders over the NATS client protocol (--redis, --beam: others).\n"
    "  loadgen --port 4222 --subject bench --connections 16 --appenders 128 --size 2048\n"
    "  --host H          IPv4 address of the server (127.0.0.1)\n"
    "  --port P          its port (4222)\n"
    "  --subject S       subject (Redis: key); '{}' becomes 0..K-1\n"
    "  --subjects K      cycle over K subjects, message by message (1); S becomes S.0 .. S.K-1\n"
    "  --bare-zero       of K subjects, number 0 is the bare S (Liftbridge's partition names)\n"
    "  --connections N   sockets (1)      --appenders A  closed-loop appenders over them (128)\n"
    "  --size B          payload bytes (2048)\n"
    "  --seconds T       length of the run (5)   --warmup F  part of it not counted (0.2)\n"
    "  --max-appends M   end early after M replies (4000000)\n"
    "  --rate R          open loop: R appends/s in all, latency from the time each was due\n"
    "  --msg-id          publish with a Nats-Msg-Id header (HPUB)\n"
    "  --lone            one appender on one connection\n"
    "  --ping            send PING, wait for PONG: the bare round trip, one per connection\n"
    "  --redis           speak RESP: XADD S * v <payload>\n"
    "  --beam            call logspec.Log/Append over HTTP/2, a call for each appender\n"
    "  --json            one JSON object on stdout\n"
    "  --serve-ceiling P be the no-op NATS server on port P (0 = any, printed) for --seconds\n"
    "  --respond         be a no-op subscriber of --subject (may be a wildcard) for --seconds\n";

/* Fills in the defaults, then what the command line says; ends the program if that is nonsense. */
void parse_options(int argc, char **argv, options_t *o) {
    *o = (options_t){.host = "127.0.0.1", .port = 4222, .subject = "bench", .subjects = 1,
                     .connections = 1, .appenders = 128, .size = 2048, .seconds = 5,
                     .warmup = 0.2, .max_appends = 4000000, .ceiling_port = -1};
    static const struct option longs[] = {
        {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"subject", 1, 0, 's'}, {"subjects", 1, 0, 'k'},
        {"connections", 1, 0, 'n'}, {"appenders", 1, 0, 'a'}, {"size", 1, 0, 'b'},
        {"seconds", 1, 0, 't'}, {"warmup", 1, 0, 'w'}, {"rate", 1, 0, 'r'}, {"msg-id", 0, 0, 'i'},
        {"lone", 0, 0, 'l'}, {"redis", 0, 0, 'R'},
        {"beam", 0, 0, 'B'}, {"ping", 0, 0, 'P'}, {"respond", 0, 0, 'S'},
        {"bare-zero", 0, 0, 'z'}, {"json", 0, 0, 'j'}, {"max-appends", 1, 0, 'm'},
        {"serve-ceiling", 1, 0, 'c'}, {"help", 0, 0, '?'}, {0, 0, 0, 0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        switch (c) {
        case 'h': o->host = optarg; break;
        case 'p': o->port = atoi(optarg); break;
        case 's': o->subject = optarg; break;
        case 'k': o->subjects = atoi(optarg); break;
        case 'n': o->connections = atoi(optarg); break;
        case 'a': o->appenders = atoi(optarg); break;
        case 'b': o->size = atoi(optarg); break;
        case 't': o->seconds = atof(optarg); break;
        case 'w': o->warmup = atof(optarg); break;
        case 'r': o->rate = atof(optarg); break;
        case 'm': o->max_appends = atoll(optarg); break;
        case 'i': o->msg_id = true; break;
        case 'l': o->appenders = o->connections = 1; break;
        case 'P': o->ping = true; break;
        case 'z': o->bare_zero = true; break;
        case 'S': o->respond = true; break;
        case 'R': o->redis = true; break;
        case 'B': o->beam = true; break;
        case 'j': o->json = true; break;
        case 'c': o->ceiling_port = atoi(optarg); break;
        default: fputs(HELP, stdout); exit(c == '?' && optopt == 0 ? 0 : 2);
        }
    }
    if (o->ping) o->appenders = o->connections;
    if (o->appenders < 1 || o->connections < 1 || o->subjects < 1 || o->size < 0 ||
        o->seconds <= 0 || o->warmup < 0 || o->warmup >= 1 || o->connections > o->appenders)
        die("options out of range (connections must not exceed appenders; see --help)");
}
