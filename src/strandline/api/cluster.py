"""The cluster commands, for brokers, replicas and leaders.

A command is answered once it is committed to the metadata. The cluster's status shows the progress
of the work that it starts, such as copying replicas.
"""

from types import NoneType
from typing import Annotated, Final

import msgspec

from strandline.api.admin import StreamInfo
from strandline.api.command import AdminCommand
from strandline.api.required_permissions import cluster
from strandline.api.wire import Name, PartitionNumber, WireAnswer, WireMessage
from strandline.config import PARTITIONS_MAX

BrokerNumber = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
_Brokers = Annotated[tuple[BrokerNumber, ...], msgspec.Meta(max_length=100)]


class WhichBroker(WireMessage, frozen=True, kw_only=True):
    """A reference to a broker."""

    broker: BrokerNumber


class AdmitBrokerRequest(WireMessage, frozen=True, kw_only=True):
    """A new broker, and the address at which other brokers reach it."""

    broker: BrokerNumber
    peer_address: Annotated[str, msgspec.Meta(pattern=r"^.{1,190}:[0-9]{1,5}$")]


class DrainBroker(WireMessage, frozen=True, kw_only=True):
    """A request to start draining a broker, or to stop (``is_on`` false)."""

    broker: BrokerNumber
    is_on: bool = True


class Reassign(WireMessage, frozen=True, kw_only=True):
    """A request to move partitions of a stream.

    Attributes:
        stream: the stream's name.
        partition: the partition's number; None: all partitions.
        to: broker ids, preferred leader first (rotated over several partitions); empty: choose
            brokers as for a new stream, with few moves.
    """

    stream: Name
    partition: PartitionNumber | None = None
    to: _Brokers = ()


class ElectLeaderRequest(WireMessage, frozen=True, kw_only=True):
    """A request to elect a leader; ``is_unclean`` permits the loss of committed records."""

    stream: Name
    partition: PartitionNumber = 0
    leader: BrokerNumber
    is_unclean: bool = False


class AddPartitionsRequest(WireMessage, frozen=True, kw_only=True):
    """A request to add a number of partitions to a stream."""

    name: Name
    count: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]


class MovesStarted(WireAnswer, frozen=True, kw_only=True):
    """The number of partitions that started to move."""

    moves: int


class BrokerInfo(WireAnswer, frozen=True, kw_only=True):
    """A broker of a cluster."""

    id: int
    state: str
    """``live``, ``fenced`` (no heartbeats), ``impaired`` (its disk rejects writes), ``draining``,
    ``stopping``, or ``unknown`` if the answering broker knows no controller."""
    flight_address: str
    rack: str
    is_voter: bool = False
    """Whether it is a voter of the metadata quorum."""


class CopiesInfo(WireAnswer, frozen=True, kw_only=True):
    """The leader and the replicas of a partition."""

    stream: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    """Replicas that a move adds."""
    removing: tuple[int, ...] = ()
    """Replicas that are removed once the added ones are in sync."""
    is_stranded: bool = False
    """Whether a broker with a replica is being drained, but no other broker can get the replica."""

    @property
    def is_moving(self) -> bool:
        """Return whether a move is in progress."""
        return bool(self.adding or self.removing)


class ClusterStatus(WireAnswer, frozen=True, kw_only=True):
    """The state of a cluster as the answering broker knows it."""

    cluster: str
    broker: int
    """The broker that answered."""
    controller: int | None
    """The controller; None while there is none."""
    brokers: tuple[BrokerInfo, ...]
    partitions: tuple[CopiesInfo, ...]
    removed: tuple[int, ...] = ()
    """Brokers that were removed; their ids are not used again."""
    age_ms: int = 0
    """The time without a controller, which is the age of this status. 0: it is current;
    1: there is a controller, but it has not sent the metadata since the broker's start."""


CLUSTER_STATUS: Final = AdminCommand(
    name="cluster_status",
    help="Describe brokers, and each partition's leader and replicas.",
    request=NoneType,
    result=ClusterStatus,
    needs=lambda _: [cluster("read")],
)
ADMIT_BROKER: Final = AdminCommand(
    name="admit_broker",
    help="Admit a new broker.",
    request=AdmitBrokerRequest,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
DRAIN_BROKER: Final = AdminCommand(
    name="drain_broker",
    help="Start or stop moving all replicas off a broker.",
    request=DrainBroker,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REMOVE_BROKER: Final = AdminCommand(
    name="remove_broker",
    help="Remove a drained broker permanently.",
    request=WhichBroker,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REPLACE_DISK: Final = AdminCommand(
    name="replace_disk",
    help="Let a broker that lost its disk rejoin empty.",
    request=WhichBroker,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
REASSIGN: Final = AdminCommand(
    name="reassign",
    help="Move partitions to other brokers.",
    request=Reassign,
    result=MovesStarted,
    needs=lambda _: [cluster("admin")],
)
REBALANCE: Final = AdminCommand(
    name="rebalance",
    help="Move replicas to brokers that have fewer than their share.",
    request=NoneType,
    result=MovesStarted,
    needs=lambda _: [cluster("admin")],
)
ELECT_LEADER: Final = AdminCommand(
    name="elect_leader",
    help="Elect another leader.",
    request=ElectLeaderRequest,
    result=NoneType,
    needs=lambda _: [cluster("admin")],
)
ADD_PARTITIONS: Final = AdminCommand(
    name="add_partitions",
    help="Add partitions to a stream.",
    request=AddPartitionsRequest,
    result=StreamInfo,
    needs=lambda _: [cluster("admin")],  # more partitions may record more subjects
)
