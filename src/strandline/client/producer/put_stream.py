"""One DoPut call of a producer: writes batches, and reads acks on a thread of its own.

Rules: only the sender uses the writer, and only the ack thread uses the reader. The end of the
call, whatever its cause, is reported once through ``on_end``.
"""

import logging
import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.put import BatchTag, PutAck, PutRequest
from strandline.api.status import from_flight
from strandline.api.wire import decode, encode
from strandline.client.connection import BrokerConnection
from strandline.errors import DisconnectedError, InvalidRequestError, StrandlineError

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 5.0


class PutStream:
    """A put in progress.

    Args:
        connection: the connection to the broker.
        request: the put's request.
        schema: the schema of the batches.
        on_ack: called with each ack, on the ack thread.
        on_end: called on the ack thread after the last ack.

    Raises:
        StrandlineError: the put could not begin.
    """

    def __init__(
        self,
        connection: BrokerConnection,
        request: PutRequest,
        schema: pa.Schema,
        *,
        on_ack: Callable[[PutAck], None],
        on_end: Callable[["PutStream"], None],
    ) -> None:
        self.schema = schema
        self._connection = connection
        self._on_ack = on_ack
        self._on_end = on_end
        self._error: StrandlineError | None = None
        self._writer, self._reader = connection.put(request, schema)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read_acks, name="strandline-acks", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """Return whether there will be no more acks."""
        return self._ended.is_set()

    def write(self, batch: pa.RecordBatch, tag: BatchTag) -> bool:
        """Send a batch; may block for flow control. Return False if the put has failed."""
        try:
            self._writer.write_with_metadata(batch, encode(tag))
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            logger.debug("a put to %s failed: %s", self._connection.address, error)
            return False
        return True

    def finish(self) -> StrandlineError | None:
        """End the put and wait for the last acks; return its error, or None."""
        try:
            if not self.has_ended:
                self._writer.done_writing()
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            logger.debug("a put to %s failed: %s", self._connection.address, error)
        if not self._ended.wait(END_TIMEOUT_S):
            return DisconnectedError(f"{self._connection.address} does not answer")
        if self._error is not None:
            return self._error
        try:
            self._writer.close()
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            return from_flight(error, address=self._connection.address)
        return None

    def _read_acks(self) -> None:
        """Read acks until the put ends."""
        try:
            while (data := self._reader.read()) is not None:
                self._on_ack(decode(data.to_pybytes(), PutAck, what="ack"))
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            # An error without details is left to ``close``, which raises the broker's own error.
            if getattr(error, "extra_info", b""):
                self._error = from_flight(error, address=self._connection.address)
        except InvalidRequestError as error:
            self._error = StrandlineError(f"{self._connection.address}: {error.message}")
        finally:
            self._ended.set()
            self._on_end(self)
