"""Handlers of the cluster actions.

Rules: see ``admin``. A broker that is not part of a cluster refuses every action.
"""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from strandline.api import cluster
from strandline.api.cluster import BrokerInfo, ClusterStatus, CopiesInfo
from strandline.api.wire import decode, refuse_body
from strandline.broker.broker import Broker
from strandline.broker.cluster.broker import ClusterBroker
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import stranded
from strandline.errors import InvalidRequestError
from strandline.servers.flight.actions import ActionContext, Handler
from strandline.servers.flight.info import stream_info
from strandline.types import BrokerId, PartitionName

T = TypeVar("T")


class Change(Protocol):
    """A function that runs a change on the broker's loop and waits for it."""

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result."""
        ...


def cluster_actions(broker: Broker, change: Change) -> dict[str, Handler]:
    """Return the handlers by action.

    Args:
        broker: the broker.
        change: runs a change on the loop.
    """
    actions = _Actions(broker, change)
    return {
        cluster.CLUSTER_STATUS: actions.status,
        cluster.ADMIT_BROKER: actions.admit_broker,
        cluster.DRAIN_BROKER: actions.drain_broker,
        cluster.REMOVE_BROKER: actions.remove_broker,
        cluster.REPLACE_DISK: actions.replace_disk,
        cluster.REASSIGN: actions.reassign,
        cluster.REBALANCE: actions.rebalance,
        cluster.ELECT_LEADER: actions.elect_leader,
        cluster.ADD_PARTITIONS: actions.add_partitions,
    }


class _Actions:
    """One method per action, from its body to its answers."""

    def __init__(self, broker: Broker, change: Change) -> None:
        self._any_broker = broker
        self._change = change

    @property
    def _broker(self) -> ClusterBroker:
        """This broker as a member of a cluster.

        Raises:
            InvalidRequestError: the broker is not part of a cluster.
        """
        if not isinstance(self._any_broker, ClusterBroker):
            raise InvalidRequestError("this broker is not part of a cluster; see docs/cluster.md")
        return self._any_broker

    def status(self, body: bytes, _: ActionContext) -> list[Any]:
        """Return the cluster's status."""
        refuse_body(body, cluster.CLUSTER_STATUS)
        return [cluster_status(self._broker)]

    def admit_broker(self, body: bytes, _: ActionContext) -> list[Any]:
        """Admit a new broker."""
        order = decode(body, cluster.AdmitBrokerRequest, what=cluster.ADMIT_BROKER)
        operations = self._broker.operations
        self._change(operations.admit(BrokerId(order.broker), order.peer_address))
        return []

    def drain_broker(self, body: bytes, _: ActionContext) -> list[Any]:
        """Start or stop draining a broker."""
        order = decode(body, cluster.DrainBroker, what=cluster.DRAIN_BROKER)
        self._change(self._broker.operations.drain(BrokerId(order.broker), is_on=order.is_on))
        return []

    def remove_broker(self, body: bytes, _: ActionContext) -> list[Any]:
        """Remove a drained broker."""
        order = decode(body, cluster.WhichBroker, what=cluster.REMOVE_BROKER)
        self._change(self._broker.operations.remove(BrokerId(order.broker)))
        return []

    def replace_disk(self, body: bytes, _: ActionContext) -> list[Any]:
        """Give up the replicas that a broker had on a lost disk."""
        order = decode(body, cluster.WhichBroker, what=cluster.REPLACE_DISK)
        self._change(self._broker.operations.replace_disk(BrokerId(order.broker)))
        return []

    def reassign(self, body: bytes, _: ActionContext) -> list[Any]:
        """Start moving partitions of a stream."""
        order = decode(body, cluster.Reassign, what=cluster.REASSIGN)
        to = tuple(BrokerId(broker) for broker in order.to)
        operations = self._broker.operations
        moves = self._change(operations.reassign(order.stream, order.partition, to))
        return [cluster.MovesStarted(moves=moves)]

    def rebalance(self, body: bytes, _: ActionContext) -> list[Any]:
        """Start moving replicas to less loaded brokers."""
        refuse_body(body, cluster.REBALANCE)
        return [cluster.MovesStarted(moves=self._change(self._broker.operations.rebalance()))]

    def elect_leader(self, body: bytes, _: ActionContext) -> list[Any]:
        """Elect a leader."""
        order = decode(body, cluster.ElectLeaderRequest, what=cluster.ELECT_LEADER)
        name = PartitionName(order.stream, order.partition)
        leader, is_unclean = BrokerId(order.leader), order.is_unclean
        self._change(self._broker.operations.elect(name, leader, is_unclean=is_unclean))
        return []

    def add_partitions(self, body: bytes, _: ActionContext) -> list[Any]:
        """Add partitions to a stream."""
        order = decode(body, cluster.AddPartitionsRequest, what=cluster.ADD_PARTITIONS)
        changed = self._change(self._broker.add_partitions(order.name, order.count))
        return [stream_info(changed, self._broker)]


def cluster_status(broker: ClusterBroker) -> ClusterStatus:
    """Return the cluster's status as this broker knows it."""
    image, quorum = broker.membership.machine.image, broker.membership.quorum
    voters, age_ms = quorum.members.voters, broker.membership.image_age_ms
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
