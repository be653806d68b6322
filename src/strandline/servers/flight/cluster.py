"""Handlers of the cluster commands; a broker that is not part of a cluster rejects them."""

from typing import TYPE_CHECKING

from strandline.api import cluster
from strandline.api.admin import StreamInfo
from strandline.api.cluster import BrokerInfo, ClusterStatus, CopiesInfo
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import stranded
from strandline.servers.flight.actions import ActionContext, handles
from strandline.servers.flight.info import stream_info
from strandline.types import BrokerId, PartitionName

if TYPE_CHECKING:
    from strandline.broker.cluster.broker import ClusterBroker


@handles(cluster.CLUSTER_STATUS)
def _status(context: ActionContext, _: None) -> list[ClusterStatus]:
    return [cluster_status(context.member)]


@handles(cluster.ADMIT_BROKER)
def _admit_broker(context: ActionContext, order: cluster.AdmitBrokerRequest) -> list[None]:
    context.run(context.member.operations.admit(BrokerId(order.broker), order.peer_address))
    return []


@handles(cluster.DRAIN_BROKER)
def _drain_broker(context: ActionContext, order: cluster.DrainBroker) -> list[None]:
    context.run(context.member.operations.drain(BrokerId(order.broker), is_on=order.is_on))
    return []


@handles(cluster.REMOVE_BROKER)
def _remove_broker(context: ActionContext, order: cluster.WhichBroker) -> list[None]:
    context.run(context.member.operations.remove(BrokerId(order.broker)))
    return []


@handles(cluster.REPLACE_DISK)
def _replace_disk(context: ActionContext, order: cluster.WhichBroker) -> list[None]:
    context.run(context.member.operations.replace_disk(BrokerId(order.broker)))
    return []


@handles(cluster.REASSIGN)
def _reassign(context: ActionContext, order: cluster.Reassign) -> list[cluster.MovesStarted]:
    to = tuple(BrokerId(broker) for broker in order.to)
    moves = context.run(context.member.operations.reassign(order.stream, order.partition, to))
    return [cluster.MovesStarted(moves=moves)]


@handles(cluster.REBALANCE)
def _rebalance(context: ActionContext, _: None) -> list[cluster.MovesStarted]:
    return [cluster.MovesStarted(moves=context.run(context.member.operations.rebalance()))]


@handles(cluster.ELECT_LEADER)
def _elect_leader(context: ActionContext, order: cluster.ElectLeaderRequest) -> list[None]:
    name, leader = PartitionName(order.stream, order.partition), BrokerId(order.leader)
    context.run(context.member.operations.elect(name, leader, is_unclean=order.is_unclean))
    return []


@handles(cluster.ADD_PARTITIONS)
def _add_partitions(
    context: ActionContext, order: cluster.AddPartitionsRequest
) -> list[StreamInfo]:
    changed = context.run(context.member.add_partitions(order.name, order.count))
    return [stream_info(changed, context.broker)]


def cluster_status(broker: "ClusterBroker") -> ClusterStatus:
    """Return the state of the cluster that this broker knows."""
    image, quorum = broker.membership.machine.image, broker.membership.quorum
    voters, age_ms = quorum.members.voters, broker.membership.image_age_ms
    if not age_ms and broker.metadata_error is not None:
        age_ms = 1  # there is a controller, but its metadata has not arrived since the start
    return ClusterStatus(
        cluster=broker.config.cluster.name,
        broker=broker.membership.me,
        controller=quorum.leader,
        brokers=tuple(
            BrokerInfo(
                id=b.id,
                state="unknown" if age_ms else b.state,
                flight_address=b.flight_address,
                rack=b.rack,
                is_voter=b.id in voters,
            )
            for _, b in sorted(image.brokers.items())
        ),
        partitions=_partitions(image),
        removed=image.removed,
        age_ms=age_ms,
    )


def _partitions(image: MetadataImage) -> tuple[CopiesInfo, ...]:
    without_place = set(stranded(image))
    return tuple(
        CopiesInfo(
            stream=name.stream,
            partition=name.partition,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            replicas=partition.replicas,
            isr=partition.isr,
            adding=partition.adding,
            removing=partition.removing,
            is_stranded=name in without_place,
        )
        for name, partition in image.partitions()
    )
