"""A DoGet call: the record batches of a read plan, one partition after another or in rotation.

Rules: runs on the call's Flight thread, and checks at every step whether the client is still
connected and whether the broker is stopping. Small filter results are joined, so that a selective
read does not send thousands of tiny batches.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle

import pyarrow as pa
import pyarrow.flight as fl

from strandline.api.status import to_flight
from strandline.broker.write_path.partition import Partition
from strandline.errors import CorruptBatchError, StrandlineError
from strandline.reading.cursor import Cursor, CursorBatch
from strandline.reading.descending import DescendingCursor
from strandline.servers.flight.lifecycle import POLL_S, ServerLifecycle
from strandline.servers.flight.plan import ReadPlan
from strandline.servers.metering import Allowance, counted
from strandline.telemetry import Telemetry

logger = logging.getLogger(__name__)

GATHER_BATCHES_MAX = 64
GATHER_MS_MAX = 100.0
REPAIR_MS_MAX = 2000.0
REPAIR_POLL_S = 0.02
CANCEL_CHECK_MS = 50.0
"""How often gRPC is asked at most whether the client is still connected. Each time it polls its
sockets; asking at every step took a seventh of the time of a fast read."""


class ReadSession:
    """The record batches of one read.

    Args:
        plan: the resolved read.
        lifecycle: the lifecycle of the Flight server.
        telemetry: counts deliveries.
        is_cancelled: returns whether the client has disconnected.
        check_allowed: raises an error if the caller may no longer read.
        allowance: the caller's quota; None if it is not metered.
        connection: returns a context that is entered for the duration of the read.
    """

    def __init__(
        self,
        plan: ReadPlan,
        lifecycle: ServerLifecycle,
        *,
        telemetry: Telemetry,
        is_cancelled: Callable[[], bool],
        check_allowed: Callable[[], None] = lambda: None,
        allowance: Allowance | None = None,
        connection: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._plan = plan
        self._request = plan.request
        self._lifecycle = lifecycle
        self._telemetry = telemetry
        self._is_cancelled = is_cancelled
        self._check_allowed = check_allowed
        self._allowance = allowance
        self._connection = connection
        kind = DescendingCursor if plan.request.order == "descending" else Cursor
        self._cursors: list[Cursor[Partition]] = [
            kind(plan.request, extent, names=plan.schema.names) for extent in plan.ranges
        ]
        self._left = plan.request.records_max
        self._is_gone = False
        self._asked_ms = lifecycle.now_ms()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches until all are delivered or the client disconnects.

        Raises:
            ShuttingDownError: the broker is stopping.
            UnknownStreamError: the stream was deleted meanwhile.
            NotLeaderError: a partition was moved to other brokers.
            QuotaExceededError: the principal has too many reads and appends open.
            CorruptBatchError, DataLossError: see ``Cursor.read``.
        """
        with self._lifecycle.stream(), counted(self._allowance), self._connection():
            for batch, size in self._gathered(self._unlimited()):
                piece = batch if self._left is None else batch.slice(0, self._left)
                if self._allowance is not None:
                    self._hold(self._allowance, size)
                self._telemetry.count_read(records=piece.num_rows, size_bytes=size)
                yield piece
                if self._left is None:
                    continue
                self._left -= piece.num_rows
                if not self._left:
                    return

    def _hold(self, allowance: Allowance, size: int) -> None:
        """Wait until the quota allows a delivery, then check that the caller may still read."""
        if wait_s := allowance.read(size):
            self._lifecycle.hold(wait_s, lambda: allowance.read(0), self._is_cancelled)
            self._check_allowed()

    def _unlimited(self) -> Iterator[CursorBatch | None]:
        """Yield batches, ignoring quotas; None if there was nothing to deliver for a while."""
        if self._left == 0:
            return
        if self._request.follow:
            yield from self._follow()
            return
        self._long_poll()
        for cursor in self._cursors:
            while not cursor.is_done and self._goes_on(cursor):
                yield from self._read(cursor) or (None,)

    def _read(self, cursor: Cursor[Partition]) -> list[CursorBatch]:
        """Read from the cursor; wait a while for a corrupt range to be repaired from a replica.

        Raises:
            CorruptBatchError, DataLossError: see ``Cursor.read``.
        """
        deadline_ms = self._lifecycle.now_ms() + REPAIR_MS_MAX
        while True:
            try:
                return cursor.read()
            except CorruptBatchError:
                is_over = self._lifecycle.now_ms() >= deadline_ms or not self._goes_on(cursor)
                if is_over or not cursor.partition.has_copies:
                    raise
            self._lifecycle.stopping.wait(REPAIR_POLL_S)

    def _follow(self) -> Iterator[CursorBatch | None]:
        """Yield batches of all partitions in rotation; wait while no partition has new records."""
        going = [cursor for cursor in self._cursors if not cursor.is_done]
        turn = cycle(range(len(going)))
        with self._lifecycle.waiter(cursor.partition for cursor in going) as waiter:
            while going:
                waiter.arm()
                ready = [cursor for cursor in going if cursor.has_more]
                if not ready:
                    yield None
                    waiter.wait(POLL_S)
                elif self._request.bytes_min:
                    self._long_poll()
                # Each round starts at another partition, so that no partition is always last.
                first = next(turn) % len(ready) if ready else 0
                for cursor in (*ready[first:], *ready[:first]):
                    yield from self._read(cursor) or (None,)
                if not all(map(self._goes_on, going)):
                    return
                if any(cursor.is_done for cursor in ready):
                    going = [cursor for cursor in going if not cursor.is_done]

    def _long_poll(self) -> None:
        """Wait until ``bytes_min`` can be delivered, for at most ``wait_ms_max``.

        A read without a stop then ends at the high watermark reached by then.
        """
        wanted, deadline = (
            self._request.bytes_min,
            self._lifecycle.now_ms() + self._request.wait_ms_max,
        )
        if not self._request.wait_ms_max:
            return
        has_own_end = self._request.follow or self._request.stop is not None
        if not has_own_end:
            for cursor in self._cursors:
                cursor.stop = None
        with self._lifecycle.waiter(cursor.partition for cursor in self._cursors) as waiter:
            while True:
                waiter.arm()
                left_ms = deadline - self._lifecycle.now_ms()
                if left_ms <= 0 or self._has_bytes(max(1, wanted)):
                    break
                if not all(map(self._goes_on, self._cursors)):
                    break
                waiter.wait(left_ms / 1e3)
        if not has_own_end:
            for cursor in self._cursors:
                cursor.stop = cursor.partition.last_stable_offset

    def _has_bytes(self, wanted: int) -> bool:
        """Return whether about ``wanted`` bytes can be delivered."""
        for cursor in self._cursors:
            try:
                wanted -= cursor.available_bytes(wanted)
            except CorruptBatchError:
                return True  # the read itself reports the error
            if wanted <= 0:
                return True
        return False

    def _goes_on(self, cursor: Cursor[Partition]) -> bool:
        """Return whether the client is still connected; raise an error if the read must end."""
        self._lifecycle.check()
        if (closed_by := cursor.partition.closed_by) is not None:
            raise closed_by  # deleted, or moved to other brokers, where the client can continue
        now_ms = self._lifecycle.now_ms()
        if now_ms - self._asked_ms >= CANCEL_CHECK_MS:
            self._asked_ms = now_ms
            self._is_gone = self._is_cancelled()
            self._check_allowed()
        return not self._is_gone

    def _gathered(self, deliveries: Iterator[CursorBatch | None]) -> Iterator[CursorBatch]:
        """Join small consecutive batches; deliver held ones whenever no further batch is ready."""
        held: list[pa.RecordBatch] = []
        size, since = 0, 0.0
        enough = self._request.batch_bytes // 4
        for delivery in _error_last(deliveries):
            # Joining copies the data, which is not worth it for a large batch.
            is_large = delivery is not None and delivery.size >= enough
            if delivery is not None and not is_large:
                since = since if held else self._lifecycle.now_ms()
                held.append(delivery.batch)
                size += delivery.size
                is_full = size >= enough or len(held) >= GATHER_BATCHES_MAX
                if not is_full and self._lifecycle.now_ms() - since < GATHER_MS_MAX:
                    continue
            if held:
                yield CursorBatch(join(held), size)
                held, size = [], 0
            if delivery is not None and is_large:
                yield delivery
        if held:
            yield CursorBatch(join(held), size)

    def stream(self) -> fl.FlightDataStream:
        """Return the read as a Flight stream; an error in the middle keeps its type."""
        failure: list[fl.FlightError] = []

        def guarded() -> Iterator[pa.RecordBatch]:
            # Flight would keep only the text of an exception raised here. One raised by the outer
            # generator keeps its code.
            try:
                yield from self.batches()
            except StrandlineError as error:
                failure.append(to_flight(error))
            except Exception:
                logger.exception("a read of %s failed", self._request.stream)
                failure.append(fl.FlightInternalError("internal error; see the broker's log"))

        def parts() -> Iterator[pa.RecordBatchReader]:
            yield pa.RecordBatchReader.from_batches(self._plan.schema, guarded())
            if failure:
                raise failure[0]

        return fl.GeneratorStream(self._plan.schema, parts())


def _error_last(deliveries: Iterator[CursorBatch | None]) -> Iterator[CursorBatch | None]:
    """Yield None before an error, so that held batches are delivered before it."""
    try:
        yield from deliveries
    except StrandlineError:
        yield None
        raise


def join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return several record batches as one."""
    if len(batches) == 1:
        return batches[0]
    [joined] = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return joined
