"""A thread that sends a producer's batches to one leader, in a put.

The put's schema only gets wider: a batch with a new column ends the put and begins a wider one. So
records keep their order, and a producer that sends only values sends no empty columns.

Rules: a sender keeps no batches; it asks its callbacks for the next one and reports the outcome.
Callbacks from a sender that was replaced after a timeout are ignored; it may still hang in a write.
"""

import logging
import threading
import time
from typing import Protocol

from strandline.api.put import BatchTag, ProducerTag, PutAck, PutRequest, put_schema
from strandline.client.connection import BrokerConnection
from strandline.client.producer.in_flight_batch import InFlightBatch
from strandline.client.producer.put_stream import PutStream
from strandline.client.producer.table_batches import AnyProducerBatch, batch_of, pad
from strandline.errors import DisconnectedError, InvalidRecordError, StrandlineError

logger = logging.getLogger(__name__)


class SenderCallbacks(Protocol):
    """The owner of the batches; see ``ProducerDelivery``."""

    def next_for(self, sender: "BrokerSender") -> InFlightBatch[AnyProducerBatch] | None:
        """Wait for the next batch; None: check ``is_over`` and the put."""
        ...

    def writes(self, sender: "BrokerSender", entry: InFlightBatch[AnyProducerBatch]) -> bool:
        """Note that a batch is about to be written; return False if it has failed meanwhile."""
        ...

    def in_flight(self, sender: "BrokerSender") -> int:
        """Return how many of a sender's batches have no answer yet."""
        ...

    def producer_id(self, sender: "BrokerSender", producer: int) -> int:
        """Return the producer id that numbers the batches.

        Args:
            sender: the sender that needs it.
            producer: the number of producer ids used up before this one.

        Raises:
            StrandlineError: no broker assigns an id now.
        """
        ...

    def acked(self, sender: "BrokerSender", ack: PutAck) -> None:
        """Handle an ack; called on the ack thread."""
        ...

    def refused(self, sender: "BrokerSender", number: int, error: StrandlineError) -> None:
        """Handle a batch that can never be sent."""
        ...

    def lost(self, sender: "BrokerSender", error: StrandlineError) -> None:
        """Handle the end of a put."""
        ...

    def wake(self) -> None:
        """Wake threads that wait in ``next_for``."""
        ...

    def failed(self) -> None:
        """Handle a bug that has ended the sender."""
        ...


class BrokerSender:
    """Sends batches to one leader on a thread of its own.

    Args:
        connection: to the leader's broker.
        request: the request with which each put begins.
        callbacks: the owner of the batches.
    """

    def __init__(
        self, connection: BrokerConnection, request: PutRequest, callbacks: SenderCallbacks
    ) -> None:
        self.address = connection.address
        self.is_over = False
        """Whether it sends nothing more, because it was closed or replaced."""
        self.waits_since_s: float | None = None
        """The time since when an ack has been missing; None if none is."""
        self.used_s = time.monotonic()
        """The time when it last got a batch."""
        self._connection = connection
        self._request = request
        self._callbacks = callbacks
        self._stream: PutStream | None = None
        self._columns: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="strandline-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    @property
    def has_put(self) -> bool:
        """Return whether the sender has opened a put."""
        return self._stream is not None

    @property
    def has_lost_put(self) -> bool:
        """Return whether the put was ended by the broker or the network."""
        return self._stream is not None and self._stream.has_ended

    def reset(self) -> None:
        """Use a new connection for the next put."""
        self._connection.reset()

    def _run(self) -> None:
        """Send batches until ``is_over``."""
        try:
            while not self.is_over:
                self._step()
            if self._stream is not None:
                self._stream.finish()
        except Exception:
            # Even after a bug no caller may wait for ever.
            logger.exception("the sender of stream %s failed", self._request.stream)
            self._callbacks.failed()

    def _step(self) -> None:
        """Send the next batch, or handle the loss of the put."""
        entry = self._callbacks.next_for(self)
        if entry is not None:
            self._deliver(entry)
        elif self.has_lost_put:
            self._lose(self._end_stream())

    def _deliver(self, entry: InFlightBatch[AnyProducerBatch]) -> None:
        """Write one batch, which is in flight now."""
        try:
            batch = batch_of(entry.batch)
        except InvalidRecordError as error:
            self._callbacks.refused(self, entry.number, error)
            return
        try:
            tag = self._tag(entry)
            stream = self._stream_for(batch.schema.names)
        except StrandlineError as error:
            self._lose(error)
            return
        if self.is_over:
            return  # replaced while waiting for an id or a put; another sender sends the batch
        if not self._callbacks.writes(self, entry):
            return  # the batch has failed meanwhile
        if not stream.write(pad(batch, stream.schema), tag):
            self._lose(self._end_stream())

    def _tag(self, entry: InFlightBatch[AnyProducerBatch]) -> BatchTag:
        producer = None
        if entry.numbers is not None:
            epoch, sequence, which = entry.numbers
            producer = ProducerTag(self._callbacks.producer_id(self, which), epoch, sequence)
        return BatchTag(
            sequence=entry.number,
            partition=entry.batch.partition,
            after=entry.after,
            producer=producer,
        )

    def _stream_for(self, columns: list[str]) -> PutStream:
        """Return the current put if it has these columns, otherwise a wider new one.

        Raises:
            StrandlineError: the put could not begin, or the narrower put before it failed.
        """
        if self._stream is not None and not self._columns.issuperset(columns):
            error = self._end_stream()
            if error is None and self._callbacks.in_flight(self) > 1:
                error = DisconnectedError("the broker ended the put")
            if error is not None:
                raise error
        if self._stream is None:
            self._columns.update(columns)
            self._stream = PutStream(
                self._connection,
                self._request,
                put_schema(list(self._columns)),
                on_ack=lambda ack: self._callbacks.acked(self, ack),
                on_end=lambda _: self._callbacks.wake(),
            )
        return self._stream

    def _end_stream(self) -> StrandlineError | None:
        """End the put; return its error, or None."""
        assert self._stream is not None, "there is one to end"
        error = self._stream.finish()
        self._stream = None
        return error

    def _lose(self, error: StrandlineError | None) -> None:
        self._callbacks.lost(self, error or DisconnectedError("the broker ended the put"))
