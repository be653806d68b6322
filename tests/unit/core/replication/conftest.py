"""A log with batches, messages by name, and replicas that need no cluster."""

import pytest

from strandline.core.replication.events import Assigned
from strandline.core.replication.limits import ReplicationLimits
from strandline.core.replication.messages import BatchRef
from strandline.core.replication.replica import Replica
from strandline.core.replication.state import LogState


def ref(base, after, epoch=1, size=10):
    """A batch."""
    return BatchRef(base, after, epoch, size)


@pytest.fixture
def limits():
    return ReplicationLimits(
        replica_lag_ms_max=1000,
        resend_ms=100,
        window_bytes=100,
        spared_window_bytes=20,
        publishing_ms=30,
        read_bytes=50,
    )


@pytest.fixture
def make(limits):
    """Makes a replica; ``epochs`` as (epoch, offset)."""

    def build(me, end=0, *, start=0, hw=0, epochs=((1, 0),)):
        log = LogState(start, end, high_watermark=hw, epochs=epochs if end else ())
        return Replica(me, log, limits=limits, session=me * 1000, incarnation=f"run {me}")

    return build


@pytest.fixture
def assigned():
    """An assignment of brokers 1, 2 and 3, or of others."""

    def build(epoch, leader, *, replicas=(1, 2, 3), isr=(1, 2, 3), version=0, **settings):
        return Assigned(epoch, leader, replicas, isr, version, **settings)

    return build
