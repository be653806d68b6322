"""Three brokers as processes, and helpers for tests of the ``cluster`` fixture.

Functions with a parameter ``stream`` use ``orders`` by default.
"""

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from strandline.api.cluster import CLUSTER_STATUS
from strandline.client.connection import BrokerConnection
from strandline.process.ports import free_ports
from strandline.testing import ProcessServer
from strandline.testing.replica import ReplicaReader
from tests.kit.waiting import until

IDS = (1, 2, 3)
WITH_HTTP = ("--http-port", "0")


@contextmanager
def three_brokers(directory, *, environment_of=lambda _: {}, ports=(), more=()):
    """Start three brokers, yield them by number, and kill them at the end.

    They have no HTTP server by default, which would take an eighth of the start.

    Args:
        directory: the parent of their data directories.
        environment_of: returns the variables of a broker from its number.
        ports: the ports for the links between them; by default any.
        more: further arguments for each broker, such as ``WITH_HTTP``.
    """
    ports = ports or free_ports(len(IDS))
    peers = ",".join(f"{n}=127.0.0.1:{port}" for n, port in zip(IDS, ports, strict=True))
    servers = {}
    for number, port in zip(IDS, ports, strict=True):
        arguments = ("--broker-id", str(number), "--cluster-id", "test", "--peers", peers)
        arguments += ("--peer-port", str(port), "--ingest-port", "-1", "--http-port", "-1", *more)
        servers[number] = ProcessServer(
            directory / f"broker-{number}",
            arguments=arguments,
            environment=environment_of(number),
        )
    try:
        with ThreadPoolExecutor() as starting:
            list(starting.map(ProcessServer.start, servers.values()))
        yield servers
    finally:
        for number, server in servers.items():
            server.kill()
            print(f"broker {number} logged:", *server.errors, sep="\n")  # noqa: T201  if it fails


def status(server, stream="orders"):
    """Return a broker's view of the stream's partition 0.

    Other streams may come first: with gRPC on, a cluster creates internal streams at the start.
    """
    copies = [each for each in partitions(server, stream) if each.partition == 0]
    assert copies, "it has just started"
    return copies[0]


def partitions(server, stream):
    """Return a broker's view of the stream's partitions; none if it does not know the stream."""
    connection = BrokerConnection(server.flight, timeout_s=5)
    try:
        [found] = connection.action(CLUSTER_STATUS, None)
    finally:
        connection.close()
    return [each for each in found.partitions if each.stream == stream]


def leader_of(cluster, stream="orders"):
    """Return the number of the broker that leads partition 0, once broker 2 knows it."""
    return until(lambda: status(cluster[2], stream).leader, "no leader", retried=(AssertionError,))


def in_sync(cluster):
    """Check that every broker knows all replicas to be in sync."""
    assert all(tuple(status(server).isr) == tuple(cluster) for server in cluster.values())


def read_at(server, kit, *, count):
    """Read ``count`` records at this broker only, once it knows that they are committed."""
    with ReplicaReader(server.flight, timeout_s=30) as replica:

        def is_committed():
            assert replica.ends("orders") == {0: count}

        kit.persist(is_committed)
        batches = replica.read("orders", stop=count)
        return [value for batch in batches for value in batch["value"].to_pylist()]


def figure(server, name):
    """Return one of the broker's metrics, which has no labels."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
