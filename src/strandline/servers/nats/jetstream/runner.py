"""Runs a consumer: reads what its core asks for, stores what the core decided, and delivers.

Rules:
- one task per consumer does everything in rounds. A round reads, delivers to waiting pulls, stores
  the state, and then sends: so nobody gets a record whose delivery a crash could forget, and
  numbers of deliveries never go back. An acknowledgement that asks for an answer gets it then, too.
  If the state cannot be stored, a later round sends. The wait for an acknowledgement begins when a
  record is sent;
- nobody waits for the storing of an acknowledgement that asks for no answer, nor for that of a
  delivery with the policy "none": such changes are stored from time to time. When the broker is
  killed the last ones are lost, and their records come again;
- a round that reads for long sends what it has, and the next one continues;
- only a durable consumer's state is stored. The larger it is, the longer the next round waits.
  Another consumer ends with its broker, or when it was not used for its threshold;
- a consumer without waiting pulls costs nothing but its memory;
- a pull ends when its inbox has lost its receiver. A push consumer delivers while somebody
  subscribes to its subject, as its queue group if it has one.
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
"""After this time a round reads no further if it has something to send."""
STORE_REST_MS: Final = 0.001
"""How long no state is stored after another, for each pending record: a durable consumer stores all
of them each time, which takes about a tenth of this on the event loop."""
FULL_REST_MS: Final = 0.008
"""The same for each record of the limit of pending ones, where few more can be pending."""
FULL_REST_MS_MAX: Final = 4.0
FULL_SHARE: Final = 0.75
"""The share of the limit from which on that holds. A client that keeps 500 messages ahead, and so
has about 500 pending, would wait for each rest."""
STORE_REST_MS_MIN: Final = 1.0
"""A shorter rest saves nothing."""
LAZY_STORE_MS: Final = 50.0
"""How long after another a change is stored that nobody waits for."""
LAST_STORE_S: Final = 1.0
UNREADY_MAX: Final = 64
"""How many pulls of receivers that do not read are passed over at once."""
RETRY_S: Final = 1.0
FLOW_REQUEST: Final = "100 FlowControl Request"
DELETED: Final = "409 Consumer Deleted"
LEADERSHIP_CHANGE: Final = "409 Leadership Change"
SHUTDOWN: Final = "409 Server Shutdown"
Answer = Callable[[], None]
_StatusHeaders = tuple[tuple[str, int | str], ...]


class RunnerHost(NamedTuple):
    """State that all consumers of a broker share."""

    receivers: Receivers
    clock: Clock
    counter: RecordCounter
    on_thread: Callable[..., Awaitable[Any]]
    keep: Callable[["ConsumerRunner"], Awaitable[None]]
    """Stores a durable consumer."""
    ended: Callable[["ConsumerRunner", str], None]
    """Called when a consumer ends itself, with this status for its pulls."""
    merged: MergedHost | None = None
    """For consumers of several partitions."""


class _Outgoing(NamedTuple):
    messages: MessageRun
    pending: int
    """How many records follow the first one."""


class ConsumerRunner:
    """A consumer at work.

    Args:
        host: what the calls of the API share.
        stream: the name of its stream, as clients know it.
        partition: the partition of its records; of several the first one.
        kept: settings and state.
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
        """Distinguishes this runner's flow control requests from those of an earlier one."""
        self.is_over = False
        self._is_begun = False
        self._wake = asyncio.Event()
        self._buffer = self._new_buffer()
        self._effects: list[Effect] = []
        """Decided; they wait until the state is stored."""
        self._outgoing: list[_Outgoing] = []
        """The messages of their deliveries."""
        self._outgoing_count = 0
        self._answers: list[Answer] = []
        self._inboxes = WaitingInboxes(host.receivers.leaf, self.core.pulls)
        self._pacer = self._new_pacer()
        self._store_from_ms = 0.0
        """Before this time no round begins, so that acknowledgements are stored together."""
        self._stored_ms = -LAZY_STORE_MS
        """When the state was stored."""
        self._due_ms = 0.0
        """Before this time the next record must not be delivered."""
        self._used_ms = self._now_ms
        self._delivered_ns = self._acked_ns = 0
        """When records were last delivered and acknowledged here; not stored, as in JetStream."""
        self._round_lock = asyncio.Lock()
        self._task = start_task(self._run(), "jetstream-consumer")

    @property
    def config(self) -> ConsumerConfig:
        """The settings in force."""
        return self.kept.config

    @property
    def is_durable(self) -> bool:
        """Whether its state is stored."""
        return bool(self.config.durable_name)

    @property
    def paused_ns(self) -> int:
        """For how long nothing is delivered because somebody has paused it."""
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

    # What comes in

    def pull(self, pull: Pull) -> None:
        """Take a pull in, whose token is its inbox."""
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
        """Return whether a pull waits."""
        return self.core.pulls.has(token)

    def drop_pull(self, token: object) -> None:
        """Forget a pull, whose receiver is gone."""
        self.core.drop_pull(token)
        self._used_ms = self._now_ms
        self._wake.set()  # else nobody notices when the threshold of inactivity is over

    def ack(
        self, kind: AckKind, ack: AckSubject, *, delay_ms: int = 0, answer: Answer | None = None
    ) -> None:
        """Take an acknowledgement in; ``answer`` is called when it is stored."""
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
        self._acked(before)
        self._wake.set()

    def ack_many(self, acks: list[tuple[int, int]]) -> None:
        """Take plain acknowledgements in: the sequence of each record, and of its delivery."""
        core, before = self.core, len(self.kept.state.pending)
        # Otherwise the next round is soon enough: one for every few of them would cost too much.
        is_awaited = core.is_full or not core.is_changed
        core.ack_many(acks)
        self._acked(before)
        if is_awaited:
            self._wake.set()

    def _acked(self, before: int) -> None:
        self._used_ms = self._now_ms
        if len(self.kept.state.pending) < before:
            self._acked_ns = self._host.clock.now_ns()

    def flow_answered(self, subject: str) -> None:
        """The receiver has answered a flow control request."""
        flow = self.core.flow
        if flow is None or not flow.request or subject != self._flow_subject(flow.request):
            return
        flow.answered(flow.request)
        self._used_ms = self._now_ms
        self._wake.set()

    def _stalled_headers(self, request: int) -> _StatusHeaders:
        """Return a heartbeat's headers about a flow control request that waits for its answer."""
        return (("Nats-Consumer-Stalled", self._flow_subject(request)),) if request else ()

    def _flow_subject(self, request: int) -> str:
        return format_flow(self.stream, self.config.name, f"{self._flow_prefix}{request}")

    def begin(self) -> None:
        """Let a push consumer deliver; its creator knows the number of pending messages by now."""
        self._is_begun = True
        self.interest_changed()

    def interest_changed(self, changed: Collection[bytes] | None = None) -> None:
        """Handle subjects that have gained or lost receivers; None: any may have."""
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
        """Handle a new connection: messages and flow control requests under way may be lost."""
        if self.config.is_push:
            self._rebind(is_bound=False)
        self.interest_changed()
        self._wake.set()

    def wake(self) -> None:
        """Look again whether records can be delivered."""
        self._wake.set()

    def _rebind(self, *, is_bound: bool) -> None:
        """Begin or end the delivery to a push consumer's subject."""
        self.core.pulls.clear()
        self._used_ms = self._now_ms
        if is_bound:
            subject, _ = self._push_target
            beat_ms = ms_of(self.config.idle_heartbeat)
            self.core.pull(Pull(subject, batch=ENDLESS, heartbeat_ms=beat_ms), self._now_ms)
        self._wake.set()

    @property
    def is_bound(self) -> bool:
        """Whether a push consumer has receivers."""
        return self.config.is_push and bool(self.core.pulls)

    @property
    def _push_target(self) -> tuple[bytes, bytes]:
        """The subject and the queue group that a push consumer delivers to."""
        return self.config.deliver_subject.encode(), self.config.deliver_group.encode()

    async def reconfigure(self, config: ConsumerConfig) -> None:
        """Continue with other settings; returns when they are stored.

        Raises:
            StrandlineError: they may not be stored.
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
        """End it, and all of its pulls with a status."""
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
        """End every pull; the receivers of a push consumer notice that heartbeats are missing."""
        ended = self.core.end_all(status)
        if not self.config.is_push:
            self._send_all(ended, [])

    async def info(self) -> ConsumerInfo:
        """Return the consumer as answers show it.

        Raises:
            ApiRejection: its records are not counted yet.
        """
        # At once, and as of now: a round may be under way, which waits for files and for storage.
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
        """Do rounds until it is over."""
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
        """End the consumer."""
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
        """Wait for something to do."""
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
            buffer = self._buffer  # another one may take its place meanwhile
            buffer.watch(self._wake)
            if self._has_more():
                self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return  # a timer is due
        finally:
            if is_watching:
                buffer.unwatch(self._wake)

    def _has_more(self) -> bool:
        """Return whether records came since the last round ended."""
        wanted = self._wanted()
        return wanted is not None and self._buffer.has_more(wanted)

    async def _round(self) -> bool:
        """Deliver what can be delivered; return whether there may be more at once.

        Raises:
            UnknownGroupError: the consumer was deleted.
            StrandlineError: the partition cannot be read, or the state not be stored now.
        """
        if self.core.pulls:
            self._used_ms = self._now_ms  # also if the last pull ends in this round
        # What does not depend on this round's deliveries does not wait for the disk.
        self._send_all(self.core.tick(self._now_ms), [])
        try:
            is_busy = await self._collect()
        except (StrandlineError, ApiRejection):
            await self._commit()  # what was decided before
            raise
        await self._commit()
        return is_busy

    async def _commit(self) -> None:
        """Store the state; then send and answer what depends on it.

        Raises:
            UnknownGroupError: the consumer was deleted.
            StrandlineError: the state cannot be stored now; a later call sends and answers.
        """
        if self.core.policy.acks == "none":
            self._send_all(*self._take_outgoing())
        answers, self._answers = self._answers, []
        # An answer needs a stored state also if nothing has changed: another broker may lead.
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
        # Last: a record must not be sent again after an acknowledgement of it was answered.
        for answer in answers:
            answer()

    @property
    def _rest_ms(self) -> float:
        """The time after a store in which no other begins, so that the next one has more to do."""
        pending, limit = len(self.kept.state.pending), self.core.policy.max_ack_pending
        rest_ms = pending * STORE_REST_MS
        if pending >= limit * FULL_SHARE:
            # Else each of the few acknowledgements that come together costs a store.
            rest_ms = max(rest_ms, min(FULL_REST_MS_MAX, limit * FULL_REST_MS))
        return rest_ms

    def _take_outgoing(self) -> tuple[list[Effect], list[_Outgoing]]:
        """Return what was decided, and decide anew."""
        taken = self._effects, self._outgoing
        self._effects, self._outgoing, self._outgoing_count = [], [], 0
        return taken

    async def _collect(self) -> bool:
        """Let the core decide what waiting pulls get; read the records for it.

        Returns:
            Whether there may be more at once.

        Raises:
            StrandlineError, ApiRejection: nothing can be read; what was decided before is decided.
        """
        core, pending, size, read_to_ms = self.core, -1, 0, self._now_ms + ROUND_MS
        while self._outgoing_count < ROUND_MESSAGES and size < ROUND_BYTES:
            wanted = self._wanted()
            if wanted is None:
                return False
            if pending < 0:
                pending = await self._buffer.count(self.kept.state.delivered_stream)
                continue  # something may have come in while they were counted
            run, is_end = self._buffer.buffered(wanted), False
            if not run.sizes:
                if self._outgoing and self._now_ms > read_to_ms:
                    return True
                is_end = await self._read(wanted)
                if core.wanted() != wanted:
                    continue  # something came in while it was read
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
        """Return what to deliver now; None: nothing can be, or nothing may be yet."""
        if not self._has_ready():
            return None
        if (self._due_ms or self.config.pause_until) and self._held_to_ms > self._now_ms:
            return None
        return self.core.wanted()

    def _has_ready(self) -> bool:
        """Return whether the pull that is served next can receive; let others go first if not."""
        pulls, queue = self.core.pulls, self._push_target[1]
        for _ in range(min(len(pulls), UNREADY_MAX)):
            if self._host.receivers.is_ready(pulls.first.token, queue):
                return True
            pulls.rotate()
        return False

    @property
    def _held_to_ms(self) -> float:
        """The time before which nothing is delivered: it is paused, or the next one comes then."""
        paused_ns = self.paused_ns
        return max(self._due_ms, self._now_ms + paused_ns / NS_PER_MS if paused_ns else 0.0)

    def _is_early(self, messages: MessageRun) -> bool:
        """Return whether the first record has to wait for its time; it is looked at again then."""
        self._due_ms = self._pacer.due_ms(messages.sequences[0], messages.times_ns[0])
        return self._due_ms > self._now_ms

    def _decide(self, run: ReadRun, pending: int, *, is_again: bool) -> int:
        """Let pulls have records; return how many they have got."""
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
        """Read what is wanted; return whether there is nothing and that is the end."""
        if wanted.is_again:
            due = self.core.due(ROUND_MESSAGES)
            unread = await self._buffer.read_again(wanted.sequence, due)
            self.core.postpone(unread, self._now_ms + RETRY_S * 1e3)
            return False
        passed = await self._buffer.read_new(wanted.sequence)
        if passed is None:
            return False
        for sequence in passed.sequences:
            # Skipped records are never delivered, so the position may follow.
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
