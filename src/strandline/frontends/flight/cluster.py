"""A cluster as its brokers describe it to clients."""

from strandline.broker.broker import Broker
from strandline.broker.cluster.broker import ClusterBroker
from strandline.errors import InvalidRequestError
from strandline.metadata.image import MetadataImage
from strandline.protocol.admin import BrokerInfo, ClusterStatus, CopiesInfo


def cluster_status(broker: Broker) -> ClusterStatus:
    """What this broker knows of its cluster.

    Raises:
        InvalidRequestError: it stands alone.
    """
    if not isinstance(broker, ClusterBroker):
        raise InvalidRequestError("this broker stands alone; see docs/cluster.md")
    image = broker.membership.machine.image
    return ClusterStatus(
        cluster=broker.config.cluster.name,
        broker=broker.membership.me,
        controller=broker.membership.quorum.leader,
        brokers=tuple(
            BrokerInfo(id=b.id, state=b.state, flight_address=b.flight_address, rack=b.rack)
            for _, b in sorted(image.brokers.items())
        ),
        partitions=_partitions(image),
    )


def _partitions(image: MetadataImage) -> tuple[CopiesInfo, ...]:
    return tuple(
        CopiesInfo(
            stream=name.stream,
            partition=name.partition,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
        )
        for name, partition in image.partitions()
    )
