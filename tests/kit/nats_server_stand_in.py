#!/usr/bin/env python3
"""A program named ``nats-server`` for the test suites of NATS clients: starts a broker instead.

Link it as ``nats-server`` into a directory at the front of ``PATH``, and run a suite that starts
servers by that name (docs/compatibility.md has the commands). It understands the flags for the
port, the monitoring port (only ``/varz`` answers, once the broker is ready), the directory, the log
file and the pid file. All other flags and configuration files are ignored. The broker replaces the
process, so that signals reach the broker.
"""

import http.server
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from strandline.process.ports import free_ports

POLL_S = 0.1
FLAGS = {"--port": "-p", "--http_port": "-m", "-sd": "--store_dir", "--log": "-l", "--pid": "-P"}


def parse_flags(words):
    """Return the value of each flag, by short names: after ``=``, or else the next word."""
    found = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        found[FLAGS.get(name, name)] = value if equals else following
    return found


class Varz(http.server.BaseHTTPRequestHandler):
    """Answers that the server runs, with the fields that the suites read."""

    def do_GET(self):
        self.send_response(200 if self.path == "/varz" else 404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Log nothing."""


def watch(broker, http_port, flags, port, directory):
    """Report to the suite, as nats-server does, that the broker is ready; wait for its end."""
    ready = f"http://127.0.0.1:{http_port}/health/ready"
    while os.getppid() == broker:
        try:
            with urllib.request.urlopen(ready, timeout=2):
                break
        except OSError:
            time.sleep(POLL_S)
    with Path(flags.get("-l", os.devnull)).open("a") as log:
        log.write(f'[1] [INF]   Store Directory: "{directory}"\n')
        log.write(f"[1] [INF] Listening for client connections on 127.0.0.1:{port}\n")
    if "-m" not in flags:
        return
    server = http.server.HTTPServer(("127.0.0.1", int(flags["-m"])), Varz)
    server.timeout = POLL_S
    while os.getppid() == broker:
        server.handle_request()


def main():
    """Start the broker in this process, and watch it from a child process."""
    flags = parse_flags(sys.argv[1:])
    port, http_port = free_ports(2)
    if int(flags.get("-p", -1)) > 0:
        port = int(flags["-p"])
    directory = flags.get("--store_dir") or tempfile.mkdtemp(prefix="nats-server-stand-in-")
    Path(directory).mkdir(parents=True, exist_ok=True)
    broker = os.getpid()
    if "-P" in flags:
        Path(flags["-P"]).write_text(str(broker))
    if os.fork() == 0:
        watch(broker, http_port, flags, port, directory)
        os._exit(0)
    # To a file: suites read no output, and a pipe that nobody reads would block the broker.
    quiet = os.open(Path(directory, "stand-in.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    command = shutil.which("strandline", path=str(Path(sys.executable).parent)) or "strandline"
    ports = {"nats": port, "http": http_port, "ingest": 0, "flight": 0}
    words = [word for name, each in ports.items() for word in (f"--{name}-port", str(each))]
    os.execvp(command, [command, "serve", "--data-dir", directory, *words])


if __name__ == "__main__":
    main()
