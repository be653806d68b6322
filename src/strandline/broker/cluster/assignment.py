"""The assignment of a partition: converts its metadata to the event for its replica."""

from strandline.core.metadata.image import MetadataImage, PartitionImage
from strandline.core.replication import events as ev
from strandline.errors import NotLeaderError
from strandline.types import PartitionName


def assignment(
    partition: PartitionImage, image: MetadataImage, name: PartitionName, *, is_older: bool
) -> ev.Assigned:
    """Convert a partition's metadata to the event for its replica.

    Args:
        partition: the partition in the image.
        image: the image of the metadata.
        name: the name of the partition.
        is_older: whether the replica's log is from before an unclean election.
    """
    config = image.streams[name.stream].config
    return ev.Assigned(
        epoch=partition.leader_epoch,
        leader=partition.leader,
        replicas=partition.replicas,
        isr=partition.isr,
        version=partition.version,
        min_isr=config.min_isr,
        unclean=is_older,
        filling=partition.filling if config.has_gaps else (),
    )


def not_leader(
    image: MetadataImage, name: PartitionName, partition: PartitionImage | None
) -> NotLeaderError:
    """Return the error that names the partition's leader and its address."""
    if partition is None or partition.leader is None:
        return NotLeaderError(f"{name} has no leader now; retry", is_leaderless=True)
    leader = image.brokers[partition.leader]
    return NotLeaderError(
        f"broker {leader.id} leads {name}, at {leader.flight_address} (Flight); retry there"
    )
