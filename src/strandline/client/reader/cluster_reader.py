"""A read in a cluster: reads each partition at a replica, and resumes at another one.

Rules:
- by default a partition is read at its leader, even if the previous leader just stopped answering;
- no record is repeated or skipped, and no partition goes backwards;
- partitions with an end are read one after another. Followed partitions are read together, with one
  thread per broker for any number of partitions;
- a read that follows all partitions includes those added later, from their start, unless the stream
  had one partition and the columns of the read would not distinguish them.
"""

import queue
import threading
import time
from collections.abc import Generator
from typing import NamedTuple

import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.api.admin import PartitionInfo
from strandline.api.tickets import ReadRequest
from strandline.client.cluster_client import ClusterClient
from strandline.client.coordinator_client import ATTEMPT_S
from strandline.client.deadline import within
from strandline.client.metadata import Routes
from strandline.client.reader.reading import (
    PUMPED_BATCHES,
    BatchStream,
    EndlessReader,
    arrow_reader,
)
from strandline.client.reader.replica_selector import ReadTarget, Replica, ReplicaSelector
from strandline.client.reconnect_schedule import ReconnectSchedule
from strandline.client.retry_policy import RetryDeadline
from strandline.errors import DisconnectedError, StrandlineError

METADATA_REFRESH_S = 10.0
"""The interval of checks for other leaders and, if the read follows, for new partitions."""
CANCEL_POLL_S = 0.5
"""The interval at which blocked threads check whether the read was cancelled."""
Batches = Generator[pa.RecordBatch, None, None]


class _PumpedBatch(NamedTuple):
    """A message from one of the threads of a followed read."""

    partitions: tuple[int, ...]
    batch: pa.RecordBatch | None
    """None: the thread has ended."""
    error: StrandlineError | None = None


class ClusterReader(ReplicaSelector):
    """A read in progress in a cluster.

    Args:
        brokers: the brokers of the cluster.
        request: what to read.
        replica: which replicas to read.
        timeout_s: how long a partition may be unreachable.
        is_of_all: whether the read is of all partitions, although its ``starts`` names them.

    Raises:
        StrandlineError: the request is invalid, or a partition cannot be reached.
    """

    resumes = True
    """True: a read in a cluster reconnects by itself."""

    def __init__(
        self,
        brokers: ClusterClient,
        request: ReadRequest,
        *,
        replica: Replica,
        timeout_s: float,
        is_of_all: bool = False,
    ) -> None:
        super().__init__(brokers, request, replica=replica, timeout_s=timeout_s)
        is_of_all = is_of_all or (request.partition is None and request.starts is None)
        is_distinguishable = len(self._positions) > 1 or "partition" in self.schema.names
        self._grows = is_of_all and is_distinguishable and not self._only and request.stop is None
        self.added: dict[int, int] = {}
        """The partitions added since the read began, with the first offset read of each."""
        self._first: tuple[int, BatchStream] | None = None
        if self._positions and not request.follow:
            # Opens the first read now, so that a wrong request raises in this call.
            first = min(self._positions)
            self._first = first, self._open_one(first, RetryDeadline(timeout_s))

    # Records

    def cancel(self) -> None:
        """End the read; any thread may call this; a waiting reader gets a DisconnectedError."""
        self._is_cancelled.set()
        for stream in tuple(self._streams):
            stream.cancel()

    def reader(self) -> pa.RecordBatchReader | EndlessReader:
        """Return the batches as a reader; callable once."""
        return arrow_reader(self._request, self.schema, self.batches(), cancel=self.cancel)

    def batches(self) -> Batches:
        """Yield the batches; callable once. Closing the generator cancels the read.

        Raises:
            StrandlineError: the read failed.
        """
        parts = self._followed() if self._request.follow else self._in_turn()
        try:
            for batch in parts:
                self._note(batch)
                yield batch.select(self.schema.names)
                if self._left == 0:
                    return
        finally:
            parts.close()
            self.cancel()

    def _note(self, batch: pa.RecordBatch) -> None:
        """Advance the positions past a batch that was read."""
        offsets, numbers = batch.column("offset"), batch.column("partition")
        runs = pc.run_end_encode(numbers)
        for end, number in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            last = offsets[end - 1].as_py()
            if self._request.order == "descending":
                self._stops[number] = last
            else:
                self._positions[number] = last + 1
            self._read.add(number)
        if self._left is not None:
            self._left -= batch.num_rows

    def _in_turn(self) -> Batches:
        """Read one partition after another to its end."""
        threading.Thread(target=self._watch_leaders, name="strandline-look", daemon=True).start()
        for number in sorted(self._positions):
            retry_deadline = RetryDeadline(self._timeout_s)
            while not self._is_done(number):
                stream = self._stream_of(number, retry_deadline)
                try:
                    for batch in stream.batches():
                        retry_deadline.succeeded()
                        yield batch
                    break
                except StrandlineError as error:
                    self._is_cancelled.wait(self._pause_s(retry_deadline, error))
                finally:
                    self._streams.pop(stream, None)

    def _stream_of(self, number: int, retry_deadline: RetryDeadline) -> BatchStream:
        first, self._first = self._first, None
        if first is not None and first[0] == number:
            return first[1]
        return self._open_one(number, retry_deadline)

    def _is_done(self, number: int) -> bool:
        position, stop = self._positions[number], self._stops[number]
        is_there = isinstance(position, int) and isinstance(stop, int) and position >= stop
        return is_there or self._left == 0

    def _watch_leaders(self) -> None:
        """Check the leaders on a thread of its own, since the reading thread blocks in calls."""
        while not self._is_cancelled.wait(METADATA_REFRESH_S):
            self._cancel_deposed()

    def _cancel_deposed(self) -> Routes:
        """End reads at brokers that no longer lead; return the current routes, if known.

        A broker that hangs or is partitioned does not end its reads by itself.
        """
        try:
            routes = self._brokers.routes(self._request.stream)
        except StrandlineError:
            return {}  # the reads raise errors of their own
        for stream, target in tuple(self._streams.items()):
            if any(n in routes and self._is_deposed(routes[n], target) for n in target.partitions):
                stream.cancel()  # its reader gets an error after the batches already received
        return routes

    def _is_deposed(self, partition: PartitionInfo, target: ReadTarget) -> bool:
        """Return whether a partition must now be read at another broker."""
        if self._replica == "leader":
            return partition.leader not in ("", target.address)
        return (
            not self._only and bool(partition.in_sync) and target.address not in partition.in_sync
        )

    # Following

    def _followed(self) -> Batches:
        """Read all partitions together, as records arrive."""
        inbox: queue.Queue[_PumpedBatch] = queue.Queue(PUMPED_BATCHES)
        going = {number for number in self._positions if not self._is_done(number)}
        reopening = ReconnectSchedule(going, timeout_s=self._timeout_s)
        look_s = time.monotonic() + METADATA_REFRESH_S
        try:
            while going:
                if time.monotonic() >= look_s:
                    added = self._refresh_metadata()
                    going |= added
                    reopening.closed |= added
                    look_s = time.monotonic() + METADATA_REFRESH_S
                pause_s = reopening.wait_s(time.monotonic())
                if pause_s == 0:
                    self._begin(reopening, inbox)
                try:
                    part = inbox.get(timeout=CANCEL_POLL_S if pause_s is None else pause_s)
                except queue.Empty:
                    if self._is_cancelled.is_set():
                        raise DisconnectedError("the read was cancelled") from None
                    continue
                if part.batch is not None:
                    reopening.came(part.partitions)
                    yield part.batch
                elif part.error is None:
                    going -= set(part.partitions)
                else:
                    self._check_passing(part.error)
                    reopening.lost(part.partitions, part.error, time.monotonic())
        finally:
            self.cancel()
            while not inbox.empty():
                inbox.get()

    def _refresh_metadata(self) -> set[int]:
        """End reads at former leaders; return the added partitions if the read includes them."""
        routes = self._cancel_deposed()
        return self._added(routes) if self._grows else set()

    def _added(self, routes: Routes) -> set[int]:
        """Add the partitions that were added to the stream, from their start; return them."""
        found = {n: part for n, part in routes.items() if n not in self._positions}
        begins = {number: part.log_start_offset for number, part in found.items()}
        self.added = {**self.added, **begins}  # not changed in place: other threads may read it
        self._positions |= begins
        self._stops |= dict.fromkeys(found)
        return set(found)

    def _begin(self, reopening: ReconnectSchedule, inbox: "queue.Queue[_PumpedBatch]") -> None:
        """Start to follow the partitions that are not being read, as far as they can be reached.

        Raises:
            StrandlineError: a partition was unreachable for too long, or the error is permanent.
        """
        left_s = reopening.left_s(time.monotonic())
        with within(left_s):
            failure = self._begin_each(reopening, inbox, attempt_s=max(ATTEMPT_S, left_s / 2))
        if reopening.closed:
            left = tuple(reopening.closed)
            failure = failure or self._unavailable(min(left))
            self._check_passing(failure)
            reopening.failed(left, failure, time.monotonic())

    def _begin_each(
        self, reopening: ReconnectSchedule, inbox: "queue.Queue[_PumpedBatch]", *, attempt_s: float
    ) -> StrandlineError | None:
        """Start to follow partitions at each of their brokers; return the error of one, or None."""
        failure: StrandlineError | None = None
        targets: dict[str, tuple[int, ...]] = {}
        try:
            targets = self._targets(reopening.closed)
        except StrandlineError as error:
            failure = error
        for address, numbers in targets.items():
            try:
                with within(attempt_s):
                    self._begin_at(address, numbers, reopening=reopening, inbox=inbox)
            except StrandlineError as error:  # try the other brokers
                failure = error
                self._check_passing(error)
        return failure

    def _begin_at(
        self,
        address: str,
        numbers: tuple[int, ...],
        *,
        reopening: ReconnectSchedule,
        inbox: "queue.Queue[_PumpedBatch]",
    ) -> None:
        """Start a thread that follows partitions at one broker.

        Raises:
            StrandlineError: the broker's error.
        """
        has_ends = any(self._stops[number] is not None for number in numbers)
        for some in [(number,) for number in numbers] if has_ends else [numbers]:
            stream = self._open(address, some)
            reopening.opened(some, time.monotonic())
            pump = (some, stream, inbox)
            name = "strandline-read"
            threading.Thread(target=self._pump, args=pump, name=name, daemon=True).start()

    def _pump(
        self, numbers: tuple[int, ...], stream: BatchStream, inbox: "queue.Queue[_PumpedBatch]"
    ) -> None:
        """Forward the batches from one broker to the inbox."""
        error: StrandlineError | None = None
        try:
            for batch in stream.direct():
                self._put_unless_cancelled(inbox, _PumpedBatch(numbers, batch))
                if self._is_cancelled.is_set():
                    return
        except StrandlineError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - raised by the reader
            error = StrandlineError(f"the read failed: {bug!r}")
        finally:
            self._streams.pop(stream, None)
        self._put_unless_cancelled(inbox, _PumpedBatch(numbers, None, error))

    def _put_unless_cancelled(self, inbox: "queue.Queue[_PumpedBatch]", part: _PumpedBatch) -> None:
        """Put a message into the inbox, unless the read is cancelled."""
        while not self._is_cancelled.is_set():
            try:
                inbox.put(part, timeout=CANCEL_POLL_S)
            except queue.Full:
                continue
            return
