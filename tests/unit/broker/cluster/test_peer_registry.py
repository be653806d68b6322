"""Which brokers this one connects to, and which it admits."""

from types import SimpleNamespace

import pytest

from strandline.broker.cluster.identity import DirectoryIdentity
from strandline.broker.cluster.peer_registry import FRAME_BYTES_MIN, PeerRegistry
from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.peers.errors import HandshakeError
from strandline.broker.peers.peer import Address
from strandline.config import BrokerConfig, ClusterConfig, LimitsConfig
from strandline.core.metadata.image import BrokerImage, MetadataImage
from strandline.core.raft.messages import Members

ADDRESSES = {1: "a:1", 2: "b:2", 3: "c:3", 4: "d:4", 5: "[::1]:5", 6: ""}


class Links:
    """Keeps who is connected."""

    def __init__(self):
        self.added, self.removed = {}, []

    def add_peer(self, broker, address):
        self.added[broker] = address

    def remove_peer(self, broker):
        self.removed.append(broker)


@pytest.fixture
def registry(tmp_path):
    """Broker 1, whose settings name 2 and 3; the metadata has six, and broker 7 was removed."""
    machine = MetadataMachine(lambda: None)
    machine.image = MetadataImage(removed=(1, 7, 8))
    for number, address in ADDRESSES.items():
        machine.image = machine.image.with_broker(
            BrokerImage(
                id=number,
                directory_id=f"d{number}" if number != 5 else "",
                incarnation="r",
                peer_address=address,
            )
        )
    config = BrokerConfig(
        data_dir=str(tmp_path),
        cluster=ClusterConfig(
            broker_id=1, name="c", peer_port=1, peers=["1=a:1", "2=settings:22", "3=c:3"]
        ),
    )
    quorum = SimpleNamespace(members=Members((1, 2, 3, 5), (8,)))
    identity = DirectoryIdentity(cluster="c", broker=1, directory_id="d1", starts=1)
    made = PeerRegistry(config, None, identity=identity, machine=machine, quorum=quorum, trace=None)
    made.made_links, made.links = made.links, Links()
    return made


async def test_brokers_of_the_metadata_are_connected_to(registry):
    """Not itself; addresses in the settings have priority, and one may be unknown yet."""
    registry.link()
    assert registry.links.added == {4: Address("d", 4), 5: Address("::1", 5)}
    assert set(registry.made_links._peers) == {2, 3}


async def test_a_removed_broker_is_disconnected_once_it_is_no_member(registry):
    """Until then it has to learn of its removal."""
    registry.link()
    assert registry.links.removed == [7]
    registry._quorum.members = Members((1, 2, 3))
    registry.links.removed.clear()
    registry.link()
    assert registry.links.removed == [7, 8]


async def test_a_removed_broker_leaves_everybody(registry):
    """They would reject it."""
    registry.leave_all()
    assert registry.links.removed == list(ADDRESSES)


@pytest.mark.parametrize(
    ("broker", "directory", "why"),
    [
        (2, "d2", None),
        (2, "other", "has another data directory than before"),
        (2, "", None),  # of an earlier version
        (9, "d9", None),  # not known yet
        (5, "new", "the vote of broker 5 is not withdrawn yet"),
        (6, "d6", None),
    ],
)
async def test_who_returns_with_another_disk_is_rejected(registry, broker, directory, why):
    """It has forgotten its votes; with a new disk it waits until its vote is withdrawn."""
    hello = SimpleNamespace(broker_id=broker, directory_id=directory)
    if why is None:
        registry.check_directory(hello)
        return
    with pytest.raises(HandshakeError, match=why):
        registry.check_directory(hello)


@pytest.mark.parametrize(("batch_bytes", "factor"), [(1 << 20, None), (64 << 20, 4)])
async def test_a_frame_has_room_for_batches(tmp_path, registry, batch_bytes, factor):
    """As large as the largest batches, and never smaller than the least."""
    config = BrokerConfig(
        data_dir=str(tmp_path),
        limits=LimitsConfig(batch_bytes=batch_bytes),
        cluster=ClusterConfig(broker_id=1, name="c", peer_port=1, peers=["1=a:1", "2=b:2"]),
    )
    identity = DirectoryIdentity(cluster="c", broker=1, directory_id="d1", starts=1)
    made = PeerRegistry(
        config, None, identity=identity, machine=registry._machine, quorum=None, trace=None
    )
    wanted = factor * batch_bytes if factor else FRAME_BYTES_MIN
    assert made.links._limits.frame_bytes_max == wanted
    assert made.links._limits.queue_bytes_max == wanted
