"""What calls of the client return: acks, records, and the future that carries an ack.

Plain values; no connection is needed to use them.
"""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeVar

from strandline.protocol.put import AckedRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Headers = list[tuple[str, bytes]]
R = TypeVar("R")


class Ack(int):
    """The offset of an acknowledged record; also says its partition.

    ``duplicate`` is true when the record was stored earlier under the same message id.
    """

    partition: int
    duplicate: bool

    @classmethod
    def at(cls, offset: int, partition: int, *, duplicate: bool = False) -> Self:
        """The ack of the record at ``offset`` of ``partition``."""
        ack = cls(offset)
        ack.partition = partition
        ack.duplicate = duplicate
        return ack

    @property
    def offset(self) -> int:
        """The offset as a plain integer."""
        return int(self)

    def __repr__(self) -> str:
        """Show where the record is."""
        suffix = ", duplicate=True" if self.duplicate else ""
        return f"Ack(offset={int(self)}, partition={self.partition}{suffix})"


class BatchAck(NamedTuple):
    """Where the rows of a batch went."""

    records: int
    ranges: tuple[AckedRange, ...]
    """(partition, offset of the first, records), in the order of the rows within a partition."""


class Record(NamedTuple):
    """One record as a Python object."""

    stream: str
    partition: int
    offset: int
    timestamp_ns: int
    """When the broker stored it: Unix time in nanoseconds."""
    subject: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    """(name, value) pairs; order and repeats are kept."""

    @property
    def timestamp(self) -> datetime:
        """When the broker stored it, in UTC, to the microsecond."""
        return EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


class AckFuture(Future[R]):
    """A future that knows whether anybody looked at its outcome; it cannot be cancelled.

    A producer raises failures nobody looked at when it is flushed, so that none is lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def cancel(self) -> bool:
        """Refuse: what was handed to a producer may already be stored."""
        return False

    def result(self, timeout: float | None = None) -> R:
        """Wait for the ack.

        Raises:
            StrandlineError: the record was not stored, or whether it was is unknown.
            TimeoutError: no outcome within ``timeout`` seconds.
        """
        self.seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; None means acknowledged."""
        self.seen = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[R]], Any]) -> None:
        """Call ``fn`` with this future once it is done."""
        self.seen = True
        super().add_done_callback(fn)
