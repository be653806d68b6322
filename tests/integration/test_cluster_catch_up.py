"""A broker that was away for megabytes, and is killed again as soon as it has them."""

import os

import pytest

import strandline
from tests.kit.clusters import WITH_HTTP, figure, in_sync, leader_of, read_at

COUNT = 200
RECORD_BYTES = 64 << 10
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def more_arguments():
    """Let the brokers have metrics."""
    return WITH_HTTP


def append(server, count):
    """Append distinct records; return them in order."""
    values = [os.urandom(RECORD_BYTES) for _ in range(count)]
    with strandline.connect(server.flight) as client, client.producer("orders") as producer:
        for value in values:
            producer.append(value)
    return values


def test_what_a_copy_caught_up_with_survives_a_kill(cluster, kit):
    """Batches that went only to segments are complete after it, and replication continues."""

    def create():
        with strandline.connect(cluster[1].flight) as client:
            client.create_stream("orders", replicas=3, min_isr=2, segment_bytes=4 << 20)

    kit.persist(create)
    kit.persist(lambda: in_sync(cluster))
    leader = kit.persist(lambda: leader_of(cluster))
    away = next(number for number in cluster if number != leader)
    values = append(cluster[leader], 5)
    cluster[away].kill()
    values += append(cluster[leader], COUNT)
    cluster[away].start()
    kit.persist(lambda: in_sync(cluster))
    caught_up = figure(cluster[away], "strandline_bulk_bytes_total")
    assert caught_up > COUNT * RECORD_BYTES / 2
    values += append(cluster[leader], 5)
    for _ in range(2):
        cluster[away].kill()
        cluster[away].start()
        kit.persist(lambda: in_sync(cluster))
        assert figure(cluster[away], "strandline_bulk_bytes_total") == 0, "it had everything"
        assert read_at(cluster[away], kit, count=len(values)) == values
    assert not any("corruption" in line or "lost" in line for line in cluster[away].errors)
