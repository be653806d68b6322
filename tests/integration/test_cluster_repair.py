"""Real brokers whose files were damaged while they were stopped: everything is served, whole."""

import urllib.request

import pytest

import strandline
from strandline.client.connection import Connection
from strandline.protocol import admin
from strandline.protocol.cluster import CLUSTER_STATUS, ClusterStatus
from strandline.protocol.tickets import ReadRequest
from strandline.record.batch import read_header

IDS = (1, 2, 3)
COUNT = 400
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def load(cluster, kit):
    """A stream of small batches in several segments on every broker; the values."""

    def create():
        with strandline.connect(cluster[1].flight) as client:
            client.create_stream("orders", replicas=3, min_isr=2, segment_bytes=64 << 10)

    kit.persist(create)
    values = [b"record-%04d" % number + bytes(500 + number % 90) for number in range(COUNT)]
    leader = kit.persist(lambda: leader_of(cluster))
    with strandline.connect(cluster[leader].flight) as client:
        for value in values:
            client.append("orders", value)
    kit.persist(lambda: in_sync(cluster))
    return values


def status(server):
    connection = Connection(server.flight, timeout_s=5)
    try:
        [found] = connection.action(CLUSTER_STATUS, None, ClusterStatus)
    finally:
        connection.close()
    assert found.partitions, "it has just started"
    return found.partitions[0]


def leader_of(cluster):
    leader = status(cluster[2]).leader
    assert leader is not None
    return leader


def in_sync(cluster):
    assert all(tuple(status(server).isr) == IDS for server in cluster.values())


def damage(server):
    """Flip a bit in the second batch of each segment, and in the first and third of the last."""
    files = sorted((server.data_dir / "logs").rglob("*.log"))
    assert len(files) > 1, "several segments"
    damaged = 0
    for file in files:
        data = bytearray(file.read_bytes())
        starts, position = [], 0
        while position < len(data):
            starts.append(position)
            position += read_header(data, position).length
        for number in {1} if file != files[-1] else {0, 1, 2}:
            data[starts[number] + 40 + number * 8] ^= 1 << number
            damaged += 1
        file.write_bytes(data)
    return damaged


def values_at(server, kit):
    """Everything, in one read at this very broker, once it knows that all of it is committed."""
    connection = Connection(server.flight, timeout_s=30)

    def is_committed():
        name = admin.StreamName(name="orders")
        [info] = connection.action(admin.STREAM_INFO, name, admin.StreamInfo)
        assert info.partitions[0].high_watermark == COUNT

    try:
        kit.persist(is_committed)
        read = connection.read(ReadRequest(stream="orders", partition=0, stop=COUNT))
        return read.read_all()["value"].to_pylist()
    finally:
        connection.close()


def figure(server, name):
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_damaged_files_of_followers_and_leaders_are_mended(cluster, kit):
    """Whoever leads, each broker in turn finds its damage while it serves, and serves all of it."""
    values = load(cluster, kit)
    leader = leader_of(cluster)
    follower = next(number for number in IDS if number != leader)
    for victim in (follower, leader):
        assert cluster[victim].stop() == 0
        count = damage(cluster[victim])
        cluster[victim].start()
        kit.persist(lambda: in_sync(cluster))
        assert values_at(cluster[victim], kit) == values
        assert figure(cluster[victim], "strandline_repaired_batches_total") == count
        assert figure(cluster[victim], "strandline_failed_repairs_total") == 0
        assert any("were mended" in line for line in cluster[victim].errors)
    for server in cluster.values():
        assert values_at(server, kit) == values
