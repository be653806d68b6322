"""Where a subscription ends, while records are under way to the other replicas."""

from strandline.frontends.grpc._generated import liftbridge_pb2 as pb
from strandline.frontends.grpc.liftbridge.subscribe import extent_of

LATEST = pb.SubscribeRequest(startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)


def test_the_latest_record_is_the_last_that_the_leader_has_acknowledged(partition):
    """An ack of policy LEADER comes before the commit, and what was acked must not be missed."""
    assert (partition.high_watermark, partition.log_end_offset) == (1, 3)
    assert extent_of(LATEST, partition).stop == 3
    late = pb.SubscribeRequest(
        startPosition=pb.EARLIEST, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=1 << 62
    )
    assert extent_of(late, partition).stop == 3


def test_at_a_replica_it_is_the_last_that_is_committed(partition):
    """What it has beyond that may never be."""
    partition.is_led = False
    assert extent_of(LATEST, partition).stop == 1
