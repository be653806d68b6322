"""The transaction coordinator, which runs on the broker that leads its internal stream.

Rules: as for ``coordinators.runtime``. The leader of a partition writes the partition's markers. If
a marker cannot be written, only that is reported here, and the coordinator sends it again. The
offsets of consumer groups count as one more partition, whose markers the group coordinator writes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from strandline.api.groups import GROUPS_STREAM
from strandline.api.transactions import COORDINATOR_STREAM
from strandline.broker.coordinators.runtime import (
    CoordinatorHost,
    CoordinatorRuntime,
    CoordinatorTerm,
    Token,
)
from strandline.broker.write_path.partition import Partition
from strandline.core.coordinator_effects import EntriesStored, Tick, restore
from strandline.core.groups.transactions import PendingOffsets as GroupTransaction
from strandline.core.groups.transactions import TransactionMark
from strandline.core.transactions import effects as fx
from strandline.core.transactions import events as ev
from strandline.core.transactions.coordinator import Coordinator
from strandline.core.transactions.state import (
    CoordinatorState,
    TransactionPartition,
    decode_entry,
    encode_entry,
)
from strandline.errors import StrandlineError, UnknownStreamError
from strandline.telemetry import Telemetry
from strandline.types import Offset, PartitionName

logger = logging.getLogger(__name__)

LABELS_MAX = 100
"""Transaction names with a timeout metric of their own; all others are counted together."""

MarkerDone = Callable[[StrandlineError | None], None]
"""Called with None once a marker is committed or not needed; or with the error."""


class Positions(Protocol):
    """The part of the group coordinator that takes part in transactions."""

    def mark(self, transaction: GroupTransaction, mark: TransactionMark, done: MarkerDone) -> None:
        """Store a mark of a transaction in a group, then call ``done``."""
        ...


class TransactionCoordinatorHost(CoordinatorHost, Protocol):
    """The parts of a broker that the transaction coordinator needs."""

    telemetry: Telemetry
    groups: "Positions"

    async def new_producer_id(self, owner: str) -> int:
        """Return a new producer id for a principal."""
        ...

    def is_gone(self, place: TransactionPartition) -> bool:
        """Whether a partition that this broker does not have was certainly deleted."""
        ...

    def mark_remote(self, mark: fx.SendMarker, done: MarkerDone) -> None:
        """Have the leader of a partition write a marker."""
        ...


class MarkerWriter:
    """Writes markers to partitions that this broker leads; reports when they are committed."""

    def write(self, mark: fx.SendMarker, partition: Partition, done: MarkerDone) -> None:
        """Write a marker; ``done`` is called once, later, with the outcome."""
        partition.mark(mark.kind, mark.producer, ack_sink=self, token=done)

    def acked(
        self,
        token: object,
        partition: PartitionName,  # noqa: ARG002  the token has it
        offset: Offset,  # noqa: ARG002  of no use: readers never see a marker
        *,
        duplicate: bool,  # noqa: ARG002  makes no difference
    ) -> None:
        """Report that the marker is committed."""
        asyncio.get_running_loop().call_soon(cast("MarkerDone", token), None)

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Report that the marker was rejected, or may not be stored."""
        asyncio.get_running_loop().call_soon(cast("MarkerDone", token), error)


class TransactionCoordinatorService(CoordinatorRuntime[Coordinator]):
    """Transactions: requests to the transaction coordinator, run on this broker.

    Args:
        broker: this broker.
    """

    broker: TransactionCoordinatorHost

    def __init__(self, broker: TransactionCoordinatorHost) -> None:
        title = "transaction coordinator"
        super().__init__(broker, COORDINATOR_STREAM, title, encode=encode_entry)
        self._markers = MarkerWriter()

    # Requests

    async def ask(self, make: Callable[[Token], ev.Request]) -> Any:
        """Send a request, built with its token, to the coordinator and return the answer.

        Raises:
            StrandlineError: as for ``CoordinatorRuntime.request``.
        """
        return await self.request(lambda term, token: self._step(term, make(token)))

    async def begin_transaction(
        self, make: Callable[[Token, int], ev.Begin], *, owner: str = ""
    ) -> fx.Begun:
        """Begin a transaction; reserve a new producer id in case it needs one.

        Args:
            make: builds the request.
            owner: the principal that begins the transaction; empty where access is not checked.
        """
        fresh_id = await self.broker.new_producer_id(owner)
        begun: fx.Begun = await self.ask(lambda token: make(token, fresh_id))
        return begun

    def places(self, names: Iterable[tuple[str, int]]) -> list[TransactionPartition]:
        """Return the partitions of these names as they are now.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
        """
        return [
            TransactionPartition(
                stream, number, self.broker.stream(stream).partition(number).log_id
            )
            for stream, number in names
        ]

    def mark_here(self, mark: fx.SendMarker, done: MarkerDone) -> None:
        """Write a marker on this broker, for a coordinator anywhere; ``done`` is called once."""
        try:
            partition = self._partition(mark.place)
        except StrandlineError as error:
            outcome = None if self.broker.is_gone(mark.place) else error
            asyncio.get_running_loop().call_soon(done, outcome)
            return
        if mark.place.stream == GROUPS_STREAM:
            who = GroupTransaction(mark.producer.producer_id, mark.producer.epoch)
            self.broker.groups.mark(who, TransactionMark(mark.kind.value), done)
        else:
            self._markers.write(mark, partition, done)

    def _partition(self, place: TransactionPartition) -> Partition:
        """Return the partition for a marker; a later stream of the same name does not count.

        Raises:
            UnknownStreamError, UnknownPartitionError: no such partition.
        """
        partition = self.broker.stream(place.stream).partition(place.partition)
        if partition.log_id != place.log_id:
            raise UnknownStreamError(f"{place} was deleted and created again")
        return partition

    # The coordinator

    def maker(self) -> Callable[[Iterable[bytes], int], Coordinator]:
        """Return the function that creates the coordinator's state machine."""

        def make(entries: Iterable[bytes], sequence: int) -> Coordinator:
            state = CoordinatorState()
            count = restore(state, map(decode_entry, entries))
            return Coordinator(state, now_ms=self._now_ms(), sequence=sequence, entries=count)

        return make

    def begun(self, term: CoordinatorTerm[Coordinator]) -> None:
        """Resume the transactions whose markers the last term left unwritten."""
        self._carry_out(term, term.machine.resume())

    def ended(self) -> None:
        """Do nothing when a term ends."""

    def stored(self, term: CoordinatorTerm[Coordinator], sequence: int) -> None:
        """Tell the machine that entries up to ``sequence`` are stored."""
        self._step(term, EntriesStored(sequence))

    def tick(self, term: CoordinatorTerm[Coordinator]) -> None:
        """Pass the time to the coordinator's machine."""
        self._step(term, Tick())

    def _step(self, term: CoordinatorTerm[Coordinator], event: ev.Event) -> None:
        if self.is_current(term):
            self._carry_out(term, term.machine.step(event, self._now_ms()))

    def _carry_out(self, term: CoordinatorTerm[Coordinator], effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.SendMarker():
                    self._mark(term, effect)
                case fx.TimedOut(name):
                    self._count_timeout(name)
                case decision:
                    self.carry_out(term, decision)

    @property
    def open_count(self) -> int:
        """The number of undecided transactions coordinated here; looks at all transactions."""
        return 0 if self.term is None else self.term.machine.undecided

    def _mark(self, term: CoordinatorTerm[Coordinator], mark: fx.SendMarker) -> None:
        """Write a marker on this broker, or have the partition's leader write it."""
        is_begin = mark.kind is fx.MarkerKind.BEGIN

        def done(error: StrandlineError | None) -> None:
            if error is not None:
                logger.debug("the marker for %s was not written, will retry: %s", mark.place, error)
            kind = ev.Marked if error is None else ev.NotMarked
            self._step(term, kind(mark.id, mark.producer, mark.place, is_begin))

        try:
            is_here = self._partition(mark.place).unavailable_reason is None
        except StrandlineError:
            is_here = True  # it may have been deleted, which the next attempt shows
        if is_here:
            self.mark_here(mark, done)
        else:
            self.broker.mark_remote(mark, done)

    def _count_timeout(self, name: str) -> None:
        logger.warning("transaction %r was aborted after its timeout", name)
        counts = self.broker.telemetry.transactions_timed_out
        counts[name if name in counts or len(counts) < LABELS_MAX else "others"] += 1

    def _now_ms(self) -> int:
        return int(self.broker.clock.monotonic_ms())
