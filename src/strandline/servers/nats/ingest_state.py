"""The state that all connections of one NATS listener share: path, limits and queued acks.

Rules: a connection gets this state when it is made, and knows neither the listener that accepts it
nor the client that connects it.
"""

from strandline.servers.nats.backpressure import Backpressure, NatsPeer
from strandline.servers.nats.ingest import MessageIngest
from strandline.servers.nats.ports import BrokerPort
from strandline.servers.nats.replies import AckLines


class IngestState:
    """The path of messages from connections to partitions, and of acks back.

    Args:
        broker: the broker that stores records.
        name: the listener's name in metrics.
        ingest: handles messages that are more than a plain payload.
        backpressure: pauses reading while the broker is full.
        ack_lines: the lines of acks on these connections.
    """

    def __init__(
        self,
        broker: BrokerPort,
        name: str,
        *,
        ingest: MessageIngest,
        backpressure: Backpressure,
        ack_lines: AckLines,
    ) -> None:
        self.broker = broker
        self.name = name
        self.ingest = ingest
        self.backpressure = backpressure
        self.admission = broker.admission
        self.ack_lines = ack_lines
        self.unflushed: list[NatsPeer] = []
        """Connections with queued acks."""
        self.messages = 0
        """Received since the last count was handed to telemetry."""

    def send_answers(self) -> None:
        """Write queued acks, one write per connection; resume reading if there is room."""
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            connection.flush()
        if self.messages:
            self.broker.telemetry.count_listener(self.name, messages=self.messages)
            self.messages = 0
        self.backpressure.release(self.admission.pending_bytes)
