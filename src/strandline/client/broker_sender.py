"""A lane: the way of a producer's lots to one leader. A thread that writes them into a put.

The put's schema only widens: a batch with a new column ends the put and begins a wider one, so
that records keep their order and a value-only producer sends no empty columns.

Rules: a lane holds no lots; it asks its office for the next one and says what became of it. One
that was abandoned, because its broker fell silent, may be stuck in a write for long: what it says
later is not listened to.
"""

import logging
import threading
import time
from typing import Protocol

from strandline.client.connection import Connection
from strandline.client.in_flight import InFlightBatch
from strandline.client.put_stream import PutStream
from strandline.client.table_batches import SomeLot, batch_of, pad
from strandline.errors import DisconnectedError, InvalidRecordError, StrandlineError
from strandline.protocol.put import BatchTag, ProducerTag, PutAck, PutRequest, put_schema

logger = logging.getLogger(__name__)


class SenderCallbacks(Protocol):
    """Who owns the lots; see ``Delivery``."""

    def next_for(self, sender: "BrokerSender") -> InFlightBatch[SomeLot] | None:
        """The next lot, waiting for one; None: look at ``is_over``, and after the put."""
        ...

    def writes(self, sender: "BrokerSender", entry: InFlightBatch[SomeLot]) -> bool:
        """A lot is about to be written; False: it was given up."""
        ...

    def in_flight(self, sender: "BrokerSender") -> int:
        """How many lots the lane was given that are not answered."""
        ...

    def producer_id(self, sender: "BrokerSender", producer: int) -> int:
        """The id of who numbers the lots, after so many producers that were used up.

        Args:
            sender: who needs it.
            producer: so many were used up before.

        Raises:
            StrandlineError: no broker gives out an id now.
        """
        ...

    def acked(self, sender: "BrokerSender", ack: PutAck) -> None:
        """An ack came; on the ack thread."""
        ...

    def refused(self, sender: "BrokerSender", number: int, error: StrandlineError) -> None:
        """A lot cannot be sent at all."""
        ...

    def lost(self, sender: "BrokerSender", error: StrandlineError) -> None:
        """The put failed."""
        ...

    def wake(self) -> None:
        """Something changed that ``next_for`` waits for."""
        ...

    def failed(self) -> None:
        """A bug of ours has ended the lane."""
        ...


class BrokerSender:
    """The way to one leader.

    Args:
        connection: to its broker.
        request: of the puts.
        office: who owns the lots.
    """

    def __init__(
        self, connection: Connection, request: PutRequest, office: SenderCallbacks
    ) -> None:
        self.address = connection.address
        self.is_over = False
        """Whether it sends nothing more: closed, or abandoned."""
        self.waits_since_s: float | None = None
        """Since when an ack is missing, or None."""
        self.used_s = time.monotonic()
        """When it was given a lot last."""
        self._connection = connection
        self._request = request
        self._office = office
        self._stream: PutStream | None = None
        self._columns: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="strandline-sender", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def has_put(self) -> bool:
        """Whether it has begun to send."""
        return self._stream is not None

    @property
    def has_lost_put(self) -> bool:
        """Whether its put has ended by itself."""
        return self._stream is not None and self._stream.has_ended

    def reset(self) -> None:
        """Connect anew with the next put."""
        self._connection.reset()

    def _run(self) -> None:
        """Send until it is over."""
        try:
            while not self.is_over:
                self._step()
            if self._stream is not None:
                self._stream.finish()
        except Exception:
            # A bug of ours must not leave callers waiting for ever.
            logger.exception("the sender of stream %s failed", self._request.stream)
            self._office.failed()

    def _step(self) -> None:
        """Send the next lot, or begin anew after a loss."""
        entry = self._office.next_for(self)
        if entry is not None:
            self._deliver(entry)
        elif self.has_lost_put:
            self._lose(self._end_stream())

    def _deliver(self, entry: InFlightBatch[SomeLot]) -> None:
        """Write one lot that is now in flight."""
        try:
            batch = batch_of(entry.lot)
        except InvalidRecordError as error:
            self._office.refused(self, entry.number, error)
            return
        try:
            tag = self._tag(entry)
            stream = self._stream_for(batch.schema.names)
        except StrandlineError as error:
            self._lose(error)
            return
        if self.is_over:
            return  # abandoned while it waited for an id or for the put: others send it
        if not self._office.writes(self, entry):
            return  # given up while it waited
        if not stream.write(pad(batch, stream.schema), tag):
            self._lose(self._end_stream())

    def _tag(self, entry: InFlightBatch[SomeLot]) -> BatchTag:
        producer = None
        if entry.numbers is not None:
            epoch, sequence, which = entry.numbers
            producer = ProducerTag(self._office.producer_id(self, which), epoch, sequence)
        return BatchTag(
            sequence=entry.number,
            partition=entry.lot.partition,
            after=entry.after,
            producer=producer,
        )

    def _stream_for(self, columns: list[str]) -> PutStream:
        """A put with at least these columns.

        Raises:
            StrandlineError: it could not begin, or the narrower one before it failed.
        """
        if self._stream is not None and not self._columns.issuperset(columns):
            error = self._end_stream()
            if error is None and self._office.in_flight(self) > 1:
                error = DisconnectedError("the broker ended the put")
            if error is not None:
                raise error
        if self._stream is None:
            self._columns.update(columns)
            self._stream = PutStream(
                self._connection,
                self._request,
                put_schema(list(self._columns)),
                on_ack=lambda ack: self._office.acked(self, ack),
                on_end=lambda _: self._office.wake(),
            )
        return self._stream

    def _end_stream(self) -> StrandlineError | None:
        """End the put; returns why it failed, if it did."""
        assert self._stream is not None, "there is one to end"
        error = self._stream.finish()
        self._stream = None
        return error

    def _lose(self, error: StrandlineError | None) -> None:
        self._office.lost(self, error or DisconnectedError("the broker ended the put"))
