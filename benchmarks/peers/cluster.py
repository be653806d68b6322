"""Three servers on this machine, each record on the disks of all three: Strandline and JetStream.

Rules: loads go to the server that leads the one stream; one parent process holds the three, so that
their CPU and system calls are counted together. Strandline acks what every in-sync replica has
synced (all three unless one lags), JetStream what a majority of its Raft group has.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import broker
from benchmarks.loadgen import Load, LoadResult, run_load
from benchmarks.peers.jetstream import SUBJECT, find_nats_server
from benchmarks.peers.natswire import NatsError, request
from benchmarks.peers.process import (
    LOOPBACK,
    StartError,
    free_ports,
    fresh_dir,
    log_tail,
    server,
    wait_for_line,
    wait_for_port,
)
from benchmarks.peers.strandline import STREAM, run_cli
from benchmarks.peers.system import Ack, Place, Session, System

BROKERS: Final = 3
READY_TIMEOUT_S: Final = 60.0
SETTLE_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.2


@dataclass(frozen=True)
class ClusterSession:
    """Three running servers and where the leader of the one stream listens.

    `pid` is their parent: CPU and system calls of its descendants are the cluster's.
    """

    pid: int
    port: int
    version: str
    subject: str
    client_prefix: tuple[str, ...]

    def run(self, load: Load) -> LoadResult:
        """One load on the stream's subject, at its leader."""
        load = replace(load, subject=self.subject, bare_zero=True)
        return run_load(load, LOOPBACK, self.port, self.client_prefix)


# Strandline


@dataclass(frozen=True)
class Brokers:
    """A running cluster of brokers, each with the ready line it printed."""

    pid: int
    ready: list[dict[str, Any]]
    folder: Path

    def address(self, number: int) -> str:
        """Where Arrow Flight of broker `number`, from 1, listens."""
        return f"{LOOPBACK}:{self.ready[number - 1]['flight_port']}"

    def status(self, number: int = 1) -> dict[str, Any]:
        """What `strandline cluster status` says at a broker."""
        words = ("cluster", "status", "--server", self.address(number), "--output", "json")
        found: dict[str, Any] = json.loads(run_cli(broker.program(), *words))
        return found


@contextlib.contextmanager
def brokers(place: Place, count: int = BROKERS) -> Iterator[Brokers]:
    """A cluster of brokers without any data, by `strandline dev`."""
    with fresh_dir(place.data_root, "cluster") as folder:
        log = folder / "dev.log"
        words = [broker.program(), "dev", "--nodes", str(count), "--port-base", "0"]
        words += ["--data-dir", str(folder / "data"), "--output", "json"]
        env = broker.BYTECODE
        with server([*place.server_prefix, *words], log, cwd=folder, env=env) as process:
            ready: list[dict[str, Any]] = []
            for number in range(1, count + 1):
                start = f'{{"event":"ready","data_dir":"{folder / "data" / f"broker-{number}"}"'
                line = wait_for_line(process, log, start, timeout_s=READY_TIMEOUT_S)
                ready.append(json.loads(line))
            yield Brokers(process.pid, ready, folder)


def create_replicated(cluster: Brokers, *, partitions: int = 1) -> None:
    """Creates the stream with a replica on every broker; StartError if it cannot be had in time."""
    words = ["stream", "create", STREAM, "--subject", STREAM, "--partitions", str(partitions)]
    words += ["--replicas", str(len(cluster.ready)), "--min-isr", "2", "--acks", "replicated"]
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        try:
            run_cli(broker.program(), *words, "--server", cluster.address(1))
        except StartError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return


def wait_in_sync(cluster: Brokers) -> int:
    """Waits until every replica of the stream is in sync; the leader of its first partition."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        parts = [p for p in cluster.status()["partitions"] if p["stream"] == STREAM]
        if parts and all(p["leader"] and len(p["isr"]) == len(cluster.ready) for p in parts):
            return int(parts[0]["leader"])
        time.sleep(POLL_S)
    tail = log_tail(cluster.folder / "dev.err")
    raise StartError(f"replicas were not in sync in time:\n{tail}")


@contextlib.contextmanager
def open_brokers(place: Place, *, port_key: str) -> Iterator[Session]:
    """Three brokers with an empty stream; loads go to the leader's listener named by `port_key`."""
    version = run_cli(broker.program(), "version")
    with brokers(place) as cluster:
        create_replicated(cluster, partitions=place.partitions)
        leader = wait_in_sync(cluster)
        port = int(cluster.ready[leader - 1][port_key])
        yield ClusterSession(cluster.pid, port, version, STREAM, place.client_prefix)


# JetStream


def write_config(folder: Path, number: int, ports: list[int], stores: Path) -> Path:
    """The configuration of one of three clustered nats-servers."""
    client, route = ports[number], ports[number + BROKERS]
    routes = ", ".join(f'"nats://{LOOPBACK}:{port}"' for port in ports[BROKERS:])
    path = folder / f"server-{number}.conf"
    path.write_text(
        f'server_name: "s{number}"\n'
        f'listen: "{LOOPBACK}:{client}"\n'
        f'jetstream {{ store_dir: "{stores / f"store-{number}"}", sync_interval: always }}\n'
        f'cluster {{ name: "bench", listen: "{LOOPBACK}:{route}", routes: [{routes}] }}\n'
    )
    return path


def create_r3_stream(port: int) -> str:
    """Creates the R3 stream once the servers have elected a leader; name of the stream's leader."""
    body = {"name": "BENCH0", "subjects": [SUBJECT], "storage": "file", "num_replicas": BROKERS}
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    said = ""
    while time.monotonic() < deadline:
        with contextlib.suppress(NatsError, OSError):
            reply = request(LOOPBACK, port, "$JS.API.STREAM.CREATE.BENCH0", body)
            info = request(LOOPBACK, port, "$JS.API.STREAM.INFO.BENCH0", {})
            state = info.get("cluster", {})
            followers = state.get("replicas", [])
            if state.get("leader") and all(each["current"] for each in followers):
                return str(state["leader"])
            said = str(reply.get("error", ""))
        time.sleep(POLL_S)
    raise StartError(f"no R3 stream in time: {said}")


@contextlib.contextmanager
def open_jetstream_r3(place: Place) -> Iterator[Session]:
    """Three clustered nats-servers under one shell; loads go to the leader of the stream."""
    program = find_nats_server()
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    ports = free_ports(2 * BROKERS)
    with fresh_dir(place.data_root, "jetstream-r3") as folder:
        configs = [write_config(folder, number, ports, folder) for number in range(BROKERS)]
        starts = " ".join(f'"{program}" -c "{config}" &' for config in configs)
        log = folder / "servers.log"
        with server([*place.server_prefix, "sh", "-c", f"{starts} wait"], log) as process:
            for port in ports[:BROKERS]:
                wait_for_port(process, port, log)
            leader = int(create_r3_stream(ports[0]).removeprefix("s"))
            yield ClusterSession(
                process.pid, ports[leader], version.stdout.strip(), SUBJECT, place.client_prefix
            )


JETSTREAM_R3: Final = System(
    name="jetstream-r3",
    label="JetStream R3, sync always",
    ack=Ack.MAJORITY,
    settings="3 servers, storage=file, num_replicas=3, sync_interval: always, load at the leader",
    open=open_jetstream_r3,
)


def _strandline(name: str, label: str, port_key: str) -> System:
    return System(
        name=name,
        label=label,
        ack=Ack.MAJORITY,
        settings=f"3 brokers, --replicas 3 --min-isr 2 --acks replicated, load on {port_key} of "
        "the leader; an ack waits for every in-sync replica",
        open=functools.partial(open_brokers, port_key=port_key),
    )


STRANDLINE_R3: Final = _strandline("strandline-r3", "Strandline, 3 replicas", "ingest_port")
STRANDLINE_R3_NATS: Final = _strandline(
    "strandline-r3-nats", "Strandline, 3 replicas, by nats-server", "nats_port"
)
