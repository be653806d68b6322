"""The peers: the brokers that this one connects to and accepts."""

import secrets
from functools import partial
from pathlib import Path

from strandline.broker.cluster.identity import DirectoryIdentity
from strandline.broker.cluster.state_machine import MetadataMachine
from strandline.broker.cluster.trace import TracedLinks
from strandline.broker.peers.errors import HandshakeError, HandshakeRejection
from strandline.broker.peers.handshake import Hello, PeerIdentity
from strandline.broker.peers.limits import LinkLimits
from strandline.broker.peers.link import PeerLinks
from strandline.broker.peers.peer import Address, PeerEvents
from strandline.broker.peers.tls import TlsFiles
from strandline.broker.quorum import Quorum
from strandline.config import BrokerConfig, ClusterConfig
from strandline.core.replication.trace import Trace
from strandline.types import BrokerId

FRAME_BYTES_MIN = 64 << 20


class PeerRegistry:
    """The other brokers, from settings, metadata and the quorum.

    Args:
        config: this broker's settings.
        events: the callbacks of the links.
        identity: the identity of the data directory.
        machine: has the newest image.
        quorum: has the newest members.
        trace: the trace of frames; None: none is written.
    """

    def __init__(
        self,
        config: BrokerConfig,
        events: PeerEvents,
        *,
        identity: DirectoryIdentity,
        machine: MetadataMachine,
        quorum: Quorum,
        trace: Trace | None,
    ) -> None:
        cluster = config.cluster
        self._me = BrokerId(cluster.broker_id)
        self._settings = cluster.peer_addresses
        self._machine = machine
        self._quorum = quorum
        frame_bytes = max(FRAME_BYTES_MIN, 4 * config.limits.batch_bytes)
        self.links = (PeerLinks if trace is None else partial(TracedLinks, trace))(
            PeerIdentity(
                cluster_id=cluster.name,
                broker_id=self._me,
                incarnation=secrets.token_hex(8),
                directory_id=identity.directory_id,
            ),
            events,
            listen=Address(config.peer_host, cluster.peer_port),
            admits=self.check_directory,
            tls=_tls_files(cluster),
            limits=LinkLimits(frame_bytes_max=frame_bytes, queue_bytes_max=frame_bytes),
        )
        for number, (host, port) in self._settings.items():
            if number != self._me:
                self.links.add_peer(BrokerId(number), Address(host, port))

    def link(self) -> None:
        """Connect to the brokers of the metadata; disconnect removed ones.

        Addresses in the settings have priority over the metadata: a broker that has moved could not
        register its new address without a link.
        """
        image, settings = self._machine.image, self._settings
        for broker in image.brokers.values():
            if broker.id != self._me and broker.id not in settings and broker.peer_address:
                host, _, port = broker.peer_address.rpartition(":")
                self.links.add_peer(broker.id, Address(host.strip("[]"), int(port)))
        for removed in image.removed:
            # A removed member stays connected until it has left, so that it learns of its removal.
            if removed != self._me and removed not in self._quorum.members.everybody:
                self.links.remove_peer(removed)

    def check_directory(self, hello: Hello) -> None:
        """Reject a broker that returns with another disk, and so without its votes.

        Checked here, since as a member of the quorum it would acknowledge entries on top of some
        that it has lost, before the metadata could reject its registration.

        Raises:
            HandshakeError: the message says what to do.
        """
        broker = BrokerId(hello.broker_id)
        known = self._machine.image.brokers.get(broker)
        if known is None or not hello.directory_id:
            return
        if known.directory_id not in ("", hello.directory_id):
            raise HandshakeError(
                HandshakeRejection.OTHER_DIRECTORY,
                f"broker {broker} has another data directory than before; give a second broker a "
                f"number of its own, or, if the disk is lost, run 'strandline cluster replace-disk "
                f"{broker}'",
            )
        if not known.directory_id and broker in self._quorum.members.voters:
            raise HandshakeError(
                HandshakeRejection.OTHER_DIRECTORY,
                f"the vote of broker {broker} is not withdrawn yet",
            )

    def leave_all(self) -> None:
        """Disconnect from all peers, since they reject this broker, which was removed."""
        for broker in self._machine.image.brokers:
            self.links.remove_peer(broker)


def _tls_files(cluster: ClusterConfig) -> TlsFiles | None:
    if not cluster.tls_certificate:
        return None
    return TlsFiles(
        certificate=Path(cluster.tls_certificate),
        key=Path(cluster.tls_key),
        authority=Path(cluster.tls_authority),
    )
