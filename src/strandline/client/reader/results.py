"""Return values of the client: acks, records, and the future of an ack. Plain data."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self, TypeVar

from strandline.api.put import AckedRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Headers = list[tuple[str, bytes]]
R = TypeVar("R")
_MAKING_LOCKS = threading.RLock()
"""Held while a future makes its lock, or gets its result before it has a lock. Reentrant, since the
garbage collector may run meanwhile, and finalizers with it."""


class Ack(int):
    """The offset of an acknowledged record, with its partition.

    ``duplicate`` is true if the record was stored earlier under the same message id.
    """

    partition: int
    duplicate: bool

    @classmethod
    def at(cls, offset: int, partition: int, *, duplicate: bool = False) -> Self:
        """Make the ack of the record at ``offset`` of ``partition``."""
        ack = cls(offset)
        ack.partition = partition
        ack.duplicate = duplicate
        return ack

    @property
    def offset(self) -> int:
        """Return the offset as a plain integer."""
        return int(self)

    def __repr__(self) -> str:
        """Return the offset and partition."""
        suffix = ", duplicate=True" if self.duplicate else ""
        return f"Ack(offset={int(self)}, partition={self.partition}{suffix})"


class BatchAck(NamedTuple):
    """The ack of a table's rows."""

    records: int
    ranges: tuple[AckedRange, ...]
    """(partition, first offset, records) of each run, in the order of rows within a partition."""


class Record(NamedTuple):
    """A record as a Python object."""

    stream: str
    partition: int
    offset: int
    timestamp_ns: int
    """The time when the broker stored the record: Unix time in nanoseconds."""
    subject: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    """(name, value) pairs, in order and with repeats."""

    @property
    def timestamp(self) -> datetime:
        """Return when the broker stored the record, in UTC, to the microsecond."""
        return EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)


class AckFuture(Future[R]):
    """A future that notes whether its outcome was examined; it cannot be cancelled.

    When a producer is flushed, it raises failures that were not examined, so that none is missed.

    Making the lock of a future would take longer than the rest of an append, and most futures are
    never waited for. So the lock is made when it is first needed. The fields are those of
    ``Future``, as a test checks, and the methods of ``Future`` do the rest.
    """

    _state: str
    _result: R | None

    def __init__(self) -> None:  # does not call that of Future, which makes the lock
        self._state = PENDING
        self._result = self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._lock: threading.Condition | None = None
        self.seen = False

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]  # an attribute there
        """Return the lock that ``Future``'s methods use."""
        with _MAKING_LOCKS:
            if self._lock is None:
                self._lock = threading.Condition()
            return self._lock

    def set_result(self, result: R) -> None:
        """Set the result, and wake the threads that wait for it."""
        with _MAKING_LOCKS:
            if self._lock is None and self._state == PENDING:
                # Without a lock there are neither waiting threads nor callbacks.
                self._result, self._state = result, FINISHED
                return
        super().set_result(result)

    def cancel(self) -> bool:
        """Return False: the record may be stored already."""
        return False

    def result(self, timeout: float | None = None) -> R:
        """Wait for the ack.

        Raises:
            StrandlineError: the record was not stored, or may not be.
            TimeoutError: no outcome within ``timeout`` seconds.
        """
        self.seen = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome; return None if the record was acknowledged."""
        self.seen = True
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[R]], Any]) -> None:
        """Call ``fn`` with this future once it is done."""
        self.seen = True
        super().add_done_callback(fn)
