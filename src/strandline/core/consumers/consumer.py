"""A consumer: its waiting pulls, its pending records, and which record it delivers next.

Rules:
- waiting pulls are served round-robin, one record each; records due for redelivery come before new
  records;
- a push consumer is one pull without an end, which is there while its subject has receivers; with
  flow control nothing is delivered while the window is full;
- a record that is not acknowledged in time is delivered again, up to the policy's limit. After the
  last delivery it no longer waits for an acknowledgement, and the floor moves past it with a later
  record;
- with the policy "none", a record counts as acknowledged when it is delivered;
- a redelivery has a delivery number of its own; the record keeps its sequence;
- a late or repeated acknowledgement changes nothing. Acknowledgements name the record by its
  sequence in the stream, so those of a delivery before a restart count.

Invariants: those of ``ConsumerState``; no record is both due again and not pending; the number of
pending records does not exceed the policy's limit. ``check`` asserts them.

It reads no records and has no clock. The caller finds the record that ``wanted`` names, reports its
size (``deliver``, with new records that follow it) or that it does not exist (``skip``,
``exhausted``), sends the effects after the state is stored, and reports what was sent (``sent``).
"""

import heapq
import math
import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, repeat
from typing import Final, Literal, NamedTuple

from strandline.core.consumers.effects import (
    DeliverRun,
    Effect,
    EndPull,
    RequestFlowControl,
    SendHeartbeat,
)
from strandline.core.consumers.flow import FlowWindow
from strandline.core.consumers.pulls import TIMERS_MIN, Pull, PullQueue
from strandline.core.consumers.state import ConsumerState, PendingRecord, split_sequence

NO_MESSAGES: Final = "404 No Messages"
EXPIRED: Final = "408 Request Timeout"
OTHERS_WAIT: Final = "408 Requests Pending"
TOO_LARGE: Final = "409 Message Size Exceeds MaxBytes"
COMPLETED: Final = "409 Batch Completed"
TOO_MANY: Final = "409 Exceeded MaxWaiting"

ENDLESS: Final = 1 << 62
"""The batch of a pull that wants every record."""

DROPPED_MAX: Final = 10_000
"""How many records are remembered after their last permitted delivery."""

AckKind = Literal["ack", "nak", "term", "progress"]


class ConsumerPolicy(NamedTuple):
    """The consumer's settings that affect deliveries; a limit of 0 means no limit."""

    acks: Literal["none", "all", "explicit"] = "explicit"
    ack_wait_ms: int = 30_000
    backoff_ms: tuple[int, ...] = ()
    """Replaces ``ack_wait_ms``: the wait after the first delivery, the second, and so on."""
    max_deliver: int = 0
    max_ack_pending: int = 1_000
    max_waiting: int = 512

    def wait_ms(self, deliveries: int) -> int:
        """Return how long to wait for an acknowledgement after this many deliveries, in ms."""
        if not self.backoff_ms:
            return self.ack_wait_ms
        return self.backoff_ms[min(deliveries, len(self.backoff_ms)) - 1]


class Wanted(NamedTuple):
    """The record to deliver next."""

    sequence: int
    is_again: bool
    """Whether exactly this record is wanted; else the first one from there on that passes the
    filters."""


class PullConsumer:
    """Decides which records a consumer's pulls receive.

    Args:
        policy: its settings.
        state: its progress; changed in place.
        now_ms: the time; every pending record's acknowledgement wait starts again here.
        flow: limits the bytes that are on their way to the receiver; None: no limit.
    """

    def __init__(
        self,
        policy: ConsumerPolicy,
        state: ConsumerState,
        now_ms: float,
        *,
        flow: FlowWindow | None = None,
    ) -> None:
        self.policy = policy
        self.state = state
        # A plain dict that is emptied from its front takes longer and longer to find its first
        # entry, which the floor needs with every acknowledgement.
        state.pending = OrderedDict(state.pending)
        self.flow = flow
        self.is_changed = False
        """Whether the state has changed since the caller last reset this."""
        self.pulls = PullQueue()
        self._due: dict[int, float] = {}
        """Pending records → when each is delivered again; infinite: not sent yet."""
        self._timers: list[tuple[float, int, deque[int]]] = []
        """A heap of the same times, each with the records of one run; some may be acknowledged."""
        self._runs = 0
        """Number of the next heap entry, so that entries of one time are compared by it."""
        self._timed = 0
        """The number of records in the heap."""
        self._again: OrderedDict[int, None] = OrderedDict()
        """Pending records that are due for redelivery, oldest first."""
        self._dropped: OrderedDict[int, None] = OrderedDict()
        """Records that were delivered for the last permitted time, more than once in all, and are
        not acknowledged. As in JetStream they count as redelivered until the leader changes."""
        for sequence, record in state.pending.items():
            self._expect_acks([sequence], now_ms + policy.wait_ms(record.deliveries))

    # Pulls

    def pull(self, pull: Pull, now_ms: float) -> list[Effect]:
        """Add a waiting pull."""
        if self.policy.max_waiting and len(self.pulls) >= self.policy.max_waiting:
            # A pull with heartbeats needs no answer: its client notices that they are missing.
            return [] if pull.heartbeat_ms else [EndPull(pull.token, TOO_MANY)]
        if self.flow is not None:
            self.flow.reset()
        pull.beat_due_ms = now_ms + pull.heartbeat_ms
        self.pulls.append(pull)
        return []

    def drop_pull(self, token: object) -> None:
        """Forget a pull whose receiver has disconnected."""
        self.pulls.drop(token)

    def end_all(self, status: str) -> list[Effect]:
        """End every pull."""
        ended: list[Effect] = [pull.end(status) for pull in self.pulls]
        self.pulls.clear()
        return ended

    # Deliveries

    def wanted(self) -> Wanted | None:
        """Return the record to deliver next; None if nothing can be delivered now."""
        if not self.pulls or (self.flow is not None and self.flow.is_full):
            return None
        if self._again:
            return Wanted(next(iter(self._again)), is_again=True)
        if self.is_full:
            return None
        return Wanted(self.state.delivered_stream + 1, is_again=False)

    @property
    def is_full(self) -> bool:
        """Whether new records have to wait until a pending one is acknowledged."""
        limit = self.policy.max_ack_pending
        return bool(limit and self.policy.acks != "none" and len(self.state.pending) >= limit)

    def deliver(
        self, sequences: Sequence[int], sizes: Sequence[int], now_ms: float
    ) -> list[Effect]:
        """Deliver the wanted record, or it and the new records that follow it, to the next pulls.

        Args:
            sequences: the sequences of the records; a new record may be above the wanted one.
            sizes: the bytes of each that count against a pull's limit.
            now_ms: the time.

        Returns:
            At most one run of deliveries, which may be shorter than what was offered, and the ends
            of pulls; the first record that was not delivered is still wanted.
        """
        effects: list[Effect] = []
        while self.pulls and self.pulls.first.has_limit and sizes[0] > self.pulls.first.bytes_left:
            effects.append(self.pulls.popleft().end(TOO_LARGE))
        if not self.pulls:
            return effects
        count, is_asking = self._room(len(sequences)), False
        if self.flow is not None:
            count, is_asking = self.flow.send_run(sizes[:count])
        served = self.pulls.serve(sizes[0], count, now_ms)
        effects.append(self._send(served.tokens, sequences[: served.records]))
        effects += [
            pull.end(COMPLETED) for pull in served.done if pull.has_limit and pull.bytes_left
        ]
        if self.flow is not None and is_asking:
            effects.append(RequestFlowControl(served.tokens[0], self.flow.request))
        return effects

    def _room(self, count: int) -> int:
        """Return how many of ``count`` records can become pending."""
        limit = self.policy.max_ack_pending
        if self._again or not limit or self.policy.acks == "none":
            return count
        return min(count, limit - len(self.state.pending))

    def _send(self, tokens: Sequence[object], sequences: Sequence[int]) -> DeliverRun:
        state, before = self.state, self.state.delivered_consumer
        state.delivered_consumer += len(sequences)
        self.is_changed = True
        deliveries = 1
        if sequences[0] not in state.pending:
            is_new = state.advance(sequences[-1])
            assert is_new, "only what is pending is delivered again"
            if self.policy.acks == "none":
                state.floor_stream, state.floor_consumer = (
                    state.delivered_stream,
                    state.delivered_consumer,
                )
            else:
                numbers = range(before + 1, state.delivered_consumer + 1)
                records = map(PendingRecord, numbers, repeat(1))
                state.pending.update(zip(sequences, records, strict=True))
        else:
            [sequence] = sequences
            assert self._again, "only what is due is delivered again"
            assert next(iter(self._again)) == sequence, "the oldest that is due comes first"
            del self._again[sequence]
            record = state.pending[sequence]
            record.deliveries += 1
            deliveries = record.deliveries
        if self.policy.acks != "none":
            self._due.update(dict.fromkeys(sequences, math.inf))  # until they are sent
        return DeliverRun(tokens, sequences, before + 1, deliveries)

    def sent(self, sequences: Sequence[int], now_ms: float) -> None:
        """Begin to wait for acknowledgements of deliveries that are stored, and sent."""
        due, pending = self._due, self.state.pending
        waiting = [each for each in sequences if due.get(each) == math.inf]
        if waiting:
            wait_ms = self.policy.wait_ms(pending[waiting[0]].deliveries)
            self._expect_acks(waiting, now_ms + wait_ms)

    def due(self, limit: int) -> list[int]:
        """Return the first records that are due for redelivery, in order."""
        return list(islice(self._again, limit))

    def postpone(self, sequences: Iterable[int], due_ms: float) -> None:
        """Deliver records that are due for redelivery later, because they cannot be read now."""
        due = [each for each in sequences if each in self._again]
        for each in due:
            del self._again[each]
        self._expect_acks(due, due_ms)

    def skip(self, sequence: int) -> None:
        """Drop a pending record that no longer exists."""
        if self.state.pending.pop(sequence, None) is not None:
            self._forget(sequence)
            self._settle()
            self.is_changed = True

    def pass_over(self, sequence: int) -> None:
        """Note that no record up to this sequence, in its partition, passes the filters."""
        state = self.state
        if state.advance(sequence) and not state.pending:
            state.floor_stream, state.held_floors = state.delivered_stream, []

    def exhausted(self) -> list[Effect]:
        """End the pulls that do not wait: there are no new records now."""
        ended = self.pulls.take_impatient()
        status = OTHERS_WAIT if self.pulls else NO_MESSAGES
        return [EndPull(pull.token, NO_MESSAGES if pull.served else status) for pull in ended]

    # Acknowledgements

    def ack(
        self,
        kind: AckKind,
        sequence: int,
        *,
        consumer_sequence: int,
        now_ms: float,
        delay_ms: int = 0,
    ) -> None:
        """Handle an acknowledgement; it has no effect if the record is not pending.

        Args:
            kind: acknowledged, rejected, terminated, or still in progress.
            sequence: the sequence of the record.
            consumer_sequence: the number of its delivery; used if the policy acknowledges all
                earlier records, too.
            now_ms: the time.
            delay_ms: the delay before a rejected record is delivered again.
        """
        record = self.state.pending.get(sequence)
        if kind in ("ack", "term"):
            self.ack_many([(sequence, consumer_sequence)])
        elif record is None:
            return
        elif kind == "progress":
            self._forget(sequence)
            self._expect_acks([sequence], now_ms + self.policy.wait_ms(record.deliveries))
        else:
            self._forget(sequence)
            self._expect_acks([sequence], now_ms + delay_ms)
            self._collect_due(now_ms)

    def ack_many(self, acks: Iterable[tuple[int, int]]) -> None:
        """Handle acknowledgements, each the sequence of a record and the number of its delivery."""
        if self.policy.acks == "all":
            for sequence, consumer_sequence in acks:
                self._ack_all(sequence, consumer_sequence)
            return
        state, is_next = self.state, False
        for sequence, _ in acks:
            record = state.pending.pop(sequence, None)
            if record is None:
                self._dropped.pop(sequence, None)
                continue
            self._forget(sequence)
            self.is_changed = True
            if not state.pending or record.consumer_sequence == state.floor_consumer + 1:
                is_next = True
        if is_next:
            self._settle()

    def _settle(self) -> None:
        """Move the floor to the record before the first one that is pending."""
        state = self.state
        state.held_floors = []
        if not state.pending:
            state.floor_stream = state.delivered_stream
            state.floor_consumer = state.delivered_consumer
            return
        first = next(iter(state.pending))  # new records come in order
        if not state.positions:
            state.floor_stream = max(state.floor_stream, first - 1)
        before = state.pending[first].consumer_sequence - 1
        state.floor_consumer = max(state.floor_consumer, before)

    def _ack_all(self, sequence: int, consumer_sequence: int) -> None:
        state = self.state
        if not state.floor_stream < sequence <= state.delivered_stream:
            return
        while state.pending and (first := next(iter(state.pending))) <= sequence:
            del state.pending[first]
            self._forget(first)
        for each in [each for each in self._dropped if each <= sequence]:
            del self._dropped[each]
        state.floor_stream = sequence
        known = min(consumer_sequence, state.delivered_consumer)
        state.floor_consumer = max(state.floor_consumer, known)
        self.is_changed = True

    # Time

    def tick(self, now_ms: float) -> list[Effect]:
        """Redeliver, expire and send heartbeats as the time requires."""
        self._collect_due(now_ms)
        effects: list[Effect] = []
        for pull in self.pulls.take_due(now_ms):
            if pull.expires_ms is not None and pull.expires_ms <= now_ms:
                self.pulls.remove(pull)
                effects.append(pull.end(EXPIRED))
                continue
            pull.beat_due_ms = now_ms + pull.heartbeat_ms
            self.pulls.watch(pull)
            effects.append(self._heartbeat(pull))
        return effects

    def _heartbeat(self, pull: Pull) -> SendHeartbeat:
        state = self.state
        request = self.flow.request if self.flow is not None else 0
        return SendHeartbeat(
            pull.token, state.delivered_consumer, state.delivered_stream, request=request
        )

    @property
    def next_due_ms(self) -> float | None:
        """Return when ``tick`` has something to do next; None: not before another event."""
        due = [] if self.pulls.next_due_ms is None else [self.pulls.next_due_ms]
        self._drop_outdated()
        if self._timers:
            due.append(self._timers[0][0])
        return min(due, default=None)

    def _expect_acks(self, sequences: Iterable[int], due_ms: float) -> None:
        """Wait for the acknowledgements of some records until a time."""
        waiting = deque(sequences)
        self._due.update(dict.fromkeys(waiting, due_ms))
        self._push_timer(due_ms, waiting)
        if self._timed > TIMERS_MIN + 2 * len(self._due):
            # Acknowledged records stay in the heap until their time; drop them if they outnumber
            # the rest.
            timers, self._timers, self._timed = self._timers, [], 0
            for time_ms, _, several in timers:
                left = deque(each for each in several if self._due.get(each) == time_ms)
                if left:
                    self._push_timer(time_ms, left)

    def _push_timer(self, due_ms: float, waiting: deque[int]) -> None:
        self._runs += 1
        self._timed += len(waiting)
        heapq.heappush(self._timers, (due_ms, self._runs, waiting))

    def _drop_outdated(self) -> None:
        """Drop records that no longer wait from the front of the heap."""
        while self._timers:
            due_ms, _, waiting = self._timers[0]
            while waiting and self._due.get(waiting[0]) != due_ms:
                waiting.popleft()
                self._timed -= 1
            if waiting:
                return
            heapq.heappop(self._timers)

    def _forget(self, sequence: int) -> None:
        """Cancel the redelivery of a record."""
        if self._due.pop(sequence, None) is None:
            self._again.pop(sequence, None)

    def _collect_due(self, now_ms: float) -> None:
        """Queue the records whose acknowledgement wait is over for redelivery."""
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, _, waiting = heapq.heappop(self._timers)
            self._timed -= len(waiting)
            for sequence in waiting:
                if self._due.get(sequence) == due_ms:  # else acknowledged, or its wait was extended
                    self._is_due(sequence)

    def _is_due(self, sequence: int) -> None:
        """Queue a record for redelivery, or drop it after its last permitted delivery."""
        del self._due[sequence]
        record = self.state.pending[sequence]
        if self.policy.max_deliver and record.deliveries >= self.policy.max_deliver:
            if self.state.positions:
                self.state.held_floors = self.state.floors  # the floors stay, as with one partition
            del self.state.pending[sequence]
            self.is_changed = True
            if record.deliveries > 1:
                self._dropped[sequence] = None
                if len(self._dropped) > DROPPED_MAX:
                    self._dropped.popitem(last=False)
        else:
            self._again[sequence] = None

    def expire_all(self, now_ms: float) -> None:
        """Deliver all pending records again, because there is another receiver."""
        self._expect_acks(list(self._due), now_ms)
        self._collect_due(now_ms)

    # Counters and checks

    def count_redelivered(self, is_gone: Callable[[int], bool]) -> int:
        """Return how many records were delivered more than once and are not acknowledged.

        Args:
            is_gone: whether the record of a sequence is no longer stored.
        """
        for sequence in filter(is_gone, list(self._dropped)):
            del self._dropped[sequence]
        again = sum(record.deliveries > 1 for record in self.state.pending.values())
        return again + len(self._dropped)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        state, pending = self.state, self.state.pending
        assert state.floor_stream <= state.delivered_stream
        assert state.floor_consumer <= state.delivered_consumer
        numbers = [record.consumer_sequence for record in pending.values()]
        assert numbers == sorted(numbers), "by which the floor is found"
        if state.positions:
            places = [split_sequence(each, len(state.positions)) for each in pending]
            assert all(0 < within <= state.positions[number] for within, number in places)
            assert state.delivered_stream == sum(state.positions)
            assert all(map(operator.le, state.floors, state.positions))
        else:
            assert list(pending) == sorted(pending)
            assert all(state.floor_stream < each <= state.delivered_stream for each in pending)
        assert set(self._again) | set(self._due) == set(pending)
        assert not set(self._again) & set(self._due)
        assert self._dropped.keys().isdisjoint(pending)
        assert self._timed == sum(len(waiting) for _, _, waiting in self._timers)
        timed = {(due_ms, each) for due_ms, _, waiting in self._timers for each in waiting}
        assert all(
            (due_ms, each) in timed or due_ms == math.inf for each, due_ms in self._due.items()
        )
        self.pulls.check()
        limit = self.policy.max_ack_pending
        assert not limit or len(pending) <= limit
        assert self.policy.acks != "none" or not pending
        if self.flow is not None:
            self.flow.check()
