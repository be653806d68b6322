"""The state that all connections of one NATS listener share: its name and the path of messages.

Rules: a connection gets this state when it is created. It knows neither the listener that accepts
    it
nor the client that connects it.
"""

from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.replies import PubAckLines


class IngestState:
    """The path of messages from connections to partitions, and of acks back.

    Args:
        broker: the broker that stores records.
        name: the listener's name in metrics.
        ingest: appends messages; shared by all listeners.
        ack_lines: encodes the PubAcks for these connections.
    """

    def __init__(
        self, broker: BrokerPort, name: str, *, ingest: MessageIngest, ack_lines: PubAckLines
    ) -> None:
        self.broker = broker
        self.name = name
        self.ingest = ingest
        self.admission = broker.admission
        self.ack_lines = ack_lines
        broker.telemetry.count_listener(name)
        self.received = broker.telemetry.messages_received
        """Messages received, by listener; needs no lock, since only the loop counts this one's."""
