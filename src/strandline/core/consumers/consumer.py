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
size (``deliver``) or that it does not exist (``skip``, ``exhausted``), sends the effects after the
state is stored, and reports each record that was sent (``sent``).
"""

import heapq
import math
from collections import OrderedDict
from itertools import islice
from typing import Final, Literal, NamedTuple

from strandline.core.consumers.effects import (
    DeliverRecord,
    Effect,
    EndPull,
    RequestFlowControl,
    SendHeartbeat,
)
from strandline.core.consumers.flow import FlowWindow
from strandline.core.consumers.pulls import TIMERS_MIN, Pull, PullQueue
from strandline.core.consumers.state import ConsumerState, PendingRecord

NO_MESSAGES: Final = "404 No Messages"
EXPIRED: Final = "408 Request Timeout"
OTHERS_WAIT: Final = "408 Requests Pending"
TOO_LARGE: Final = "409 Message Size Exceeds MaxBytes"
COMPLETED: Final = "409 Batch Completed"
TOO_MANY: Final = "409 Exceeded MaxWaiting"

ENDLESS: Final = 1 << 62
"""The batch of a pull that wants every record."""

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
    """Whether it is exactly this one; else the first one from there on that passes the filters."""


class PullConsumer:
    """Decides which records a consumer's pulls receive.

    Args:
        policy: its settings.
        state: how far it has come; changed in place.
        now_ms: the time; every pending record's acknowledgement wait starts again here.
        flow: limits what is on its way; None: nothing does.
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
        """By sequence of pending records: when they are delivered again; infinite: not sent yet."""
        self._timers: list[tuple[float, int]] = []
        """The same as a heap, which may have outdated entries."""
        self._again: OrderedDict[int, None] = OrderedDict()
        """Pending records that are due for redelivery, oldest first."""
        for sequence, record in state.pending.items():
            self._expect_ack(sequence, now_ms + policy.wait_ms(record.deliveries))

    # Pulls

    def pull(self, pull: Pull, now_ms: float) -> list[Effect]:
        """Add a waiting pull."""
        if self.policy.max_waiting and len(self.pulls) >= self.policy.max_waiting:
            # A pull with heartbeats needs no answer: its client notices that none arrive.
            return [] if pull.heartbeat_ms else [EndPull(pull.token, TOO_MANY)]
        if self.flow is not None:
            self.flow.reset()
        pull.beat_due_ms = now_ms + pull.heartbeat_ms
        self.pulls.append(pull)
        return []

    def drop_pull(self, token: object) -> None:
        """Forget a pull whose receiver is gone."""
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
        if self._is_full:
            return None
        return Wanted(self.state.delivered_stream + 1, is_again=False)

    @property
    def _is_full(self) -> bool:
        limit = self.policy.max_ack_pending
        return bool(limit and self.policy.acks != "none" and len(self.state.pending) >= limit)

    def deliver(self, sequence: int, size: int, now_ms: float) -> list[Effect]:
        """Deliver the wanted record to the next pull.

        Args:
            sequence: the record's; for a new record it may be larger than the wanted one.
            size: the bytes that count against a pull's limit.
            now_ms: the time.

        Returns:
            The delivery, and the ends of pulls; without a delivery the record is still wanted.
        """
        effects: list[Effect] = []
        while self.pulls and self.pulls.first.has_limit and size > self.pulls.first.bytes_left:
            effects.append(self.pulls.popleft().end(TOO_LARGE))
        if not self.pulls:
            return effects
        pull = self.pulls.popleft()
        effects.append(self._send(pull, sequence))
        pull.served += 1
        pull.left -= 1
        pull.beat_due_ms = now_ms + pull.heartbeat_ms
        if pull.has_limit:
            pull.bytes_left -= size
        if pull.left:
            self.pulls.append(pull)
        elif pull.has_limit and pull.bytes_left:
            effects.append(pull.end(COMPLETED))
        if self.flow is not None and self.flow.sent(size):
            effects.append(RequestFlowControl(pull.token, self.flow.request))
        return effects

    def _send(self, pull: Pull, sequence: int) -> DeliverRecord:
        state = self.state
        state.delivered_consumer += 1
        record = state.pending.get(sequence)
        if record is not None:
            assert self._again, "only what is due is delivered again"
            assert next(iter(self._again)) == sequence, "the oldest that is due comes first"
            del self._again[sequence]
            record.deliveries += 1
        else:
            assert sequence > state.delivered_stream, "new records come in order"
            state.delivered_stream = sequence
            record = PendingRecord(state.delivered_consumer, 1)
            if self.policy.acks != "none":
                state.pending[sequence] = record
        if self.policy.acks == "none":
            state.floor_stream, state.floor_consumer = sequence, state.delivered_consumer
        else:
            self._due[sequence] = math.inf  # until it is sent
        self.is_changed = True
        return DeliverRecord(pull.token, sequence, state.delivered_consumer, record.deliveries)

    def sent(self, sequence: int, now_ms: float) -> None:
        """Begin to wait for a record's acknowledgement: its delivery is stored, and sent."""
        if self._due.get(sequence) == math.inf:
            wait_ms = self.policy.wait_ms(self.state.pending[sequence].deliveries)
            self._expect_ack(sequence, now_ms + wait_ms)

    def due(self, limit: int) -> list[int]:
        """Return the first records that are due for redelivery, in order."""
        return list(islice(self._again, limit))

    def skip(self, sequence: int) -> None:
        """Drop a pending record that no longer exists."""
        if self.state.pending.pop(sequence, None) is not None:
            self._forget(sequence)
            self._settle()
            self.is_changed = True

    def pass_over(self, sequence: int) -> None:
        """Note that no record up to this sequence passes the filters."""
        state = self.state
        if sequence > state.delivered_stream:
            state.delivered_stream = sequence
            if not state.pending:
                state.floor_stream = sequence

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
            sequence: of the record.
            consumer_sequence: of its delivery; used with the policy that acknowledges all before.
            now_ms: the time.
            delay_ms: the delay before a rejected record is delivered again.
        """
        record = self.state.pending.get(sequence)
        if kind in ("ack", "term") and self.policy.acks == "all":
            self._ack_all(sequence, consumer_sequence)
        elif record is None:
            return
        elif kind == "progress":
            self._forget(sequence)
            self._expect_ack(sequence, now_ms + self.policy.wait_ms(record.deliveries))
        elif kind == "nak":
            due_ms = now_ms + delay_ms
            self._forget(sequence)
            self._expect_ack(sequence, due_ms)
            self._collect_due(now_ms)
        else:
            self._ack_one(sequence, record)

    def _ack_one(self, sequence: int, record: PendingRecord) -> None:
        state = self.state
        del state.pending[sequence]
        self._forget(sequence)
        if not state.pending or record.consumer_sequence == state.floor_consumer + 1:
            self._settle()
        self.is_changed = True

    def _settle(self) -> None:
        """Move the floor to the record before the first one that is pending."""
        state = self.state
        if not state.pending:
            state.floor_stream = state.delivered_stream
            state.floor_consumer = state.delivered_consumer
            return
        first = next(iter(state.pending))  # new records come in order
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
        while self._timers and self._due.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        if self._timers:
            due.append(self._timers[0][0])
        return min(due, default=None)

    def _expect_ack(self, sequence: int, due_ms: float) -> None:
        self._due[sequence] = due_ms
        heapq.heappush(self._timers, (due_ms, sequence))
        if len(self._timers) > TIMERS_MIN + 2 * len(self._due):
            # Acknowledged records stay in the heap until their time; drop them if they are most.
            timers = ((due_ms, sequence) for sequence, due_ms in self._due.items())
            self._timers = [each for each in timers if each[0] != math.inf]
            heapq.heapify(self._timers)

    def _forget(self, sequence: int) -> None:
        """Cancel the redelivery of a record."""
        if self._due.pop(sequence, None) is None:
            self._again.pop(sequence, None)

    def _collect_due(self, now_ms: float) -> None:
        """Queue records for redelivery whose acknowledgement wait is over."""
        while self._timers and self._timers[0][0] <= now_ms:
            due_ms, sequence = heapq.heappop(self._timers)
            if self._due.get(sequence) != due_ms:
                continue  # acknowledged, or its wait was extended
            del self._due[sequence]
            record = self.state.pending[sequence]
            if self.policy.max_deliver and record.deliveries >= self.policy.max_deliver:
                del self.state.pending[sequence]
                self.is_changed = True
            else:
                self._again[sequence] = None

    def expire_all(self, now_ms: float) -> None:
        """Let all pending records be delivered again: their receiver is another one."""
        for sequence in list(self._due):
            self._expect_ack(sequence, now_ms)
        self._collect_due(now_ms)

    # Counters and checks

    @property
    def redelivered(self) -> int:
        """The number of pending records that were delivered more than once."""
        return sum(record.deliveries > 1 for record in self.state.pending.values())

    def check(self) -> None:
        """Assert the invariants; for tests."""
        state, pending = self.state, self.state.pending
        assert state.floor_stream <= state.delivered_stream
        assert state.floor_consumer <= state.delivered_consumer
        assert list(pending) == sorted(pending), "by which the floor is found"
        assert all(state.floor_stream < each <= state.delivered_stream for each in pending)
        assert set(self._again) | set(self._due) == set(pending)
        assert not set(self._again) & set(self._due)
        self.pulls.check()
        limit = self.policy.max_ack_pending
        assert not limit or len(pending) <= limit
        assert self.policy.acks != "none" or not pending
        if self.flow is not None:
            self.flow.check()
