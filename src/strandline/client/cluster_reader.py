"""A read in a cluster: of each partition where it is led (or copied), and on where it broke off.

Rules:
- a partition is read where it is led, also when the leader of before says nothing more;
- no record comes twice, none is left out, and no partition goes back;
- partitions with an end are read one after another, those that are followed together: a thread for
  each broker, whatever the number of partitions;
- who follows all partitions gets those that the stream is given later, from their beginning, unless
  the stream had one and nothing read would tell whose record is whose.
"""

import queue
import threading
import time
from collections.abc import Generator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from strandline.client.cluster_client import ClusterClient, Routes
from strandline.client.coordinator_client import ATTEMPT_S
from strandline.client.deadline import within
from strandline.client.reading import PUMPED_BATCHES, BatchStream, EndlessReader, arrow_reader
from strandline.client.reconnect_schedule import ReconnectSchedule
from strandline.client.replica_selector import ReadTarget, Replica, ReplicaSelector
from strandline.client.retry import Patience
from strandline.errors import DisconnectedError, StrandlineError
from strandline.protocol.admin import PartitionInfo
from strandline.protocol.tickets import ReadRequest

LOOK_S = 10.0
"""How often a read looks who leads its partitions and, if it follows, whether there are more."""
LISTEN_S = 0.5
"""How often those who wait for each other look whether the read was cancelled."""
Batches = Generator[pa.RecordBatch, None, None]


class _Part(NamedTuple):
    """What a thread of a followed read has to say."""

    partitions: tuple[int, ...]
    batch: pa.RecordBatch | None
    """None: it has ended."""
    error: StrandlineError | None = None


class ClusterReader(ReplicaSelector):
    """A read under way.

    Args:
        brokers: of the cluster.
        request: what to read.
        replica: where.
        timeout_s: how long a partition may be unreachable.
        is_of_all: whether it is of all partitions, though its ``starts`` names them.

    Raises:
        StrandlineError: the request is wrong, or a partition cannot be reached.
    """

    resumes = True
    """A lost connection is no end."""

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
        is_told_apart = len(self._positions) > 1 or "partition" in self.schema.names
        self._grows = is_of_all and is_told_apart and not self._only and request.stop is None
        self.added: dict[int, int] = {}
        """Partitions that the stream was given meanwhile, and where the read of each began."""
        self._first: tuple[int, BatchStream] | None = None
        if self._positions and not request.follow:
            # So that what is wrong with the request is told at the call.
            first = min(self._positions)
            self._first = first, self._open_one(first, Patience(timeout_s))

    # Records

    def cancel(self) -> None:
        """End the read, from any thread; whoever waits for a batch gets a DisconnectedError."""
        self._is_cancelled.set()
        for stream in tuple(self._streams):
            stream.cancel()

    def reader(self) -> pa.RecordBatchReader | EndlessReader:
        """The batches as a reader; once only."""
        return arrow_reader(self._request, self.schema, self.batches(), cancel=self.cancel)

    def batches(self) -> Batches:
        """The batches; once only. Closing the generator cancels the read.

        Raises:
            StrandlineError: the read cannot go on.
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
        """Remember where a batch ends."""
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
        """One partition after another, to its end."""
        threading.Thread(target=self._keep_looking, name="strandline-look", daemon=True).start()
        for number in sorted(self._positions):
            patience = Patience(self._timeout_s)
            while not self._is_done(number):
                stream = self._stream_of(number, patience)
                try:
                    for batch in stream.batches():
                        patience.succeeded()
                        yield batch
                    break
                except StrandlineError as error:
                    self._is_cancelled.wait(self._pause_s(patience, error))
                finally:
                    self._streams.pop(stream, None)

    def _stream_of(self, number: int, patience: Patience) -> BatchStream:
        first, self._first = self._first, None
        if first is not None and first[0] == number:
            return first[1]
        return self._open_one(number, patience)

    def _is_done(self, number: int) -> bool:
        position, stop = self._positions[number], self._stops[number]
        is_there = isinstance(position, int) and isinstance(stop, int) and position >= stop
        return is_there or self._left == 0

    def _keep_looking(self) -> None:
        """On a thread of its own, as the one that reads waits where nothing wakes it."""
        while not self._is_cancelled.wait(LOOK_S):
            self._leave_deposed()

    def _leave_deposed(self) -> Routes:
        """End what is read at brokers that lead no more; who leads now, as far as anybody says.

        A broker that stands still, or whom the network has lost, ends nothing by itself.
        """
        try:
            routes = self._brokers.routes(self._request.stream)
        except StrandlineError:
            return {}  # what is wrong the reads themselves will tell
        for stream, place in tuple(self._streams.items()):
            if any(n in routes and self._has_left(routes[n], place) for n in place.partitions):
                stream.cancel()  # whoever reads it is told so, behind what it has brought
        return routes

    def _has_left(self, partition: PartitionInfo, place: ReadTarget) -> bool:
        """Whether somebody else is to be asked for a partition by now."""
        if self._replica == "leader":
            return partition.leader not in ("", place.address)
        return not self._only and bool(partition.in_sync) and place.address not in partition.in_sync

    # Following

    def _followed(self) -> Batches:
        """All partitions as their records come."""
        inbox: queue.Queue[_Part] = queue.Queue(PUMPED_BATCHES)
        going = {number for number in self._positions if not self._is_done(number)}
        reopening = ReconnectSchedule(going, timeout_s=self._timeout_s)
        look_s = time.monotonic() + LOOK_S
        try:
            while going:
                if time.monotonic() >= look_s:
                    added = self._look_around()
                    going |= added
                    reopening.closed |= added
                    look_s = time.monotonic() + LOOK_S
                pause_s = reopening.wait_s(time.monotonic())
                if pause_s == 0:
                    self._begin(reopening, inbox)
                try:
                    part = inbox.get(timeout=LISTEN_S if pause_s is None else pause_s)
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

    def _look_around(self) -> set[int]:
        """Leave those who lead no more; the partitions there are since, if asked."""
        routes = self._leave_deposed()
        return self._added(routes) if self._grows else set()

    def _added(self, routes: Routes) -> set[int]:
        """Partitions that the stream was given since; they are read from the first record kept."""
        found = {n: part for n, part in routes.items() if n not in self._positions}
        begins = {number: part.log_start_offset for number, part in found.items()}
        self.added = {**self.added, **begins}  # another thread may look at it
        self._positions |= begins
        self._stops |= dict.fromkeys(found)
        return set(found)

    def _begin(self, reopening: ReconnectSchedule, inbox: "queue.Queue[_Part]") -> None:
        """Begin to follow partitions that nobody reads, as far as they can be reached.

        Raises:
            StrandlineError: one of them could not for too long, or there is no point in waiting.
        """
        left_s = reopening.left_s(time.monotonic())
        with within(left_s):
            failure = self._begin_each(reopening, inbox, attempt_s=max(ATTEMPT_S, left_s / 2))
        if reopening.closed:
            left = tuple(reopening.closed)
            failure = failure or self._nowhere(min(left))
            self._check_passing(failure)
            reopening.failed(left, failure, time.monotonic())

    def _begin_each(
        self, reopening: ReconnectSchedule, inbox: "queue.Queue[_Part]", *, attempt_s: float
    ) -> StrandlineError | None:
        """Begin to follow partitions at every broker that has some; why that failed at one."""
        failure: StrandlineError | None = None
        places: dict[str, tuple[int, ...]] = {}
        try:
            places = self._places(reopening.closed)
        except StrandlineError as error:
            failure = error
        for address, numbers in places.items():
            try:
                with within(attempt_s):
                    self._begin_at(address, numbers, reopening=reopening, inbox=inbox)
            except StrandlineError as error:  # the others may be reached all the same
                failure = error
                self._check_passing(error)
        return failure

    def _begin_at(
        self,
        address: str,
        numbers: tuple[int, ...],
        *,
        reopening: ReconnectSchedule,
        inbox: "queue.Queue[_Part]",
    ) -> None:
        """Begin to follow partitions at a broker, on a thread.

        Raises:
            StrandlineError: what the broker answered.
        """
        has_ends = any(self._stops[number] is not None for number in numbers)
        for some in [(number,) for number in numbers] if has_ends else [numbers]:
            stream = self._open(address, some)
            reopening.opened(some, time.monotonic())
            pump = (some, stream, inbox)
            name = "strandline-read"
            threading.Thread(target=self._pump, args=pump, name=name, daemon=True).start()

    def _pump(
        self, numbers: tuple[int, ...], stream: BatchStream, inbox: "queue.Queue[_Part]"
    ) -> None:
        """Hand on what one broker sends."""
        error: StrandlineError | None = None
        try:
            for batch in stream.direct():
                self._hand_on(inbox, _Part(numbers, batch))
                if self._is_cancelled.is_set():
                    return
        except StrandlineError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - raised by the reader
            error = StrandlineError(f"the read failed: {bug!r}")
        finally:
            self._streams.pop(stream, None)
        self._hand_on(inbox, _Part(numbers, None, error))

    def _hand_on(self, inbox: "queue.Queue[_Part]", part: _Part) -> None:
        """Put something into the inbox, unless nobody listens any more."""
        while not self._is_cancelled.is_set():
            try:
                inbox.put(part, timeout=LISTEN_S)
            except queue.Full:
                continue
            return
