"""Strandline on one broker: `disk` and `memory` acks, by its own ingest port and by nats-server.

Rules: the broker is started by the installed `strandline serve`, which prints one JSON line
`{"event": "ready", ...}` with its ports; streams are made by `strandline stream create`. Partition
N > 0 of a stream has the subject `S.N`, partition 0 the bare `S` (`load.bare_zero`).
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks import broker
from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.process import LOOPBACK, StartError
from benchmarks.peers.system import Ack, Place, Session, System

STREAM = "bench"
CLI_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class StrandlineSession:
    """A running broker with one stream."""

    pid: int
    port: int
    version: str
    client_prefix: tuple[str, ...]

    def run(self, load: Load) -> LoadResult:
        """One load on the stream's subject, over all its partitions in turn."""
        load = replace(load, subject=STREAM, bare_zero=True)
        return run_load(load, LOOPBACK, self.port, self.client_prefix)


def run_cli(program: str, *words: str) -> str:
    """Runs a `strandline` command; its output, or StartError with what it said."""
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=CLI_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        said = f"{done.stdout}\n{done.stderr}".strip()
        raise StartError(f"strandline {' '.join(words)} ended with {done.returncode}: {said}")
    return done.stdout.strip()


def create_stream(server: broker.Broker, partitions: int, acks: str) -> None:
    """Creates the stream `bench` with the CLI."""
    words = ["stream", "create", STREAM, "--subject", STREAM, "--partitions", str(partitions)]
    run_cli(broker.program(), *words, "--server", server.address, "--acks", acks)


@contextlib.contextmanager
def open_strandline(place: Place, *, acks: str, port_key: str) -> Iterator[Session]:
    """A fresh broker and an empty stream; loads go to the listener that `port_key` names."""
    version = run_cli(broker.program(), "version")
    with broker.fresh(place.data_root, prefix=place.server_prefix) as server:
        create_stream(server, place.partitions, acks)
        port = int(server.ready[port_key])
        yield StrandlineSession(server.pid, port, version, place.client_prefix)


def _system(name: str, label: str, ack: Ack, acks: str, port_key: str) -> System:
    return System(
        name=name,
        label=label,
        ack=ack,
        settings=f"1 broker, 1 replica, --acks {acks}, load on {port_key}",
        open=functools.partial(open_strandline, acks=acks, port_key=port_key),
    )


STRANDLINE = _system("strandline", "Strandline, disk", Ack.DISK, "disk", "ingest_port")
STRANDLINE_NATS = _system(
    "strandline-nats", "Strandline, disk, by nats-server", Ack.DISK, "disk", "nats_port"
)
STRANDLINE_MEMORY = _system(
    "strandline-memory", "Strandline, memory", Ack.MEMORY, "memory", "ingest_port"
)
STRANDLINE_NATS_MEMORY = _system(
    "strandline-nats-memory",
    "Strandline, memory, by nats-server",
    Ack.MEMORY,
    "memory",
    "nats_port",
)
