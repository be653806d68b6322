"""Redis Streams with a sync before every reply: append-only file, `appendfsync always`.

Get it: `apt-get install redis-server` (Debian, Ubuntu) or any Redis of 6 or newer on the PATH.
Redis syncs once per turn of its event loop, so it has a group commit of its own. With K partitions
there are K keys. Records stay in the server's memory: loads must stay short.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.process import (
    LOOPBACK,
    find_program,
    free_ports,
    fresh_dir,
    server,
    wait_for_port,
)
from benchmarks.peers.system import Ack, Place, Session, System

HOW_TO_GET = "`apt-get install redis-server`, or put a redis-server of 6 or newer on the PATH"
STREAM = "bench"


@dataclass(frozen=True)
class RedisSession:
    """A running redis-server."""

    pid: int
    port: int
    version: str
    client_prefix: tuple[str, ...]

    def run(self, load: Load) -> LoadResult:
        """One load of XADD, spread over `load.subjects` keys."""
        redis_load = replace(load, subject=STREAM, redis=True)
        return run_load(redis_load, LOOPBACK, self.port, self.client_prefix)


@contextlib.contextmanager
def open_redis(place: Place, appendfsync: str = "always") -> Iterator[Session]:
    """A redis-server on a free port with an empty data directory."""
    program = find_program("redis-server", HOW_TO_GET)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    port = free_ports(1)[0]
    with fresh_dir(place.data_root, "redis") as folder:
        words = [*place.server_prefix, program, "--bind", LOOPBACK, "--port", str(port)]
        words += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", appendfsync]
        words += ["--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]
        log = folder / "server.log"
        with server(words, log) as process:
            wait_for_port(process, port, log)
            words_of_version = version.stdout.split()
            yield RedisSession(
                process.pid, port, f"redis {words_of_version[2]}", place.client_prefix
            )


REDIS = System(
    name="redis",
    label="Redis Streams, appendfsync always",
    ack=Ack.DISK,
    settings='appendonly yes, appendfsync always, save "", auto-aof-rewrite-percentage 0',
    open=open_redis,
)
