"""A partition's assignment, as its replica is told, and the error that names its leader."""

import pytest

from strandline.broker.cluster.assignment import assignment, not_leader
from strandline.config import StreamConfig
from strandline.core.metadata.image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    StreamImage,
)
from strandline.core.replication import events as ev
from strandline.types import PartitionName

NAME = PartitionName("s", 0)
PARTITION = PartitionImage(
    log_id=1, replicas=(1, 2), isr=(1,), leader=2, leader_epoch=4, version=9, filling=(2,)
)


def image(**settings):
    made = MetadataImage().with_broker(
        BrokerImage(id=2, directory_id="d", incarnation="r", flight_address="b:2")
    )
    config = StreamConfig(name="s", subject="s", min_isr=2, replicas=2, **settings)
    stream = StreamImage(config=config, created_ns=1, partitions=(PARTITION,))
    return made.with_streams({"s": stream})


@pytest.mark.parametrize("is_older", [True, False])
@pytest.mark.parametrize(("settings", "filling"), [({}, ()), ({"compact": True}, (2,))])
def test_a_replica_is_told_what_metadata_says(settings, filling, is_older):
    """Which replicas are partial matters only for logs that may have gaps."""
    assert assignment(PARTITION, image(**settings), NAME, is_older=is_older) == ev.Assigned(
        epoch=4,
        leader=2,
        replicas=(1, 2),
        isr=(1,),
        version=9,
        min_isr=2,
        unclean=is_older,
        filling=filling,
    )


def test_the_error_names_the_leader_and_where_it_is():
    """Or says that there is none, for which others answer."""
    error = not_leader(image(), NAME, PARTITION)
    assert error.message == "broker 2 leads s/0, at b:2 (Flight); retry there"
    assert not error.is_leaderless
    leaderless = PartitionImage(log_id=1)
    for partition in (None, leaderless):
        error = not_leader(image(), NAME, partition)
        assert error.message == "s/0 has no leader now; retry"
        assert error.is_leaderless
