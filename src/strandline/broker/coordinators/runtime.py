"""Runs a coordinator's state machine on the broker that leads its internal stream.

The machine's entries are the records of an internal stream with one partition. The leader of that
partition runs the machine, so the partition's replicas are the machine's, and the leader epoch is
its term.

Rules:
- everything runs on the loop except the beginning of a term, which reads the log and creates the
  machine on a thread. The sequence of an entry is the offset of its record, since nobody else
  writes there;
- an entry that was not stored, or a change of leaders, ends the term: waiting requests fail with an
  error that can be retried, and the next term begins from the committed entries;
- a request that arrives while a new term reads the log waits for a moment, then fails with
  ``StillLoadingError``.

Must not know what is decided.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from strandline.broker.coordinators.log import read_entries
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.clock import Clock
from strandline.config import BrokerConfig, StreamConfig
from strandline.core.coordinator_effects import Answer, Decision, Forget, Reject, Store
from strandline.core.metadata.image import MetadataImage
from strandline.errors import (
    RequestTimeoutError,
    StillLoadingError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.telemetry import Telemetry
from strandline.types import LeaderEpoch, Offset, PartitionName

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 4 << 20
"""Whole segments are deleted once the state was rewritten."""
LOAD_WAIT_S = 1.0
TICK_S = 0.1
POLL_S = 0.005
RETRY_S = 1.0
REQUEST_TIMEOUT_S = 30.0


class CoordinatorHost(Protocol):
    """The parts of a broker that a coordinator needs."""

    clock: Clock
    config: BrokerConfig
    telemetry: Telemetry

    @property
    def is_alone(self) -> bool:
        """Whether there is no other broker."""
        ...

    def on_streams_changed(self, callback: Callable[[Collection[str]], None]) -> None:
        """Register a callback with the names of streams that were created, deleted or extended."""
        ...

    def stream(self, name: str) -> Stream:
        """Return the stream of this name, or raise ``UnknownStreamError``."""
        ...

    def streams(self, names: Iterable[str] | None = None) -> list[Stream]:
        """Return all streams, or those of the given that exist."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The newest metadata known here."""
        ...

    async def know_newest(self) -> None:
        """Wait until everything that was decided before this call is known here."""
        ...

    async def create_internal_stream(self, config: StreamConfig) -> None:
        """Create an internal stream, unless it exists."""
        ...

    async def delete_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete the records of a partition below an offset."""
        ...


MachineT = TypeVar("MachineT")
Token = object


class CoordinatorTerm(Generic[MachineT]):
    """One term of the machine, and the requests that wait for its answers."""

    def __init__(self, machine: MachineT, epoch: LeaderEpoch) -> None:
        self.machine = machine
        self.epoch = epoch
        self.waiting: dict[Token, asyncio.Future[Any]] = {}
        self.stored = -1


class CoordinatorRuntime(ABC, Generic[MachineT]):
    """Requests to a coordinator, answered by the machine if it runs here.

    Args:
        broker: this broker.
        stream: name of the internal stream.
        title: the coordinator's name, for messages.
        encode: encodes an entry for storage.
    """

    def __init__(
        self,
        broker: CoordinatorHost,
        stream: str,
        title: str,
        *,
        encode: Callable[[Any], bytes],
    ) -> None:
        self.broker = broker
        self.stream_name = stream
        self._title = title
        self._encode = encode
        self.term: CoordinatorTerm[MachineT] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._failure: StrandlineError | None = None
        self._not_before_ms = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    # Implemented by each coordinator

    @abstractmethod
    def maker(self) -> Callable[[Iterable[bytes], int], MachineT]:
        """Return a function that creates the machine from stored entries and the next sequence.

        It is called on a thread, since there may be many entries, so it takes what it needs of the
        broker before. It raises InvalidRecordError if an entry is malformed.
        """

    def begun(self, term: CoordinatorTerm[MachineT]) -> None:
        """Resume work that was pending in the last term."""

    def ended(self) -> None:
        """Handle the end of a term."""

    @abstractmethod
    def stored(self, term: CoordinatorTerm[MachineT], sequence: int) -> None:
        """Notify the machine that entries up to here are stored."""

    @abstractmethod
    def tick(self, term: CoordinatorTerm[MachineT]) -> None:
        """Pass the time to the machine."""

    # Requests

    async def request(self, ask: Callable[[CoordinatorTerm[MachineT], Token], None]) -> Any:
        """Send a request to the state machine and return its answer.

        Args:
            ask: passes the request, with its token, to the machine.

        Raises:
            NotLeaderError: another broker coordinates; the message names it.
            StillLoadingError: this broker coordinates and is still loading.
            RequestTimeoutError: no answer in time; whether it was decided is unknown.
            StrandlineError: the machine rejects the request.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                term = await self._open()
                token = Token()
                answer = term.waiting[token] = asyncio.get_running_loop().create_future()
                try:
                    ask(term, token)
                    return await answer
                finally:
                    term.waiting.pop(token, None)
        except TimeoutError:
            raise RequestTimeoutError(
                f"the {self._title} did not answer within {REQUEST_TIMEOUT_S:g} s; repeat the "
                "request"
            ) from None

    def carry_out(self, term: CoordinatorTerm[MachineT], decision: Decision[Any]) -> None:
        """Execute an effect that all machines share."""
        match decision:
            case Store(sequence, entry):
                self._store(term, sequence, self._encode(entry))
            case Answer(token, value):
                waiting = term.waiting.get(token)
                if waiting is not None and not waiting.done():
                    waiting.set_result(value)
            case Reject(token, error):
                waiting = term.waiting.get(token)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(error)
            case Forget(before):
                self.spawn(self._forget(Offset(before)), "forget")

    def is_current(self, term: CoordinatorTerm[MachineT]) -> bool:
        """Whether a term has not ended; effects of ended terms are ignored."""
        return term is self.term

    # The term

    async def _open(self) -> CoordinatorTerm[MachineT]:
        """Return the present term; begin one if necessary.

        Raises:
            StrandlineError: another broker coordinates, or this one is not ready.
        """
        partition = await self.home()
        term = self._term_in(partition)
        if term is not None:
            return term
        if partition.write_error is not None:
            raise partition.write_error
        await asyncio.wait({self._begin_soon(partition)}, timeout=LOAD_WAIT_S)
        term = self._term_in(partition)
        if term is not None:
            return term
        raise (
            partition.write_error
            or self._failure
            or StillLoadingError(f"the {self._title} still reads what was stored; retry")
        )

    def _term_in(self, partition: Partition) -> CoordinatorTerm[MachineT] | None:
        """Return the term, if it has not ended with the leadership."""
        term = self.term
        if term is None:
            return None
        if partition.write_error is not None:
            self._resign(partition.write_error)
        elif partition.leader_epoch != term.epoch:
            self._resign(UnavailableError(f"another term of the {self._title} begins; retry"))
        return self.term

    async def has_home(self) -> bool:
        """Return whether the stream exists, without creating it.

        Raises:
            UnavailableError: this broker cannot find out now.
        """
        try:
            self.broker.stream(self.stream_name)
        except UnknownStreamError:
            await self.broker.know_newest()
            return self.stream_name in self.broker.image.streams
        return True

    async def home(self) -> Partition:
        """Return the partition that stores the entries; create the stream if it does not exist.

        Raises:
            StrandlineError: it cannot be created now, or is not known here yet.
        """
        try:
            return self.broker.stream(self.stream_name).partition(0)
        except UnknownStreamError:
            config = StreamConfig(
                name=self.stream_name,
                subject=self.stream_name,
                segment_bytes=SEGMENT_BYTES,
                dedup_window_ms=0,
            )
            await self.broker.create_internal_stream(config)
        try:
            return self.broker.stream(self.stream_name).partition(0)
        except UnknownStreamError:
            raise StillLoadingError(
                f"the stream of the {self._title} is not known here yet; retry"
            ) from None

    def _begin_soon(self, partition: Partition) -> asyncio.Task[None]:
        """Begin a term on a thread, unless one is beginning."""
        if self._beginning is None:
            self._beginning = self.spawn(self._begin(partition), "begin")
            self._beginning.add_done_callback(self._has_begun)
        return self._beginning

    def _has_begun(self, _: asyncio.Task[None]) -> None:
        self._beginning = None

    async def _begin(self, partition: Partition) -> None:
        """Begin a term from the committed entries, once the high watermark covers them all."""
        try:
            epoch = partition.leader_epoch
            while partition.high_watermark < partition.next_offset:
                if partition.write_error is not None or partition.leader_epoch != epoch:
                    return
                await asyncio.sleep(POLL_S)
            end = partition.next_offset
            skips = self.broker.config.allow_corrupt_coordinator_log
            make = self.maker()

            def load() -> tuple[MachineT, int]:
                entries = read_entries(partition, end, skips_corrupt=skips)
                return make(entries, end), len(entries)

            machine, entries = await asyncio.to_thread(load)
            if partition.write_error is not None or partition.leader_epoch != epoch:
                return
            assert partition.next_offset == end, "only who holds the office writes here"
            term = self.term = CoordinatorTerm(machine, epoch)
            self._failure = None
            logger.info("the %s runs here, from %d entries", self._title, entries)
            self.begun(term)
        except StrandlineError as error:
            self._failure = error
            self._not_before_ms = self.broker.clock.monotonic_ms() + RETRY_S * 1e3
            logger.warning("the %s cannot start, will retry: %s", self._title, error)

    def _resign(self, error: StrandlineError) -> None:
        """End the term: the outcome of unanswered requests is unknown."""
        term, self.term = self.term, None
        if term is None:
            return
        logger.info("the %s no longer runs here: %s", self._title, error.message)
        for answer in term.waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self.ended()

    async def run(self) -> None:
        """Run the coordinator whenever this broker leads its stream, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                partition = self.broker.stream(self.stream_name).partition(0)
            except (UnknownStreamError, UnavailableError):
                continue
            term = self._term_in(partition)
            if term is not None:
                self.tick(term)
            elif (
                partition.write_error is None
                and self.broker.clock.monotonic_ms() >= self._not_before_ms
            ):
                self._begin_soon(partition)

    async def stop(self) -> None:
        """Cancel background tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._resign(UnavailableError("the broker is stopping; retry"))

    def spawn(self, coroutine: Any, what: str) -> asyncio.Task[None]:
        """Run a background task until the stop."""
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name=f"{self.stream_name}-{what}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Entries

    def _store(self, term: CoordinatorTerm[MachineT], sequence: int, entry: bytes) -> None:
        """Append an entry; ``stored`` is called when it and all earlier ones are stored."""
        partition = self.broker.stream(self.stream_name).partition(0)
        if not self.is_current(term) or partition.leader_epoch != term.epoch:
            return  # the term has ended: later decisions are ignored
        if partition.write_error is None:
            assert partition.next_offset == sequence, "only who holds the office writes here"
        partition.append(entry, subject=self.stream_name, ack_sink=self, token=(term, sequence))

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002 - always the same
        offset: Offset,  # noqa: ARG002 - its sequence
        *,
        duplicate: bool,  # noqa: ARG002 - there are none
    ) -> None:
        """Handle a stored entry: all earlier ones are stored, too."""
        term, sequence = cast("tuple[CoordinatorTerm[MachineT], int]", token)
        if sequence > term.stored:
            term.stored = sequence
            asyncio.get_running_loop().call_soon(self._notify_stored, term, sequence)

    def _notify_stored(self, term: CoordinatorTerm[MachineT], sequence: int) -> None:
        if self.is_current(term) and sequence == term.stored:
            self.stored(term, sequence)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """End the term, because an entry was not stored, or may not be."""
        term, _ = cast("tuple[CoordinatorTerm[MachineT], int]", token)
        asyncio.get_running_loop().call_soon(self._resign_from, term, error)

    def _resign_from(self, term: CoordinatorTerm[MachineT], error: StrandlineError) -> None:
        if self.is_current(term):
            self._resign(error)

    async def _forget(self, before: Offset) -> None:
        """Delete entries that were rewritten."""
        try:
            await self.broker.delete_before(self.stream_name, 0, before)
        except StrandlineError as error:
            logger.warning("old entries of the %s stay: %s", self._title, error)
