"""The age of a pipeline's backlog, and the replicas of its output, at a real broker."""

import time

import pytest

import strandline
from strandline.spark.connection import forget_client
from strandline.spark.pipelines.outputs import ensure_stream, stream_of
from strandline.spark.pipelines.unread import oldest_unread_ms
from strandline.testing import Server


@pytest.fixture
def broker():
    """A broker, and a client of it."""
    with Server() as url, strandline.connect(url) as client:
        yield str(url), client
        forget_client(str(url))


def test_the_oldest_unread_record_of_each_partition_has_an_age(broker):
    """Since it was stored; a partition that was read to its end has none."""
    url, client = broker
    client.create_stream("orders", partitions=3)
    before_ns = time.time_ns()
    for partition in (0, 1):
        for value in (b"a", b"b"):
            client.append("orders", value, partition=partition)
    found = oldest_unread_ms(url, {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 0})
    assert list(found) == ["orders/0"]
    assert 0 <= found["orders/0"] <= (time.time_ns() - before_ns) // 1_000_000


def test_no_age_is_told_of_what_cannot_be_asked(broker):
    """The report continues without it."""
    url, _ = broker
    assert oldest_unread_ms(url, {("unknown", 0): 0}) == {}


def test_an_output_is_made_once_like_its_input(broker):
    """With its settings, and at most one replica per broker; an existing one stays."""
    url, client = broker
    source = client.create_stream("orders", partitions=3)
    ensure_stream(url, "copy", like=source, partitions=3)
    ensure_stream(url, "copy", like=source, partitions=2)
    made = stream_of(url, "copy")
    assert (len(made.partitions), made.config.replicas, made.config.min_isr) == (3, 1, 1)
