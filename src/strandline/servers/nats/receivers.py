"""The receivers of deliveries: clients of nats-server, and clients of the ingest listener.

Rules: a client of nats-server is known by its inbox and reached over the leaf connection. A client
    of
the ingest listener is known by its connection, too: what it pulls goes to that connection and to no
other. A push consumer delivers to every client that subscribes to exactly its subject, at
nats-server or at the ingest listener, or to one member of its queue group. A client that does not
read what it gets is disconnected, as nats-server disconnects a slow consumer.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from strandline.servers.nats.inboxes import Inboxes
from strandline.servers.nats.jetstream.frames import DeliveredRun, client_frames
from strandline.servers.nats.leaf_link import LeafClient
from strandline.servers.nats.protocol import encode_message, encode_message_with_headers

UNREAD_BYTES_MAX: Final = 64 << 20
PULLS_REMEMBERED_MIN: Final = 64
OUTPUT: Final = "output"
"""The reason to stop reading from a client while it does not read its output."""


class ClientPeer(Protocol):
    """The interface of a connection that deliveries need."""

    is_open: bool
    output: list[bytes]

    @property
    def takes_headers(self) -> bool:
        """Whether the client understands messages with headers."""
        ...

    @property
    def unread_bytes(self) -> int:
        """The number of written bytes that the client has not read."""
        ...

    def is_held(self, why: str) -> bool:
        """Return whether reading has stopped for this reason."""
        ...

    def flush(self) -> None:
        """Write queued output."""
        ...

    def fail(self, reason: str) -> None:
        """Send an error and close."""
        ...


class LocalInbox(NamedTuple):
    """An inbox of one client of the ingest listener."""

    client: "LocalClient"
    inbox: bytes


class Puller(Protocol):
    """A consumer with waiting pulls."""

    def waits(self, token: object) -> bool:
        """Return whether a pull is still waiting."""
        ...

    def drop_pull(self, token: object) -> None:
        """Forget a pull, because its receiver is gone."""
        ...


class LocalClient:
    """A client of the ingest listener as a receiver of deliveries.

    Args:
        peer: the client's connection.
        inboxes: the client's subscriptions.
        receivers: the receivers that this client belongs to.
    """

    def __init__(self, peer: ClientPeer, inboxes: Inboxes, receivers: "Receivers") -> None:
        self._peer = peer
        self._inboxes = inboxes
        self._receivers = receivers
        self._pulls: dict[LocalInbox, Puller] = {}
        self._pulls_max = PULLS_REMEMBERED_MIN
        self._pushed: dict[bytes, tuple[bytes, bytes]] = {}
        """Sid → subject and queue group, of subscriptions to which a push consumer may deliver."""

    @property
    def is_ready(self) -> bool:
        """Whether the client reads what it gets."""
        return not self._peer.is_held(OUTPUT)

    def receives(self, inbox: bytes) -> bool:
        """Return whether the client subscribes to an inbox."""
        return self._peer.is_open and self._inboxes.has(inbox)

    def waits(self, token: LocalInbox, puller: Puller) -> None:
        """Note which consumer holds a pull of this client."""
        self._pulls[token] = puller
        if len(self._pulls) > self._pulls_max:
            self._pulls = {t: each for t, each in self._pulls.items() if each.waits(t)}
            self._pulls_max = PULLS_REMEMBERED_MIN + 2 * len(self._pulls)

    # Subscriptions

    def subscribed(self, subject: bytes, sid: bytes, queue: bytes) -> None:
        """Handle a new subscription to a subject without wildcards."""
        self.unsubscribed(sid)
        self._pushed[sid] = subject, queue
        self._receivers.add_subscriber(subject, queue, self)

    def unsubscribed(self, sid: bytes) -> None:
        """Handle the end of a subscription."""
        pushed = self._pushed.pop(sid, None)
        if pushed is not None and pushed not in self._pushed.values():
            self._receivers.remove_subscriber(*pushed, self)
        self._drop_lost()

    def closed(self) -> None:
        """Handle the end of the connection."""
        for sid in list(self._pushed):
            self.unsubscribed(sid)
        self._drop_lost()

    def writable(self) -> None:
        """Let consumers that wait for this client continue."""
        if self._pulls or self._pushed:
            self._receivers.writing_resumed()

    def _drop_lost(self) -> None:
        for token, puller in list(self._pulls.items()):
            if not self.receives(token.inbox):
                del self._pulls[token]
                puller.drop_pull(token)

    # Deliveries

    def deliver(self, to: bytes, payload: bytes, *, block: bytes, reply: bytes) -> None:
        """Queue a status message."""
        sid = self._inboxes.sid_for(to) if self._peer.is_open else None
        if sid is None:
            return
        line = encode_message(to, sid, payload, reply=reply)
        if block and self._peer.takes_headers:
            line = encode_message_with_headers(to, sid, payload, block=block, reply=reply)
        self._peer.output.append(line)

    def deliver_run(self, run: DeliveredRun) -> None:
        """Queue records; disconnect the client if too much is unread."""
        if not self._peer.is_open:
            return
        count, before = len(run.messages.sequences), len(self._inboxes)
        sids = self._inboxes.sids_in_turns(run.inboxes, count)
        if not self._peer.takes_headers:
            messages = run.messages._replace(blocks=[b""] * count)
            run = run._replace(messages=messages)
        if None not in sids:
            self._peer.output.append(client_frames(run, [sid for sid in sids if sid is not None]))
        else:
            for single, sid in zip(run.singles(), sids, strict=True):
                if sid is not None:
                    self._peer.output.append(client_frames(single, [sid]))
        if self._peer.unread_bytes > UNREAD_BYTES_MAX:
            self._peer.fail("Slow Consumer")
        elif len(self._inboxes) < before:
            self._drop_lost()  # a subscription has ended by its own limit

    def flush(self) -> None:
        """Write the queued output."""
        self._peer.flush()


class Receivers:
    """All receivers of consumers' deliveries.

    Args:
        leaf: the connection to clients of nats-server.
    """

    def __init__(self, leaf: LeafClient) -> None:
        self.leaf = leaf
        self._notify_interest: Callable[[Collection[bytes]], None] = _ignore
        self._notify_writable: Callable[[], None] = _ignore
        self._local: dict[tuple[bytes, bytes], list[LocalClient]] = {}
        """Subject and queue group → the clients of the ingest listener that subscribe to it."""
        self._unflushed: set[LocalClient] = set()
        self._turn = 0
        """The number of runs so far: the members of a queue group take turns."""

    def notify(
        self,
        *,
        interest_changed: Callable[[Collection[bytes]], None],
        connected: Callable[[], None],
        writable: Callable[[], None],
    ) -> None:
        """Set the callbacks, for clients of the ingest listener and for the leaf link.

        Args:
            interest_changed: called with subjects that have gained or lost receivers.
            connected: called when the leaf link is established, the first time and again.
            writable: called when a receiver, or the server of the leaf link, reads again.
        """
        self._notify_interest, self._notify_writable = interest_changed, writable
        self.leaf.notify(interest_changed=interest_changed, connected=connected, writable=writable)

    def writing_resumed(self) -> None:
        """Report that a client of the ingest listener reads again."""
        self._notify_writable()

    # Interest

    def add_subscriber(self, subject: bytes, queue: bytes, client: LocalClient) -> None:
        """Note that a client of the ingest listener subscribes to a subject."""
        clients = self._local.setdefault((subject, queue), [])
        if client not in clients:
            clients.append(client)
            self._notify_interest((subject,))

    def remove_subscriber(self, subject: bytes, queue: bytes, client: LocalClient) -> None:
        """Note that a client of the ingest listener no longer subscribes to a subject."""
        clients = self._local.get((subject, queue), [])
        if client in clients:
            clients.remove(client)
            if not clients:
                del self._local[subject, queue]
            self._notify_interest((subject,))

    def is_subscribed(self, subject: bytes, queue: bytes) -> bool:
        """Return whether a client subscribes to exactly a subject, in the queue group if named."""
        return (subject, queue) in self._local or self.leaf.is_subscribed(subject, queue)

    def is_ready(self, token: object, queue: bytes) -> bool:
        """Return whether records can be delivered now to the receiver of a pull or a push."""
        if isinstance(token, LocalInbox):
            return token.client.is_ready
        assert isinstance(token, bytes), "an inbox"
        local = self._local.get((token, queue), ())
        if local:
            is_only = not self.leaf.is_subscribed(token, queue)
            return all(each.is_ready for each in local) and (is_only or self.leaf.is_open)
        return self.leaf.is_open

    # Deliveries

    def deliver(
        self, token: object, payload: bytes, *, block: bytes, reply: bytes = b"", queue: bytes = b""
    ) -> None:
        """Queue a status message for a receiver."""
        if isinstance(token, LocalInbox):
            self._touched(token.client).deliver(token.inbox, payload, block=block, reply=reply)
            return
        assert isinstance(token, bytes), "an inbox"
        for client in self._chosen(token, queue):
            if client is None:
                self.leaf.deliver(token, payload, block=block, reply=reply, queue=queue)
            else:
                client.deliver(token, payload, block=block, reply=reply)

    def deliver_run(
        self, tokens: Sequence[object], run: DeliveredRun, *, queue: bytes = b""
    ) -> None:
        """Queue records; the first for the first of ``tokens``, and so on in turns."""
        if len(tokens) > 1 and not _are_alike(tokens):
            for number, single in enumerate(run.singles()):
                self.deliver_run([tokens[number % len(tokens)]], single, queue=queue)
            return
        first = tokens[0]
        if isinstance(first, LocalInbox):
            inboxes = [each.inbox for each in tokens if isinstance(each, LocalInbox)]
            self._touched(first.client).deliver_run(run._replace(inboxes=inboxes))
            return
        run = run._replace(inboxes=[each for each in tokens if isinstance(each, bytes)])
        for client in self._chosen(run.inboxes[0], queue):
            if client is None:
                self.leaf.deliver_run(run, queue=queue)
            else:
                client.deliver_run(run)

    def _chosen(self, subject: bytes, queue: bytes) -> Iterator[LocalClient | None]:
        """Yield the receivers of messages on a subject; None stands for nats-server's clients."""
        local = self._local.get((subject, queue))
        if local is None:
            yield None
            return
        several: list[LocalClient | None] = [*local]
        if self.leaf.is_subscribed(subject, queue):
            several.append(None)
        if queue:
            self._turn += 1
            several = [several[self._turn % len(several)]]
        for client in several:
            yield client if client is None else self._touched(client)

    def _touched(self, client: LocalClient) -> LocalClient:
        self._unflushed.add(client)
        return client

    def flush(self) -> None:
        """Send all queued output."""
        self.leaf.flush()
        clients, self._unflushed = self._unflushed, set()
        for client in clients:
            client.flush()


def _are_alike(tokens: Sequence[object]) -> bool:
    """Return whether all tokens belong to the same connection."""
    clients = {each.client if isinstance(each, LocalInbox) else None for each in tokens}
    return len(clients) == 1


def _ignore(*_: object) -> None:
    """Do nothing; stands for a callback that is not set."""
