"""The transaction coordinator: which producer owns a transactional id, and each outcome.

Rules:
- a decision takes effect when its entry is stored; nobody is notified before (``DecisionLog``);
- every transaction has an epoch of its own. A partition accepts its records only between the BEGIN
  and the COMMIT or ABORT marker that the coordinator writes. So records that arrive late, or from a
  producer believed dead, find no open transaction and cannot open one, which would stay open for
  ever;
- a partition is stored before its BEGIN marker is sent, so that it always gets the end marker;
- an undecided transaction is aborted after its timeout. A prepared one has no timeout, unless it is
  a part of a batch;
- under a transaction id, batches are published with growing numbers, each once.

Invariant: a decision never changes; an id has at most one transaction that is not complete.
"""

from collections.abc import Iterable

import msgspec

from strandline.core.coordinator_effects import Answer, DecisionLog, EntriesStored, Reject, Tick
from strandline.core.transactions import events as ev
from strandline.core.transactions.effects import (
    Begun,
    Effect,
    MarkerKind,
    Published,
    SendMarker,
    TimedOut,
)
from strandline.core.transactions.markers import Markers
from strandline.core.transactions.state import (
    EPOCH_MAX,
    CoordinatorState,
    Publication,
    TransactionalProducer,
    TransactionEntry,
    TransactionOutcome,
    TransactionState,
    TransactionStatus,
)
from strandline.errors import (
    BatchSupersededError,
    FingerprintMismatchError,
    ProducerFencedError,
    StrandlineError,
    TransactionAbortedError,
    TransactionPreparedError,
    UnavailableError,
    UnknownTransactionError,
)
from strandline.security.producer_ids import owner_of

OPEN_MAX = 10_000
"""The most undecided transactions at a time."""
ITEMS_PER_ENTRY = 100


class Coordinator:
    """Decides about transactions.

    Args:
        state: built from the stored entries.
        now_ms: the time; timeouts of undecided transactions start again here.
        sequence: the sequence of the next entry.
        entries: how many are stored already.
    """

    def __init__(
        self, state: CoordinatorState, *, now_ms: int, sequence: int = 0, entries: int = 0
    ) -> None:
        self.state = state
        self._now_ms = now_ms
        self._log: DecisionLog[TransactionEntry, Effect] = DecisionLog(
            state, items_per_entry=ITEMS_PER_ENTRY, sequence=sequence, entries=entries
        )
        self._markers = Markers()
        self._queued: dict[str, ev.Begin] = {}
        self._deadlines: dict[str, int] = {
            each.id: now_ms + each.timeout_ms
            for each in state.transactions.values()
            if _has_deadline(each)
        }

    @property
    def undecided(self) -> int:
        """The number of transactions that are neither committed nor aborted yet."""
        return sum(each.status.is_undecided for each in self.state.transactions.values())

    def resume(self) -> list[Effect]:
        """Return the markers that were pending when this coordinator began."""
        for transaction in list(self.state.transactions.values()):
            if transaction.status.is_marking and transaction.places:
                self._log.give(*self._markers.unwritten(transaction))
            elif transaction.status.is_marking:  # the previous coordinator stopped
                self._complete(transaction)
        return self._log.taken()

    def step(self, event: ev.Event, now_ms: int) -> list[Effect]:
        """Handle an event; return the effects, in order."""
        self._now_ms = now_ms
        match event:
            case EntriesStored():
                self._log.stored(event.sequence)
            case ev.Marked():
                self._marked(event)
            case ev.NotMarked():
                self._not_marked(event)
            case Tick():
                self._time_passed()
            case _:
                self._request(event)
        return self._log.taken()

    # Requests

    def _request(self, request: ev.Request) -> None:
        try:
            match request:
                case ev.Begin():
                    self._begin(request)
                case ev.AddTransactionPartitions():
                    self._add_places(request)
                case ev.Prepare():
                    self._prepare(request)
                case ev.End():
                    self._end(request)
                case ev.EndStaged():
                    self._end_staged(request)
                case ev.Publish():
                    self._publish(request)
                case ev.QueryTransactions():
                    self._log.give(Answer(request.token, request.question(self.state)))
        except StrandlineError as error:
            self._log.give(Reject(request.token, error))
        self._log.rewrite_if_due()

    def _begin(self, request: ev.Begin) -> None:
        known = self.state.transactions.get(request.id)
        if known is not None and _is_repeat(known, request):
            self._log.give(Answer(request.token, Begun(known.producer)))
            return
        if request.batch is not None and self._is_published(request.batch.transaction_id, request):
            self._log.give(
                Answer(request.token, Begun(TransactionalProducer(-1, -1), is_published=True))
            )
            return
        if request.after is not None and (known is None or known.producer != request.after):
            raise ProducerFencedError(
                f"another producer has taken transactional id {request.id!r} over; end this one"
            )
        if known is not None and known.status is TransactionStatus.PREPARED and known.batch is None:
            raise _prepared(known)
        if known is not None and known.status.is_undecided:
            self._decide([known], TransactionStatus.ABORTING, reason="another transaction began")
            known = self.state.transactions.get(request.id)
        if known is not None and known.status.is_marking:
            self._queue(request)
            return
        self._begin_now(request, known)

    def _is_published(self, transaction_id: str, request: ev.Begin) -> bool:
        last = self.state.publications.get(transaction_id)
        return last is not None and request.batch is not None and request.batch.number <= last.batch

    def _queue(self, request: ev.Begin) -> None:
        """Begin a transaction when the previous one is complete; the newest request wins."""
        before = self._queued.pop(request.id, None)
        if before is not None and before.nonce != request.nonce:
            error = ProducerFencedError(
                f"another producer has taken transactional id {request.id!r} over; end this one"
            )
            self._log.give(Reject(before.token, error))
        self._queued[request.id] = request

    def _begin_now(self, request: ev.Begin, known: TransactionState | None) -> None:
        if len(self._deadlines) >= OPEN_MAX:
            raise UnavailableError(f"{OPEN_MAX} transactions are open; retry later")
        producer = TransactionalProducer(request.fresh_id, 0)
        if known is not None and _goes_on(known, request):
            producer = next_epoch(known.producer)
        transaction = TransactionState(
            id=request.id,
            producer=producer,
            status=TransactionStatus.OPEN,
            timeout_ms=request.timeout_ms,
            nonce=request.nonce,
            batch=request.batch,
        )
        self._log.store(
            TransactionEntry(transactions=(transaction,), forgotten=self.state.surplus())
        )
        self._deadlines[request.id] = self._now_ms + request.timeout_ms
        self._log.give(Answer(request.token, Begun(producer)))

    def _add_places(self, request: ev.AddTransactionPartitions) -> None:
        transaction = self._open(request.id, request.producer)
        places = set(request.places)
        missing = sorted(places.difference(transaction.places))
        if missing:
            transaction = msgspec.structs.replace(
                transaction, places=(*transaction.places, *missing)
            )
            self._log.store(TransactionEntry(transactions=(transaction,)))
        self._log.give(*self._markers.open(transaction, places, token=request.token))

    def _prepare(self, request: ev.Prepare) -> None:
        known = self._own(request.id, request.producer)
        if known.status is not TransactionStatus.PREPARED:
            self._open(request.id, request.producer)
            prepared = msgspec.structs.replace(known, status=TransactionStatus.PREPARED)
            self._log.store(TransactionEntry(transactions=(prepared,)))
            if not _has_deadline(prepared):
                self._deadlines.pop(request.id, None)
        self._log.give(Answer(request.token))

    def _end(self, request: ev.End) -> None:
        known = self._own(request.id, request.producer)
        if known.status is TransactionStatus.PREPARED and request.is_commit:
            raise _prepared(known)
        self._finish(known, request)

    def _end_staged(self, request: ev.EndStaged) -> None:
        known = self.state.transactions.get(request.id)
        if (
            known is None
            or known.producer != request.staged
            or known.status is TransactionStatus.OPEN
        ):
            raise UnknownTransactionError(
                f"nothing is prepared under transactional id {request.id!r} as {request.staged}; "
                "it was decided before, or has timed out"
            )
        self._finish(known, request)

    def _finish(self, known: TransactionState, request: ev.End | ev.EndStaged) -> None:
        """Commit or abort, or confirm that it was done before."""
        if known.status.is_undecided:
            status = (
                TransactionStatus.COMMITTING if request.is_commit else TransactionStatus.ABORTING
            )
            reason = "" if request.is_commit else "its producer aborted it"
            self._decide([known], status, reason=reason)
            known = self.state.transactions.get(known.id, known)
        elif known.status.is_commit != request.is_commit:
            raise _ended(known)
        self._answer_when_marked(request.token, None, [known.id])

    def _publish(self, request: ev.Publish) -> None:
        batch = request.batch
        last = self.state.publications.get(batch.transaction_id)
        if last is not None and batch.number <= last.batch:
            self._publish_again(request, last)
            return
        parts = [self._part(id_, request) for id_ in dict.fromkeys(request.parts)]
        named = {part.id for part in parts}
        rest = [
            each
            for each in self.state.parts_of(batch.transaction_id)
            if each.id not in named
            and each.status.is_undecided
            and is_overtaken(each, batch.number)
        ]
        publication = Publication(
            transaction_id=batch.transaction_id,
            batch=batch.number,
            fingerprint=request.fingerprint,
        )
        self._decide(parts, TransactionStatus.COMMITTING, publication=publication, losers=rest)
        self._answer_when_marked(request.token, Published(publication, is_repeat=False), named)

    def _publish_again(self, request: ev.Publish, last: Publication) -> None:
        """Answer a request for a batch that is published already, or is older than one that is."""
        name = request.batch.transaction_id
        if request.batch.number < last.batch:
            raise BatchSupersededError(
                f"batch {request.batch.number} of {name!r} comes after batch {last.batch} was "
                "published: an old checkpoint, or a second driver?"
            )
        if request.fingerprint != last.fingerprint:
            raise FingerprintMismatchError(
                f"batch {last.batch} of {name!r} was published with fingerprint "
                f"{last.fingerprint!r}, not {request.fingerprint!r}"
            )
        unfinished = [
            e.id for e in self.state.parts_of(name) if e.status is TransactionStatus.COMMITTING
        ]
        self._answer_when_marked(request.token, Published(last, is_repeat=True), unfinished)

    # Finding the transaction of a request

    def _own(self, id_: str, producer: TransactionalProducer) -> TransactionState:
        """Return a producer's transaction, in any state.

        Raises:
            ProducerFencedError: another producer owns the id now.
        """
        known = self.state.transactions.get(id_)
        if known is None or known.producer != producer:
            raise ProducerFencedError(
                f"producer {producer} does not own transactional id {id_!r} (any more); end it"
            )
        return known

    def _open(self, id_: str, producer: TransactionalProducer) -> TransactionState:
        """Return a producer's open transaction.

        Raises:
            ProducerFencedError: as ``_own``.
            TransactionAbortedError, TransactionPreparedError, UnknownTransactionError: it is not
                open.
        """
        known = self._own(id_, producer)
        if known.status is TransactionStatus.OPEN:
            return known
        raise _prepared(known) if known.status is TransactionStatus.PREPARED else _ended(known)

    def _part(self, id_: str, request: ev.Publish) -> TransactionState:
        """Return a staged part, which can be published.

        Raises:
            UnknownTransactionError: it does not exist, is not staged, or is of another batch.
        """
        part = self.state.transactions.get(id_)
        if (
            part is None
            or part.status is not TransactionStatus.PREPARED
            or part.batch != request.batch
        ):
            raise UnknownTransactionError(
                f"part {id_!r} of batch {request.batch.number} is not staged (any more); stage the "
                "batch again"
            )
        return part

    # Decisions

    def _decide(
        self,
        transactions: list[TransactionState],
        status: TransactionStatus,
        *,
        reason: str = "",
        publication: Publication | None = None,
        losers: Iterable[TransactionState] = (),
    ) -> None:
        """Store the outcome of transactions in one entry, with the publication they belong to."""
        outcomes = [
            *(TransactionOutcome(each.id, status, reason) for each in transactions),
            *(
                TransactionOutcome(each.id, TransactionStatus.ABORTING, "not published")
                for each in losers
            ),
        ]
        self._log.store(
            TransactionEntry(
                outcomes=tuple(outcomes),
                publications=(publication,) if publication is not None else (),
            )
        )
        for outcome in outcomes:
            decided = self.state.transactions[outcome.id]
            self._deadlines.pop(outcome.id, None)
            self._log.give(*self._markers.close(decided, _ended(decided)))
            if not decided.places:
                self._complete(decided)

    def _answer_when_marked(self, token: object, value: object, ids: Iterable[str]) -> None:
        known = self.state.transactions
        waited = {id_ for id_ in ids if id_ in known and known[id_].status.is_marking}
        self._log.give(
            *self._markers.answer_when_finished(token, value, ids=waited, now_ms=self._now_ms)
        )

    def _complete(self, transaction: TransactionState) -> None:
        """Complete a transaction: every partition has its marker."""
        self._log.give(*self._markers.finished(transaction.id))
        if transaction.batch is None:
            done = TransactionOutcome(
                transaction.id, transaction.status.completed, transaction.reason
            )
            self._log.store(TransactionEntry(outcomes=(done,)))
        else:  # a part's id is never reused
            self._log.store(TransactionEntry(forgotten=(transaction.id,)))
        queued = self._queued.pop(transaction.id, None)
        if queued is not None:
            self._request(queued)

    # Markers

    def _marked(self, event: ev.Marked) -> None:
        known = self.state.transactions.get(event.id)
        if known is None or known.producer != event.producer:
            return
        if event.is_begin:
            if known.status is TransactionStatus.OPEN:
                self._log.give(*self._markers.opened(known, event.place))
        elif known.status.is_marking and self._markers.closed(known, event.place):
            self._complete(known)

    def _not_marked(self, event: ev.NotMarked) -> None:
        known = self.state.transactions.get(event.id)
        if known is None or known.producer != event.producer:
            return
        kind = MarkerKind.COMMIT if known.status.is_commit else MarkerKind.ABORT
        if event.is_begin:
            kind = MarkerKind.BEGIN
        self._markers.again(SendMarker(event.id, event.producer, event.place, kind), self._now_ms)

    def _is_wanted(self, mark: SendMarker) -> bool:
        """Whether a marker is still needed when it is time to retry."""
        known = self.state.transactions.get(mark.id)
        if known is None or known.producer != mark.producer:
            return False
        return (known.status is TransactionStatus.OPEN) == (mark.kind is MarkerKind.BEGIN)

    # Time

    def _time_passed(self) -> None:
        self._log.give(*filter(self._is_wanted, self._markers.due(self._now_ms)))
        self._log.give(*self._markers.out_of_patience(self._now_ms))
        late = [id_ for id_, due_ms in self._deadlines.items() if due_ms <= self._now_ms]
        for id_ in late:
            transaction = self.state.transactions[id_]
            self._decide([transaction], TransactionStatus.ABORTING, reason=_too_late(transaction))
            batch = transaction.batch
            self._log.give(TimedOut(id_ if batch is None else batch.transaction_id))


def next_epoch(producer: TransactionalProducer) -> TransactionalProducer:
    """Return the producer of the next transaction under the same id."""
    return TransactionalProducer(producer.producer_id, producer.epoch + 1)


def is_overtaken(part: TransactionState, batch: int) -> bool:
    """Whether a part that the publication of ``batch`` did not name is aborted by it."""
    return part.status.is_undecided and part.batch is not None and part.batch.number <= batch


def _is_repeat(known: TransactionState, request: ev.Begin) -> bool:
    """Whether a request repeats the one that began this transaction."""
    return (
        known.nonce == request.nonce
        and known.status is TransactionStatus.OPEN
        and _is_own(known, request)
    )


def _goes_on(known: TransactionState, request: ev.Begin) -> bool:
    """Whether the next transaction can keep this one's producer id, in its next epoch."""
    return known.producer.epoch < EPOCH_MAX and _is_own(known, request)


def _is_own(known: TransactionState, request: ev.Begin) -> bool:
    """Whether the principal that begins a transaction also began this one."""
    return owner_of(known.producer.producer_id) == owner_of(request.fresh_id)


def _has_deadline(transaction: TransactionState) -> bool:
    """Whether a transaction is aborted after its timeout."""
    if transaction.status is TransactionStatus.PREPARED:
        return transaction.batch is not None
    return transaction.status is TransactionStatus.OPEN


def _too_late(transaction: TransactionState) -> str:
    return f"it was not decided within {transaction.timeout_ms} ms"


def _prepared(transaction: TransactionState) -> TransactionPreparedError:
    return TransactionPreparedError(
        f"transactional id {transaction.id!r} has a prepared transaction, staged id "
        f"{transaction.producer}; commit_staged or abort_staged it first"
    )


def _ended(transaction: TransactionState) -> StrandlineError:
    if transaction.status.is_commit:
        return UnknownTransactionError(
            f"the transaction of {transaction.id!r} was committed; begin another"
        )
    return TransactionAbortedError(
        f"the transaction of {transaction.id!r} was aborted: {transaction.reason}"
    )
