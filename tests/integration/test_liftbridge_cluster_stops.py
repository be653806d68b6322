"""A broker without a replica forwards publishes: immediate rejections, and its stop."""

import signal
import time

import grpc
import pytest

import strandline
from strandline.servers.grpc._generated import liftbridge_pb2 as pb

from .test_liftbridge_cluster import IDS, Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
AT_ONCE_S = 5.0
STOP_S = 12.0
"""It hands over the metadata, to brokers of which one stands still; waits for nobody longer."""


@pytest.fixture
def started(tmp_path, grpc_stub):
    cluster = Cluster(tmp_path, grpc_stub)
    try:
        cluster.start()
        until(lambda: len(cluster.metadata(1).brokers) == len(IDS))
        yield cluster
    finally:
        for server in cluster.servers.values():
            if server.is_running:
                server.signal(signal.SIGCONT)
        cluster.stop()


def made(cluster, **settings):
    """A stream, the brokers with its copies, and the one without."""
    addresses = {server.flight: number for number, server in cluster.servers.items()}
    with strandline.connect(next(iter(addresses))) as client:
        client.create_stream("orders", subject="orders", **settings)
        [partition] = client.stream_info("orders").partitions
    keeping = [addresses[partition.leader]]
    keeping += [addresses[a] for a in partition.in_sync if a != partition.leader]
    return keeping, min(set(IDS) - set(keeping))


def publish(cluster, number):
    """Publish once; return the outcome and its time."""
    began = time.monotonic()
    request = pb.PublishRequest(stream="orders", value=b"v", ackPolicy=pb.ALL)
    try:
        cluster.api[number].Publish(request, timeout=60)
        return None, time.monotonic() - began
    except grpc.RpcError as error:
        return error, time.monotonic() - began


def test_too_few_copies_in_sync_are_told_at_once_through_a_broker_without_one(started):
    """As by the leader itself, and not after the time for which a publish is tried."""
    (leader, other), without = made(started, replicas=2, min_isr=2)
    assert publish(started, without)[0] is None
    started.servers[other].kill()

    def refused():
        error, _ = publish(started, without)
        return error is not None and "fewer than 2 replicas" in error.details()

    until(refused)
    error, seconds = publish(started, without)
    assert "fewer than 2 replicas of orders/0 are in sync" in error.details()
    assert seconds < AT_ONCE_S
    assert leader != without


def test_a_stop_does_not_wait_for_a_publish_that_nobody_takes(started):
    """With the only copy's broker standing still, SIGTERM ends another one within seconds."""
    [leader, *_], without = made(started, replicas=1, min_isr=1)
    assert publish(started, without)[0] is None
    started.servers[leader].signal(signal.SIGSTOP)
    request = pb.PublishRequest(stream="orders", value=b"v", ackPolicy=pb.ALL)
    calls = [started.api[without].Publish.future(request, timeout=60) for _ in range(10)]
    time.sleep(3)
    assert not any(call.done() for call in calls), "they wait for a leader"
    began = time.monotonic()
    assert started.servers[without].stop() == 0
    assert time.monotonic() - began < STOP_S
    assert all(call.exception(timeout=5) is not None for call in calls)
