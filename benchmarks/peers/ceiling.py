"""The generator's own ceiling, as rows beside the systems: servers that ack and store nothing.

`ceiling` is the built-in no-op server; `ceiling-nats` is a no-op subscriber behind a real
nats-server, so it holds the cost of the two hops through that server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.loadgen import Load, LoadResult, ceiling_server, responder, run_load
from benchmarks.peers.jetstream import find_nats_server
from benchmarks.peers.process import LOOPBACK, free_ports, fresh_dir, server, wait_for_port
from benchmarks.peers.system import Ack, Place, Session, System

SUBJECT = "bench"


@dataclass(frozen=True)
class CeilingSession:
    """A no-op server or responder."""

    pid: int
    port: int
    version: str
    client_prefix: tuple[str, ...]

    def run(self, load: Load) -> LoadResult:
        """One load on `bench`, or on `bench.0` .. `bench.K-1`."""
        return run_load(replace(load, subject=SUBJECT), LOOPBACK, self.port, self.client_prefix)


@contextlib.contextmanager
def open_ceiling(place: Place) -> Iterator[Session]:
    """The built-in no-op server on a free port."""
    with ceiling_server(place.server_prefix) as no_op:
        yield CeilingSession(no_op.pid, no_op.port, "loadgen", place.client_prefix)


@contextlib.contextmanager
def open_ceiling_nats(place: Place) -> Iterator[Session]:
    """A nats-server (no JetStream) on a free port and the built-in responder behind it."""
    port = free_ports(1)[0]
    subject = SUBJECT if place.partitions == 1 else f"{SUBJECT}.*"
    words = [*place.server_prefix, find_nats_server(), "-a", LOOPBACK, "-p", str(port)]
    with fresh_dir(place.data_root, "ceiling") as folder:
        log = folder / "server.log"
        with server(words, log) as process:
            wait_for_port(process, port, log)
            with responder(LOOPBACK, port, subject, place.server_prefix) as no_op:
                yield CeilingSession(no_op.pid, port, "loadgen", place.client_prefix)


CEILING = System(
    name="ceiling",
    label="no-op server (generator's ceiling)",
    ack=Ack.NONE,
    settings="stores nothing",
    open=open_ceiling,
)
CEILING_NATS = System(
    name="ceiling-nats",
    label="no-op subscriber behind nats-server",
    ack=Ack.NONE,
    settings="stores nothing",
    open=open_ceiling_nats,
)
