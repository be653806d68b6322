"""The broker's connection to a nats-server: takes what is published, sends acks back.

Rules: one binding, one subscription, one sid; a message belongs to the binding of its sid and to no
other, so two streams on one subject each get it and queue groups are nats-server's business. Acks
are queued and written once per turn. The link neither connects nor reconnects.
"""

from typing import TYPE_CHECKING, cast

from strandline.broker.routing import Binding, Route, RouteTable
from strandline.errors import InvalidSubjectError, NotLeaderError, StrandlineError
from strandline.frontends.nats.protocol import (
    encode_publish,
    encode_subscribe,
    encode_unsubscribe,
)
from strandline.frontends.nats.replies import error_reply, pub_ack
from strandline.frontends.nats.server_link import ServerLink
from strandline.record.envelope import MAGIC
from strandline.types import Offset, PartitionName

if TYPE_CHECKING:
    from strandline.frontends.nats.subscriber import Subscriber


class Link(ServerLink):
    """A connection, and the responder of everything that came over it; a token is a reply subject.

    Args:
        subscriber: what outlives the connection.
    """

    def __init__(self, subscriber: "Subscriber") -> None:
        super().__init__()
        self._subscriber = subscriber
        self._sids: dict[Binding, bytes] = {}
        self._tables: dict[bytes, RouteTable] = {}
        self._last_sid = 0

    def data_received(self, data: bytes) -> None:
        """The hot path: plain payloads go straight to their partition."""
        tables = self._tables
        subscriber = self._subscriber
        messages = 0
        for event in self.parser.feed(data):
            if not isinstance(event, tuple):
                self._control(event)
                continue
            messages += 1
            subject, sid, reply, block, payload = event
            table = tables.get(sid)
            if table is None:
                continue  # unsubscribed meanwhile
            route = table.remembered.get(subject) or self._find_route(table, subject, reply)
            if route is None:
                continue
            is_plain = block is None and payload[:4] != MAGIC
            if route.partition is None or not is_plain or (reply and not route.answers):
                if route.groups:
                    subscriber.intake.take(route, reply, block=block, payload=payload, sink=self)
            elif reply is None:
                route.partition.append(payload, subject=route.subject)
            else:
                route.partition.append(payload, subject=route.subject, responder=self, token=reply)
        subscriber.messages += messages
        if self.output:
            self.flush()
        if subscriber.admission.pending_bytes > subscriber.gate.pending_high:
            subscriber.gate.hold(self)

    def _find_route(self, table: RouteTable, subject: bytes, reply: bytes | None) -> Route | None:
        """The route of a subject seen for the first time; None if it cannot be one."""
        try:
            return table.find(subject)
        except InvalidSubjectError as error:
            if reply is not None:
                self.deliver(reply, error_reply(error))
            return None

    # Subscriptions

    def subscribe(self, bindings: list[Binding]) -> None:
        """Hold a subscription for each of ``bindings`` and for nothing else."""
        lines = []
        wanted = dict.fromkeys(bindings)
        for binding in [each for each in self._sids if each not in wanted]:
            sid = self._sids.pop(binding)
            del self._tables[sid]
            lines.append(encode_unsubscribe(sid))
        for binding in wanted:
            if binding in self._sids:
                continue
            self._last_sid += 1
            sid = b"%d" % self._last_sid
            self._sids[binding] = sid
            self._tables[sid] = RouteTable((binding,))
            queue = binding.stream.config.queue_group.encode()
            lines.append(encode_subscribe(binding.pattern.encode(), sid, queue=queue))
        self.write(b"".join(lines))

    def unsubscribe_all(self) -> None:
        """Ask for no more messages; what is under way still counts."""
        self.write(b"".join(map(encode_unsubscribe, self._tables)))

    # Replies

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Queue a PubAck."""
        reply = cast("bytes", token)
        if duplicate:
            self.deliver(reply, pub_ack(partition, offset, duplicate=True))
            return
        if not self.output:
            self._subscriber.unflushed.append(self)
        sequence = offset + 1
        template = self._subscriber.ack_lines.template(partition, sequence)
        self.output.append(template % (reply, sequence))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Queue an error reply, unless the leader, which hears every message too, answers."""
        if isinstance(error, NotLeaderError):
            return
        self.deliver(cast("bytes", token), error_reply(error))

    def deliver(self, to: bytes, payload: bytes) -> None:
        """Queue a message; a subject that cannot be one is dropped, as it would break the link."""
        if not to or any(blank in to for blank in b" \t\r\n"):
            return
        if not self.output:
            self._subscriber.unflushed.append(self)
        self.output.append(encode_publish(to, payload))
