"""What tests of the ``cluster`` fixture ask its brokers about the stream ``orders``."""

import urllib.request

from strandline.client.connection import Connection
from strandline.protocol.cluster import CLUSTER_STATUS, ClusterStatus
from strandline.testing.replica import ReplicaReader


def status(server):
    """What it says of partition 0."""
    connection = Connection(server.flight, timeout_s=5)
    try:
        [found] = connection.action(CLUSTER_STATUS, None, ClusterStatus)
    finally:
        connection.close()
    assert found.partitions, "it has just started"
    return found.partitions[0]


def leader_of(cluster):
    """The number of the broker that leads it."""
    leader = status(cluster[2]).leader
    assert leader is not None
    return leader


def in_sync(cluster):
    """Assert that every broker knows every copy to be in sync."""
    assert all(tuple(status(server).isr) == tuple(cluster) for server in cluster.values())


def read_at(server, kit, *, count):
    """So many records, in one read at this very broker, once it knows that they are committed."""
    with ReplicaReader(server.flight, timeout_s=30) as replica:

        def is_committed():
            assert replica.ends("orders") == {0: count}

        kit.persist(is_committed)
        batches = replica.read("orders", stop=count)
        return [value for batch in batches for value in batch["value"].to_pylist()]


def figure(server, name):
    """One of its metrics, without labels."""
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
