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
from pathlib import Path

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


def find_redis() -> str:
    """The redis-server of the PATH."""
    return find_program("redis-server", HOW_TO_GET)


def server_words(program: str, port: int, folder: Path, appendfsync: str) -> list[str]:
    """The command of a server that stores in `folder`."""
    words = [program, "--bind", LOOPBACK, "--port", str(port)]
    words += ["--dir", str(folder), "--appendonly", "yes", "--appendfsync", appendfsync]
    return [*words, "--save", "", "--auto-aof-rewrite-percentage", "0", "--daemonize", "no"]


def version_of(program: str) -> str:
    """What the server says of its version."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return f"redis {done.stdout.split()[2]}"


@contextlib.contextmanager
def open_redis(place: Place, appendfsync: str = "always") -> Iterator[Session]:
    """A redis-server on a free port with an empty data directory."""
    program = find_redis()
    port = free_ports(1)[0]
    with fresh_dir(place.data_root, "redis") as folder:
        words = [*place.server_prefix, *server_words(program, port, folder, appendfsync)]
        log = folder / "server.log"
        with server(words, log) as process:
            wait_for_port(process, port, log)
            yield RedisSession(process.pid, port, version_of(program), place.client_prefix)


REDIS = System(
    name="redis",
    label="Redis Streams, appendfsync always",
    ack=Ack.DISK,
    settings='appendonly yes, appendfsync always, save "", auto-aof-rewrite-percentage 0',
    open=open_redis,
)
