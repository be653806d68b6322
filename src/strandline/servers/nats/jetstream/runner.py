"""Runs a consumer: reads records for its core, stores the core's decisions, and delivers.

Rules:
- One task per consumer does everything in rounds. A round reads, delivers to waiting pulls, stores
  the state, and then sends. So no record is sent whose delivery a crash could forget, and delivery
  counts never decrease. Acknowledgements that ask for an answer get it at that point, too. If the
  state cannot be stored, a later round sends. The time for acknowledging begins when a record is
  sent.
- Storing is not awaited for an acknowledgement that asks for no answer, nor for a delivery with the
  ack policy "none": such changes are stored from time to time. If the broker is killed, the last
  ones are lost, and their records are delivered again.
- A round that has read for long sends what it has, and the next one continues.
- Only the state of a durable consumer is stored. The larger it is, the longer the next round waits.
  An ephemeral consumer ends with its broker, or after its inactive threshold.
- A consumer without waiting pulls costs only memory.
- A pull ends when its inbox has lost its receiver. A push consumer delivers while a client
  subscribes to its subject, in its queue group if it has one.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple, cast

import msgspec

from strandline.broker.write_path.partition import Partition
from strandline.clock import Clock
from strandline.core.consumers.consumer import ENDLESS, AckKind, PullConsumer, Wanted
from strandline.core.consumers.effects import (
    DeliverRun,
    Effect,
    EndPull,
    RequestFlowControl,
    SendHeartbeat,
)
from strandline.core.consumers.flow import FlowWindow
from strandline.core.consumers.pulls import Pull
from strandline.errors import StaleMemberError, StrandlineError, UnknownGroupError
from strandline.servers.nats.headers import VERSION_LINE, encode_headers
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.consumer_info import ConsumerInfo, KeptConsumer, position_of
from strandline.servers.nats.jetstream.delivery_buffer import DeliveryBuffer, ReadRun, first_part
from strandline.servers.nats.jetstream.errors import ApiRejection
from strandline.servers.nats.jetstream.frames import DeliveredRun
from strandline.servers.nats.jetstream.integers import INT64_MAX
from strandline.servers.nats.jetstream.merged_buffer import MergedBuffer
from strandline.servers.nats.jetstream.merged_reader import MergedHost, MergedReader
from strandline.servers.nats.jetstream.messages import MessageRun
from strandline.servers.nats.jetstream.pacing import Pacer
from strandline.servers.nats.jetstream.partition_reader import PartitionReader
from strandline.servers.nats.jetstream.state import RecordCounter
from strandline.servers.nats.jetstream.subjects import AckSubject, format_flow
from strandline.servers.nats.jetstream.times import NS_PER_MS, format_time, ms_of, parse_time
from strandline.servers.nats.jetstream.waiting_inboxes import WaitingInboxes
from strandline.servers.nats.receivers import LocalInbox, Receivers
from strandline.servers.tasks import end_task, start_task

logger = logging.getLogger(__name__)

ROUND_MESSAGES: Final = 512
ROUND_BYTES: Final = 1 << 20
ROUND_MS: Final = 20
"""A round that has something to send reads for at most this time."""
STORE_REST_MS: Final = 0.001
"""The pause between two stores of a durable consumer, for each pending record. Storing encodes all
pending records, which takes about a tenth of this time on the event loop."""
FULL_REST_MS: Final = 0.008
"""The same pause for each record of the limit of pending ones, if the limit is nearly reached."""
FULL_REST_MS_MAX: Final = 4.0
FULL_SHARE: Final = 0.75
"""The share of the limit from which ``FULL_REST_MS`` applies. It must not apply to a client that
keeps 500 messages ahead, and so has about 500 pending: it would wait for each pause."""
STORE_REST_MS_MIN: Final = 1.0
"""Shorter pauses are left out."""
LAZY_STORE_MS: Final = 50.0
"""The time between stores of changes that are not awaited."""
LAST_STORE_S: Final = 1.0
UNREADY_MAX: Final = 64
"""How many pulls whose receivers do not read are skipped at once."""
RETRY_S: Final = 1.0
FLOW_REQUEST: Final = "100 FlowControl Request"
DELETED: Final = "409 Consumer Deleted"
LEADERSHIP_CHANGE: Final = "409 Leadership Change"
SHUTDOWN: Final = "409 Server Shutdown"
Answer = Callable[[], None]
_StatusHeaders = tuple[tuple[str, int | str], ...]


class RunnerHost(NamedTuple):
    """What all consumers of a broker share."""

    receivers: Receivers
    clock: Clock
    counter: RecordCounter
    on_thread: Callable[..., Awaitable[Any]]
    keep: Callable[["ConsumerRunner"], Awaitable[None]]
    """Stores the state of a durable consumer."""
    ended: Callable[["ConsumerRunner", str], None]
    """Called when a consumer ends by itself, with the status for its pulls."""
    merged: MergedHost | None = None
    """What consumers of several partitions share; None if there cannot be any."""


class _Outgoing(NamedTuple):
    messages: MessageRun
    pending: int
    """How many records follow the first message."""


class ConsumerRunner:
    """A running consumer.

    Args:
        host: what all consumers of the broker share.
        stream: the stream's name, as clients know it.
        partition: the partition of its records, the first one if there are several.
        kept: its settings and state.
    """

    def __init__(
        self, host: RunnerHost, stream: str, partition: Partition, *, kept: KeptConsumer
    ) -> None:
        self._host = host
        self.stream = stream
        self.partition = partition
        self.kept = kept
        flow = FlowWindow() if kept.config.flow_control else None
        self.core = PullConsumer(kept.config.policy, kept.state, self._now_ms, flow=flow)
        self._flow_prefix = secrets.token_hex(2)
        """Distinguishes this runner's flow control requests from those of earlier runners."""
        self.is_over = False
        self._is_begun = False
        self._wake = asyncio.Event()
        self._buffer = self._new_buffer()
        self._effects: list[Effect] = []
        """Decisions of the core that wait until the state is stored."""
        self._outgoing: list[_Outgoing] = []
        """The messages of the deliveries in ``_effects``."""
        self._outgoing_count = 0
        self._answers: list[Answer] = []
        self._inboxes = WaitingInboxes(host.receivers.leaf, self.core.pulls)
        self._pacer = self._new_pacer()
        self._store_from_ms = 0.0
        """No round begins before this time, so that acknowledgements are stored together."""
        self._stored_ms = -LAZY_STORE_MS
        """The time of the last store."""
        self._due_ms = 0.0
        """The next record must not be delivered before this time."""
        self._used_ms = self._now_ms
        self._delivered_ns = self._acked_ns = 0
        """When records were last delivered and acknowledged here; not stored, as in JetStream."""
        self._round_lock = asyncio.Lock()
        self._task = start_task(self._run(), "jetstream-consumer")

    @property
    def config(self) -> ConsumerConfig:
        """The settings that apply now."""
        return self.kept.config

    @property
    def is_durable(self) -> bool:
        """Whether the consumer's state is stored."""
        return bool(self.config.durable_name)

    @property
    def paused_ns(self) -> int:
        """For how much longer the consumer is paused, in ns; 0 if it is not."""
        if not self.config.pause_until:
            return 0
        left_ns = parse_time(self.config.pause_until) - self._host.clock.now_ns()
        return min(max(0, left_ns), INT64_MAX)  # clients read it as an int64

    def _new_buffer(self) -> DeliveryBuffer | MergedBuffer:
        host, config, count = self._host, self.config, len(self.kept.state.positions)
        if host.merged is not None and count:
            names = [f"{self.stream}:{number}" for number in range(count)]
            readers = [MergedReader(each, config.filters, host.merged) for each in names]
            parts = [DeliveryBuffer(self.stream, config, each) for each in readers]
            return MergedBuffer(
                f"{config.name} of {self.stream}",
                parts,
                self.kept.state,
                now_ms=host.clock.monotonic_ms,
                wake=self._wake,
            )
        reader = PartitionReader(
            self.partition,
            config.filters,
            counter=host.counter,
            on_thread=host.on_thread,
            heads_to=self.kept.heads_to,
        )
        return DeliveryBuffer(self.stream, config, reader)

    def _new_pacer(self) -> Pacer:
        is_original = self.config.replay_policy == "original"
        there = self.partition.last_stable_offset if is_original else 0
        return Pacer(there, self.config.rate_limit_bps)

    @property
    def _now_ms(self) -> float:
        return self._host.clock.monotonic_ms()

    # Requests and acknowledgements

    def pull(self, pull: Pull) -> None:
        """Accept a pull, whose token is its inbox."""
        self._used_ms, token = self._now_ms, pull.token
        is_local = isinstance(token, LocalInbox)
        if isinstance(token, LocalInbox):
            if not token.client.receives(token.inbox):
                return
            token.client.waits(token, self)
        elif self._host.receivers.leaf.has_lost(cast("bytes", token)):
            return
        self._send_all(self.core.pull(pull, self._now_ms), [])
        if not is_local:
            self._inboxes.add(cast("bytes", token))
        self._wake.set()

    def waits(self, token: object) -> bool:
        """Return whether a pull is waiting."""
        return self.core.pulls.has(token)

    def drop_pull(self, token: object) -> None:
        """Forget a pull, because its receiver is gone."""
        self.core.drop_pull(token)
        self._used_ms = self._now_ms
        self._wake.set()  # so that the end of the inactive threshold is noticed

    def ack(
        self, kind: AckKind, ack: AckSubject, *, delay_ms: int = 0, answer: Answer | None = None
    ) -> None:
        """Accept an acknowledgement; ``answer`` is called once it is stored."""
        before = len(self.kept.state.pending)
        self.core.ack(
            kind,
            ack.sequence,
            consumer_sequence=ack.consumer_sequence,
            now_ms=self._now_ms,
            delay_ms=delay_ms,
        )
        if answer is not None:
            self._answers.append(answer)
        self._note_acks(before)
        self._wake.set()

    def ack_many(self, acks: list[tuple[int, int]]) -> None:
        """Accept plain acknowledgements, as pairs of a record's and its delivery's sequence."""
        core, before = self.core, len(self.kept.state.pending)
        # Otherwise the next round is soon enough: a round for every few acks costs too much.
        is_awaited = core.is_full or not core.is_changed
        core.ack_many(acks)
        self._note_acks(before)
        if is_awaited:
            self._wake.set()

    def _note_acks(self, before: int) -> None:
        self._used_ms = self._now_ms
        if len(self.kept.state.pending) < before:
            self._acked_ns = self._host.clock.now_ns()

    def flow_answered(self, subject: str) -> None:
        """Handle the receiver's answer to a flow control request."""
        flow = self.core.flow
        if flow is None or not flow.request or subject != self._flow_subject(flow.request):
            return
        flow.answered(flow.request)
        self._used_ms = self._now_ms
        self._wake.set()

    def _stalled_headers(self, request: int) -> _StatusHeaders:
        """Return a heartbeat's headers for a flow control request that has no answer yet."""
        return (("Nats-Consumer-Stalled", self._flow_subject(request)),) if request else ()

    def _flow_subject(self, request: int) -> str:
        return format_flow(self.stream, self.config.name, f"{self._flow_prefix}{request}")

    def begin(self) -> None:
        """Let a push consumer deliver; by now its creator knows the number of pending records."""
        self._is_begun = True
        self.interest_changed()

    def interest_changed(self, changed: Collection[bytes] | None = None) -> None:
        """Handle gained or lost receivers of subjects; None: any receiver may have changed."""
        if not self.config.is_push:
            self._drop_dead_pulls(changed)
            return
        subject, queue = self._push_target
        is_bound = self._is_begun and self._host.receivers.is_subscribed(subject, queue)
        if is_bound != self.is_bound:
            self._rebind(is_bound=is_bound)

    def _drop_dead_pulls(self, changed: Collection[bytes] | None) -> None:
        if not self._host.receivers.leaf.knows_interest or not self.core.pulls:
            return
        for inbox in self._inboxes.lost(changed):
            self.drop_pull(inbox)

    def reconnected(self) -> None:
        """Handle a new leaf connection: messages and flow control requests may have been lost."""
        if self.config.is_push:
            self._rebind(is_bound=False)
        self.interest_changed()
        self._wake.set()

    def wake(self) -> None:
        """Check again whether records can be delivered."""
        self._wake.set()

    def _rebind(self, *, is_bound: bool) -> None:
        """Start or stop the delivery to a push consumer's subject."""
        self.core.pulls.clear()
        self._used_ms = self._now_ms
        if is_bound:
            subject, _ = self._push_target
            beat_ms = ms_of(self.config.idle_heartbeat)
            self.core.pull(Pull(subject, batch=ENDLESS, heartbeat_ms=beat_ms), self._now_ms)
        self._wake.set()

    @property
    def is_bound(self) -> bool:
        """Whether this is a push consumer that has receivers."""
        return self.config.is_push and bool(self.core.pulls)

    @property
    def _push_target(self) -> tuple[bytes, bytes]:
        """The subject and the queue group to which a push consumer delivers."""
        return self.config.deliver_subject.encode(), self.config.deliver_group.encode()

    async def reconfigure(self, config: ConsumerConfig) -> None:
        """Change the settings; return when they are stored.

        Raises:
            StrandlineError: the settings may not have been stored.
        """
        async with self._round_lock:
            before = self._push_target
            self.kept.config = config
            self.core.policy = config.policy
            if self._push_target != before:
                self._take_outgoing()
                self.core.expire_all(self._now_ms)
                self._rebind(is_bound=False)
                self.interest_changed()
            self._buffer.close()
            self._buffer = self._new_buffer()
            self._pacer = self._new_pacer()
            if self.is_durable:
                await self._host.keep(self)
        self._wake.set()

    async def close(self, status: str) -> None:
        """Stop the consumer, and end all its pulls with a status."""
        if self.is_over:
            return
        self.is_over = True
        await end_task(self._task)
        self._buffer.close()
        self._end_pulls(status)
        if status == SHUTDOWN and self.is_durable and self.core.is_changed:
            try:
                async with asyncio.timeout(LAST_STORE_S):
                    await self._host.keep(self)
            except (StrandlineError, TimeoutError) as error:
                logger.warning("the position of %s is not stored: %s", self.config.name, error)

    def _end_pulls(self, status: str) -> None:
        """End all pulls; the receivers of a push consumer will notice missing heartbeats."""
        ended = self.core.end_all(status)
        if not self.config.is_push:
            self._send_all(ended, [])

    async def info(self) -> ConsumerInfo:
        """Return the description of the consumer for an answer.

        Raises:
            ApiRejection: its pending records have not been counted yet.
        """
        # Not in a round: a round in progress may be waiting for files or for a store.
        state = self.kept.state
        delivered_to, floor_to = state.delivered_stream, sum(state.floors)
        delivered = position_of(state.delivered_consumer, delivered_to, self._delivered_ns)
        floor = position_of(state.floor_consumer, floor_to, self._acked_ns)
        pending = await self._buffer.count(delivered_to, is_exact=True)
        return ConsumerInfo(
            stream_name=self.stream,
            name=self.config.name,
            created=format_time(self.kept.created_ns),
            config=self.config,
            delivered=delivered,
            ack_floor=floor,
            num_ack_pending=len(state.pending),
            num_redelivered=self.core.count_redelivered(self._buffer.is_gone),
            num_waiting=0 if self.config.is_push else len(self.core.pulls),
            num_pending=pending,
            ts=format_time(self._host.clock.now_ns()),
            push_bound=self.is_bound or msgspec.UNSET,
            paused=self.paused_ns > 0 or msgspec.UNSET,
            pause_remaining=self.paused_ns or msgspec.UNSET,
        )

    # Rounds

    async def _run(self) -> None:
        """Do rounds until the consumer ends."""
        while not self.is_over:
            rest_ms = self._store_from_ms - self._now_ms
            if rest_ms > STORE_REST_MS_MIN:
                await asyncio.sleep(rest_ms / 1e3)
            self._wake.clear()
            try:
                async with self._round_lock:
                    is_busy = await self._round()
            except UnknownGroupError:
                self._end(DELETED)
                return
            except StaleMemberError:
                self._end(LEADERSHIP_CHANGE)
                return
            except (StrandlineError, ApiRejection) as error:
                logger.warning("consumer %s of %s waits: %s", self.config.name, self.stream, error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._is_inactive():
                self._end(DELETED)
                return
            if not is_busy:
                await self._rest()

    def _end(self, status: str) -> None:
        """End the consumer from within its own task."""
        self.is_over = True
        self._buffer.close()
        self._end_pulls(status)
        self._host.ended(self, status)

    def _is_inactive(self) -> bool:
        threshold_ms = self.config.inactive_threshold / NS_PER_MS
        if self.core.pulls:
            self._used_ms = self._now_ms
        return bool(threshold_ms) and self._now_ms >= self._used_ms + threshold_ms

    async def _rest(self) -> None:
        """Wait until there is something to do."""
        due = [] if self.core.next_due_ms is None else [self.core.next_due_ms]
        if self.core.pulls and self._held_to_ms > self._now_ms:
            due.append(self._held_to_ms)
        if self.core.is_changed:
            due.append(self._stored_ms + LAZY_STORE_MS)
        if self.core.pulls and self._buffer.retry_ms is not None:
            due.append(self._buffer.retry_ms)
        if self.config.inactive_threshold and not self.core.pulls:
            due.append(self._used_ms + self.config.inactive_threshold / NS_PER_MS)
        timeout_s = max(0.0, (min(due) - self._now_ms) / 1e3) if due else None
        is_watching = bool(self.core.pulls)
        if is_watching:
            buffer = self._buffer  # ``reconfigure`` may replace it during the wait
            buffer.watch(self._wake)
            if self._has_more():
                self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return  # a timer has expired
        finally:
            if is_watching:
                buffer.unwatch(self._wake)

    def _has_more(self) -> bool:
        """Return whether records have arrived since the last round."""
        wanted = self._wanted()
        return wanted is not None and self._buffer.has_more(wanted)

    async def _round(self) -> bool:
        """Deliver what can be delivered; return whether more can be delivered at once.

        Raises:
            UnknownGroupError: the consumer was deleted.
            StrandlineError: the partition cannot be read, or the state cannot be stored now.
        """
        if self.core.pulls:
            self._used_ms = self._now_ms  # even if the last pull ends in this round
        # What does not depend on this round's deliveries is sent without waiting for the disk.
        self._send_all(self.core.tick(self._now_ms), [])
        try:
            is_busy = await self._collect()
        except (StrandlineError, ApiRejection):
            await self._commit()  # for what was decided before the error
            raise
        await self._commit()
        return is_busy

    async def _commit(self) -> None:
        """Store the state, then send messages and answers that depend on it.

        Raises:
            UnknownGroupError: the consumer was deleted.
            StrandlineError: the state cannot be stored now; a later call sends them.
        """
        if self.core.policy.acks == "none":
            self._send_all(*self._take_outgoing())
        answers, self._answers = self._answers, []
        # Store for an answer even if nothing has changed: it fails if another broker leads now.
        is_waited_for = bool(self._outgoing or answers)
        is_due = self._now_ms >= self._stored_ms + LAZY_STORE_MS
        if is_waited_for or (self.core.is_changed and is_due):
            self.core.is_changed = False
            try:
                if self.is_durable:
                    rest_ms = self._rest_ms
                    await self._host.keep(self)
                    self._store_from_ms = self._now_ms + rest_ms
                self._stored_ms = self._now_ms
            except BaseException:
                self._answers = answers + self._answers
                self.core.is_changed = True
                raise
        self._send_all(*self._take_outgoing())
        # Last: a record must not be sent again after its acknowledgement was answered.
        for answer in answers:
            answer()

    @property
    def _rest_ms(self) -> float:
        """How long to wait after a store, so that the next one covers more changes."""
        pending, limit = len(self.kept.state.pending), self.core.policy.max_ack_pending
        rest_ms = pending * STORE_REST_MS
        if pending >= limit * FULL_SHARE:
            # Otherwise there would be a store for every few acknowledgements.
            rest_ms = max(rest_ms, min(FULL_REST_MS_MAX, limit * FULL_REST_MS))
        return rest_ms

    def _take_outgoing(self) -> tuple[list[Effect], list[_Outgoing]]:
        """Return the decisions that wait to be sent, and forget them."""
        taken = self._effects, self._outgoing
        self._effects, self._outgoing, self._outgoing_count = [], [], 0
        return taken

    async def _collect(self) -> bool:
        """Let the core decide what waiting pulls get, and read the records for it.

        Returns:
            Whether more can be delivered at once.

        Raises:
            StrandlineError, ApiRejection: a read failed; earlier decisions of the round remain.
        """
        core, pending, size, read_to_ms = self.core, -1, 0, self._now_ms + ROUND_MS
        while self._outgoing_count < ROUND_MESSAGES and size < ROUND_BYTES:
            wanted = self._wanted()
            if wanted is None:
                return False
            if pending < 0:
                pending = await self._buffer.count(self.kept.state.delivered_stream)
                continue  # the state may have changed during the count
            run, is_end = self._buffer.buffered(wanted), False
            if not run.sizes:
                if self._outgoing and self._now_ms > read_to_ms:
                    return True
                is_end = await self._read(wanted)
                if core.wanted() != wanted:
                    continue  # the state has changed during the read
                run = self._buffer.buffered(wanted)
            if run.sizes:
                if self._pacer.is_on:
                    run = run.between(0, 1)
                    if self._is_early(run.messages):
                        return False
                run = first_part(run, ROUND_MESSAGES - self._outgoing_count, ROUND_BYTES - size)
                count = self._decide(run, pending, is_again=wanted.is_again)
                size += sum(run.sizes[:count])
                pending -= 0 if wanted.is_again else count
            elif wanted.is_again:
                core.skip(wanted.sequence)
            elif is_end:
                self._effects += core.exhausted()
                return False
        return True

    def _wanted(self) -> Wanted | None:
        """Return what to deliver now; None if nothing can be or may be delivered."""
        if not self._has_ready():
            return None
        if (self._due_ms or self.config.pause_until) and self._held_to_ms > self._now_ms:
            return None
        return self.core.wanted()

    def _has_ready(self) -> bool:
        """Return whether a pull's receiver reads; the first such pull is served next."""
        pulls, queue = self.core.pulls, self._push_target[1]
        for _ in range(min(len(pulls), UNREADY_MAX)):
            if self._host.receivers.is_ready(pulls.first.token, queue):
                return True
            pulls.rotate()
        return False

    @property
    def _held_to_ms(self) -> float:
        """The time before which nothing is delivered, because of a pause or the pace."""
        paused_ns = self.paused_ns
        return max(self._due_ms, self._now_ms + paused_ns / NS_PER_MS if paused_ns else 0.0)

    def _is_early(self, messages: MessageRun) -> bool:
        """Return whether the first record must wait, and note until when."""
        self._due_ms = self._pacer.due_ms(messages.sequences[0], messages.times_ns[0])
        return self._due_ms > self._now_ms

    def _decide(self, run: ReadRun, pending: int, *, is_again: bool) -> int:
        """Let the core assign records to pulls; return how many were assigned."""
        sequences, now_ms = run.messages.sequences, self._now_ms
        decided = self.core.deliver(sequences, run.sizes, now_ms)
        self._effects += decided
        count = next((len(each.sequences) for each in decided if isinstance(each, DeliverRun)), 0)
        if not count:
            return 0
        last, left = sequences[count - 1], max(0, pending - (0 if is_again else 1))
        self._outgoing.append(_Outgoing(run.messages.between(0, count), left))
        self._outgoing_count += count
        if self._pacer.is_on:
            self._pacer.sent(run.messages.times_ns[0], run.sizes[0], now_ms)
        self._buffer.delivered(last, count, is_again=is_again)
        return count

    async def _read(self, wanted: Wanted) -> bool:
        """Read what is wanted; return whether the end was reached without a record."""
        if wanted.is_again:
            due = self.core.due(ROUND_MESSAGES)
            unread = await self._buffer.read_again(wanted.sequence, due)
            self.core.postpone(unread, self._now_ms + RETRY_S * 1e3)
            return False
        passed = await self._buffer.read_new(wanted.sequence)
        if passed is None:
            return False
        for sequence in passed.sequences:
            # Skipped records are never delivered, so the position may move past them.
            self.core.pass_over(sequence)
        self._buffer.passed(self.core.state.delivered_stream)
        return passed.is_end

    # Sending

    def _send_all(self, effects: list[Effect], outgoing: list[_Outgoing]) -> None:
        records = iter(outgoing)
        for effect in effects:
            match effect:
                case DeliverRun(sequences=sequences):
                    self._delivered_ns = self._host.clock.now_ns()
                    self._deliver(effect, next(records))
                    self.core.sent(sequences, self._now_ms)
                case EndPull(token, text, left, size):
                    self._send_status(token, text, _pending_headers(left, size))
                case SendHeartbeat(token, consumer, stream, request):
                    self._send_status(
                        token,
                        "100 Idle Heartbeat",
                        (
                            ("Nats-Last-Consumer", consumer),
                            ("Nats-Last-Stream", stream),
                            *self._stalled_headers(request),
                        ),
                    )
                case RequestFlowControl(token, request):
                    reply = self._flow_subject(request).encode()
                    self._send_status(token, FLOW_REQUEST, reply=reply)
        self._host.receivers.flush()

    def _deliver(self, run: DeliverRun, outgoing: _Outgoing) -> None:
        delivered = DeliveredRun(
            self.stream,
            self.config.name,
            (),
            run.deliveries,
            run.consumer_sequence,
            outgoing.pending,
            outgoing.messages,
        )
        self._host.receivers.deliver_run(run.tokens, delivered, queue=self._push_target[1])

    def _send_status(
        self, token: object, text: str, headers: _StatusHeaders = (), *, reply: bytes = b""
    ) -> None:
        block = encode_headers([(name, str(value).encode()) for name, value in headers])
        line = VERSION_LINE + b" " + text.encode()
        self._send(token, b"", block=line + block.removeprefix(VERSION_LINE), reply=reply)

    def _send(self, token: object, payload: bytes, *, block: bytes, reply: bytes) -> None:
        queue = self._push_target[1]
        self._host.receivers.deliver(token, payload, block=block, reply=reply, queue=queue)


def _pending_headers(left: int | None, size: int) -> _StatusHeaders:
    if left is None:
        return ()
    return (("Nats-Pending-Messages", left), ("Nats-Pending-Bytes", size))
