"""The coordinator's office: lets a ``Coordinator`` decide here while this broker may.

Its entries are the records of an internal stream; whoever leads that partition holds the office, so
its replicas are the coordinator's, and its leader epoch is the coordinator's term.

Rules:
- everything runs on the loop; the sequence of an entry is the offset of its record;
- an entry that was not stored, or a change of leaders, ends the term: who waits is told to try
  again, and the next term begins from what is committed;
- a marker that could not be written is the coordinator's to give again, here only reported.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from strandline.broker.partition import Partition
from strandline.broker.stream import Stream
from strandline.clock import Clock
from strandline.config import StreamConfig
from strandline.errors import (
    RequestTimeoutError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.record.codec import decode_batches
from strandline.storage.log import Log
from strandline.telemetry import Telemetry
from strandline.transactions import effects as fx
from strandline.transactions import events as ev
from strandline.transactions.coordinator import Coordinator
from strandline.transactions.state import CoordinatorState, Place, decode_entry, encode_entry
from strandline.types import LeaderEpoch, Offset, PartitionName

logger = logging.getLogger(__name__)

TRANSACTIONS_STREAM = "__transactions"
SEGMENT_BYTES = 16 << 20
LOAD_READ_BYTES = 4 << 20
TICK_S = 0.1
POLL_S = 0.005
REQUEST_TIMEOUT_S = 30.0
LABELS_MAX = 100
"""Names of timed-out transactions told apart in metrics; more are counted together."""


class Surroundings(Protocol):
    """What the office needs of its broker."""

    clock: Clock
    telemetry: Telemetry

    def stream(self, name: str) -> Stream:
        """The stream of this name, or ``UnknownStreamError``."""
        ...

    async def create_transactions_stream(self, config: StreamConfig) -> None:
        """Make the internal stream, if nobody has yet."""
        ...

    async def truncate_before(self, name: str, partition: int, offset: Offset) -> Offset:
        """Delete the records of a partition below an offset."""
        ...

    async def new_producer_id(self) -> int:
        """An id that nobody gets again."""
        ...

    def is_gone(self, place: Place) -> bool:
        """Whether a partition was deleted, for certain."""
        ...

    def mark_elsewhere(self, mark: fx.Mark, done: Callable[[StrandlineError | None], None]) -> None:
        """Have the broker that leads a partition write a marker."""
        ...


class Markers:
    """Writes markers of partitions that are led here, and tells when they are committed."""

    def write(self, mark: fx.Mark, partition: Partition, done: "MarkerDone") -> None:
        """Write a marker; ``done`` is called once, later."""
        partition.mark(mark.kind, mark.producer, responder=self, token=done)

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002 - the token knows
        offset: Offset,  # noqa: ARG002 - readers never see it
        *,
        duplicate: bool,  # noqa: ARG002 - as good
    ) -> None:
        """The marker is committed."""
        asyncio.get_running_loop().call_soon(cast("MarkerDone", token), None)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """It is not, or nobody knows."""
        asyncio.get_running_loop().call_soon(cast("MarkerDone", token), error)


MarkerDone = Callable[[StrandlineError | None], None]


class _Term:
    """One coordinator, and who waits for its answers."""

    def __init__(self, coordinator: Coordinator, epoch: LeaderEpoch) -> None:
        self.coordinator = coordinator
        self.epoch = epoch
        self.waiting: dict[object, asyncio.Future[Any]] = {}
        self.stored = -1


def load_state(log: Log, end: Offset) -> CoordinatorState:
    """What the entries of a log say, up to ``end``.

    Raises:
        CorruptBatchError: an entry is damaged; without it no outcome after it is certain.
        InvalidRecordError: a record is no entry.
        UnavailableError: the log cannot be read.
    """
    state, first = CoordinatorState(), log.log_start_offset
    offset = first
    while offset < end:
        found = log.read(offset, LOAD_READ_BYTES, below=end)
        for batch in decode_batches(found.buffer, columns=["offset", "value"]):
            offsets, values = (column.to_pylist() for column in batch.columns)
            for at, value in zip(offsets, values, strict=True):
                if at >= first:  # the first batch may begin with what was forgotten
                    state.apply(decode_entry(value))
        offset = found.next_offset
    return state


class TransactionOffice:
    """Requests about transactions, answered by the coordinator if it is here.

    Args:
        broker: whose.
    """

    def __init__(self, broker: Surroundings) -> None:
        self._broker = broker
        self._term: _Term | None = None
        self._opening = asyncio.Lock()
        self._markers = Markers()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    # Requests

    async def request(self, make: Callable[[object], ev.Request]) -> Any:
        """What the coordinator answers.

        Args:
            make: the request, given its token.

        Raises:
            NotLeaderError: another broker has the office; the message says which.
            RequestTimeoutError: no answer in time; whether it was decided is unknown.
            StrandlineError: what the coordinator refuses.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                term = await self._open()
                token = object()
                answer = term.waiting[token] = self._loop.create_future()
                self._step(term, make(token))
                try:
                    return await answer
                finally:
                    term.waiting.pop(token, None)
        except TimeoutError:
            raise RequestTimeoutError(
                f"the transaction coordinator did not answer within {REQUEST_TIMEOUT_S:g} s; "
                "repeat the request"
            ) from None

    async def begin(self, make: Callable[[object, int], ev.Begin]) -> fx.Begun:
        """As ``request``, for a request that may need a producer id that nobody has."""
        fresh = await self._broker.new_producer_id()
        begun: fx.Begun = await self.request(lambda token: make(token, fresh))
        return begun

    def places(self, names: list[tuple[str, int]]) -> list[Place]:
        """The partitions of these names as they are now.

        Raises:
            UnknownStreamError, UnknownPartitionError: there is none.
        """
        return [
            Place(stream, number, self._broker.stream(stream).partition(number).log_id)
            for stream, number in names
        ]

    def mark_here(self, mark: fx.Mark, done: MarkerDone) -> None:
        """Write a marker that a coordinator elsewhere, or here, wants; ``done`` is called once."""
        try:
            partition = self._partition(mark.place)
        except StrandlineError as error:
            self._loop.call_soon(done, None if self._broker.is_gone(mark.place) else error)
            return
        self._markers.write(mark, partition, done)

    def _partition(self, place: Place) -> Partition:
        """The partition of a place, which may have been deleted and made again since.

        Raises:
            UnknownStreamError, UnknownPartitionError: there is none.
        """
        partition = self._broker.stream(place.stream).partition(place.partition)
        if partition.log_id != place.log_id:
            raise UnknownStreamError(f"{place} was deleted, and is another one now")
        return partition

    # The term

    async def _open(self) -> _Term:
        """The term under way; begins one if that is due.

        Raises:
            StrandlineError: the office is not here, or not now.
        """
        async with self._opening:
            partition = await self._home()
            if partition.refusal is not None:
                self._resign(partition.refusal)
                raise partition.refusal
            term = self._term
            if term is None or term.epoch != partition.leader_epoch:
                self._resign(UnavailableError("another term of the coordinator begins; retry"))
                term = await self._begin(partition)
            return term

    async def _home(self) -> Partition:
        """The partition whose records are the entries."""
        config = StreamConfig(
            name=TRANSACTIONS_STREAM,
            subject=TRANSACTIONS_STREAM,
            segment_bytes=SEGMENT_BYTES,
            dedup_window_ms=0,
        )
        try:
            stream = self._broker.stream(TRANSACTIONS_STREAM)
        except UnknownStreamError:
            await self._broker.create_transactions_stream(config)
            stream = self._broker.stream(TRANSACTIONS_STREAM)
        return stream.partition(0)

    async def _begin(self, partition: Partition) -> _Term:
        """Begin a term from what is committed, once everything that may be in force is."""
        epoch = partition.leader_epoch
        while partition.high_watermark < partition.next_offset:
            if partition.refusal is not None or partition.leader_epoch != epoch:
                raise UnavailableError("the transaction coordinator moves; retry")
            await asyncio.sleep(POLL_S)
        end = partition.next_offset
        state = load_state(partition.log, end)
        coordinator = Coordinator(state, now_ms=self._now_ms(), sequence=end)
        term = self._term = _Term(coordinator, epoch)
        logger.info("the transaction coordinator is here, with %d ids", len(state.transactions))
        self._carry_out(term, coordinator.resume())
        return term

    def _resign(self, error: StrandlineError) -> None:
        """End the term: whatever was not answered may or may not be decided."""
        term, self._term = self._term, None
        self._broker.telemetry.transactions_open = 0
        if term is None:
            return
        logger.info("the transaction coordinator is not here any more: %s", error.message)
        for answer in term.waiting.values():
            if not answer.done():
                answer.set_exception(error)

    async def run(self) -> None:
        """Hold the office whenever it is here, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                partition = self._broker.stream(TRANSACTIONS_STREAM).partition(0)
            except UnknownStreamError:
                continue
            if partition.refusal is not None:
                self._resign(partition.refusal)
                continue
            try:
                term = await self._open()
            except StrandlineError as error:
                logger.warning("the transaction coordinator cannot begin yet: %s", error)
                continue
            self._step(term, ev.TimePassed())

    async def stop(self) -> None:
        """Let go of what runs beside."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._resign(UnavailableError("the broker is stopping; retry"))

    # Effects

    def _step(self, term: _Term, event: ev.Event) -> None:
        if term is self._term:
            self._carry_out(term, term.coordinator.step(event, self._now_ms()))
            self._broker.telemetry.transactions_open = term.coordinator.undecided

    def _carry_out(self, term: _Term, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Store():
                    self._store(term, effect)
                case fx.Answer(token, value):
                    answer = term.waiting.get(token)
                    if answer is not None and not answer.done():
                        answer.set_result(value)
                case fx.Refuse(token, error):
                    answer = term.waiting.get(token)
                    if answer is not None and not answer.done():
                        answer.set_exception(error)
                case fx.Mark():
                    self._mark(term, effect)
                case fx.Forget(before):
                    self._spawn(self._forget(Offset(before)))
                case fx.TimedOut(name):
                    self._count_timeout(name)

    def _store(self, term: _Term, effect: fx.Store) -> None:
        partition = self._broker.stream(TRANSACTIONS_STREAM).partition(0)
        if term is not self._term or partition.leader_epoch != term.epoch:
            return  # the term has ended: what it still wanted to decide is void
        if partition.refusal is None:
            assert partition.next_offset == effect.sequence, "only the coordinator writes here"
        partition.append(
            encode_entry(effect.entry),
            subject=TRANSACTIONS_STREAM,
            responder=self,
            token=(term, effect.sequence),
        )

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002 - always the same
        offset: Offset,  # noqa: ARG002 - its sequence
        *,
        duplicate: bool,  # noqa: ARG002 - there are none
    ) -> None:
        """An entry is stored, and so are those before it."""
        term, sequence = cast("tuple[_Term, int]", token)
        if sequence > term.stored:
            term.stored = sequence
            self._loop.call_soon(self._step, term, ev.Stored(sequence))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """An entry was not stored, or nobody knows: begin anew from what is."""
        term, _ = cast("tuple[_Term, int]", token)
        if term is self._term:
            self._loop.call_soon(self._resign_from, term, error)

    def _resign_from(self, term: _Term, error: StrandlineError) -> None:
        if term is self._term:
            self._resign(error)

    def _mark(self, term: _Term, mark: fx.Mark) -> None:
        """Have a marker written, here or where the partition is led."""
        is_begin = mark.kind is fx.MarkerKind.BEGIN

        def done(error: StrandlineError | None) -> None:
            kind = ev.Marked if error is None else ev.NotMarked
            if error is not None:
                logger.debug("marker for %s, will try again: %s", mark.place, error)
            self._step(term, kind(mark.id, mark.producer, mark.place, is_begin))

        try:
            is_here = self._partition(mark.place).refusal is None
        except StrandlineError:
            is_here = True  # gone, perhaps: it is found out the same way
        if is_here:
            self.mark_here(mark, done)
        else:
            self._broker.mark_elsewhere(mark, done)

    async def _forget(self, before: Offset) -> None:
        """Delete entries that were written anew."""
        try:
            await self._broker.truncate_before(TRANSACTIONS_STREAM, 0, before)
        except StrandlineError as error:
            logger.warning("old entries of the transaction coordinator stay: %s", error)

    def _count_timeout(self, name: str) -> None:
        logger.warning("transaction %r was aborted: its time was over", name)
        counts = self._broker.telemetry.transactions_timed_out
        counts[name if name in counts or len(counts) < LABELS_MAX else "others"] += 1

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine, name="transactions-forget")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now_ms(self) -> int:
        return int(self._broker.clock.monotonic_ms())
