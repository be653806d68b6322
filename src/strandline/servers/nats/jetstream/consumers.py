"""The consumer operations of the JetStream API, and consumers' acknowledgements.

Rules:
- A consumer of one partition runs at the broker that leads the partition; a consumer of all
  partitions runs where the first one is led. Durable consumers are loaded once per leadership, when
  it begins or a request needs them. When the leadership ends, they stop here, and the next leader
  continues them from the stored state. Ephemeral consumers exist in the broker's memory only.
- The sequences of a consumer of several partitions depend on the number of partitions, so such
  consumers are deleted when partitions are added.
- The consumer group that stores a consumer is named ``js/stream/consumer``.
- A broker subscribes to the acknowledgements of a stream only while it runs consumers of it.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from strandline.api.groups import GROUPS_STREAM
from strandline.broker.coordinators.consumers import ConsumerStore
from strandline.core.consumers.pulls import Pull
from strandline.core.consumers.state import ConsumerState
from strandline.errors import (
    UNDECODABLE,
    GroupInUseError,
    InvalidRecordError,
    StaleMemberError,
    StrandlineError,
    UnknownGroupError,
)
from strandline.record.subjects import subject_matches
from strandline.servers.nats.jetstream.ack_bodies import PLAIN_ACKS, parse_ack_body
from strandline.servers.nats.jetstream.api import (
    PEER_TIMEOUT_S,
    ApiLink,
    ApiReply,
    ApiRequest,
    JetStreamApi,
    status,
)
from strandline.servers.nats.jetstream.consumer_config import (
    ConsumerConfig,
    CreateConsumerRequest,
    check_merged,
    check_replicas,
    check_update,
    consumer_config,
    reject_consumer,
)
from strandline.servers.nats.jetstream.consumer_info import KeptConsumer
from strandline.servers.nats.jetstream.errors import (
    CONSUMER_EXISTS,
    CONSUMER_NOT_FOUND,
    INVALID_TARGET,
    NO_CONSUMER,
    PUBLIC_INBOX,
    STREAM_MISMATCH,
    TARGET_CYCLE,
    TOO_MANY_CONSUMERS,
    UNAVAILABLE,
    ApiRejection,
    reject,
    reject_json,
)
from strandline.servers.nats.jetstream.integers import Int64
from strandline.servers.nats.jetstream.led_consumers import LedConsumers
from strandline.servers.nats.jetstream.merged_reader import MergedHost, first_state
from strandline.servers.nats.jetstream.partition_queries import PartitionQueries
from strandline.servers.nats.jetstream.pull_requests import parse_pull
from strandline.servers.nats.jetstream.runner import (
    DELETED,
    LEADERSHIP_CHANGE,
    SHUTDOWN,
    ConsumerRunner,
    RunnerHost,
)
from strandline.servers.nats.jetstream.starts import find_heads
from strandline.servers.nats.jetstream.state import RecordCounter
from strandline.servers.nats.jetstream.stream_config import is_asking
from strandline.servers.nats.jetstream.subjects import (
    FLOW_PREFIX,
    GROUP_PREFIX,
    AckSubject,
    ApiCall,
    parse_ack,
    parse_ack_names,
    parse_flow,
)
from strandline.servers.nats.jetstream.times import (
    ZERO_TIME,
    format_time,
    parse_time,
)
from strandline.servers.nats.jetstream.views import JetStreamView, shown_name
from strandline.servers.nats.protocol import Message
from strandline.servers.nats.receivers import Receivers
from strandline.speedups import plain_acks

logger = logging.getLogger(__name__)

CONSUMERS_MAX: Final = 1_000
"""The limit of consumers of one stream, as clients know streams."""
ADOPT_INTERVAL_S: Final = 0.25
NAMES_PER_PAGE: Final = 1024
CONSUMERS_PER_PAGE: Final = 256
EARLY_ACKS_MAX: Final = 1_000
"""Acknowledgements that may wait for consumers to load. The messages of others come again."""


class _ConsumerPageRequest(msgspec.Struct, frozen=True):
    offset: Int64 | None = None


class _PauseRequest(msgspec.Struct, frozen=True):
    pause_until: str | None = None


def _runner_in(led: LedConsumers, name: str) -> ConsumerRunner:
    """Return the runner of a consumer.

    Raises:
        ApiRejection: the consumer does not exist.
    """
    runner = led.runners.get(name)
    if runner is None:
        reject(CONSUMER_NOT_FOUND)
    return runner


class ConsumerCalls:
    """The operations on consumers.

    Args:
        api: finds streams, and answers requests.
        store: stores durable consumers.
        receivers: the receivers of consumers' deliveries.
    """

    def __init__(self, api: JetStreamApi, store: ConsumerStore, receivers: Receivers) -> None:
        self._api = api
        self._store = store
        self._led: dict[str, LedConsumers] = {}
        """The consumers of each stream, by the name that clients know."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self._leaf = leaf = receivers.leaf
        counter = RecordCounter()
        self._queries = PartitionQueries(api, leaf, counter)
        self._merged = MergedHost(
            api.find_led, self._queries.ask, self._queries.ends, counter, api.on_thread
        )
        self._host = RunnerHost(
            receivers,
            api.broker.clock,
            counter,
            api.on_thread,
            self._keep,
            self._ended,
            self._merged,
        )
        receivers.notify(
            interest_changed=self._interest_changed,
            connected=self._reconnected,
            writable=self._wake_all,
        )
        self._adopted = asyncio.Event()
        self._unadopted: set[str] = set()
        """Streams that this broker may have begun to lead; their consumers are not loaded yet."""
        api.broker.on_image(self._review)
        api.broker.on_leading(self._adopt_soon)
        api.on_consumer_acks(self._take_acks)
        store.on_group_deleted(self._group_deleted)
        api.handlers |= {
            "CONSUMER.CREATE": self._create,
            "CONSUMER.DURABLE.CREATE": self._create,
            "CONSUMER.INFO": self._info,
            "CONSUMER.DELETE": self._delete,
            "CONSUMER.PAUSE": self._pause,
            "CONSUMER.NAMES": self._names,
            "CONSUMER.LIST": self._list,
            "CONSUMER.MSG.NEXT": self._next,
        }

    def start(self) -> None:
        """Load the durable consumers of partitions that this broker leads."""
        self._spawn(self._adopt_forever())
        self._adopt_soon(self._api.broker.image.streams)

    async def stop(self) -> None:
        """Stop all consumers at this broker."""
        self._is_stopping = True
        await self._close(list(self._led.values()), SHUTDOWN)
        await self._queries.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Leadership

    async def _of(self, request: ApiRequest) -> LedConsumers:
        """Return the consumers of a request's stream, loaded.

        Raises:
            ApiRejection: the stream does not exist.
            StrandlineError: the consumers cannot be loaded now.
        """
        return await self._loaded(self._api.view(request))

    async def _loaded(self, view: JetStreamView) -> LedConsumers:
        """Return the consumers of a stream that this broker leads, loaded.

        Raises:
            ApiRejection: the leadership has changed while they were loaded.
            StrandlineError: the consumers cannot be loaded now.
        """
        led = self._led.get(view.name)
        if led is None or not led.is_current(view):
            if led is not None:
                self._replaced(led, view)
            led = self._led[view.name] = LedConsumers(view)
        async with led.lock:
            if not led.is_loaded:
                await self._load(view, led)
            if self._led.get(view.name) is not led:
                reject(UNAVAILABLE, "the leadership has changed; retry")
        return led

    async def _load(self, view: JetStreamView, led: LedConsumers) -> None:
        """Load the durable consumers of a stream and let them deliver."""
        await self._api.caught_up(view)
        count = 0 if view.is_exact else len(view.partitions)
        prefix = f"{GROUP_PREFIX}{view.name}/"
        claimed = await self._store.claim(prefix, led.epoch)
        for group, text in claimed.items():
            try:
                kept = msgspec.json.decode(text, type=KeptConsumer)
            except UNDECODABLE as error:
                raise InvalidRecordError(f"the state of {group} is unreadable: {error}") from error
            if kept.stream_created_ns != led.created_ns or len(kept.state.positions) != count:
                # It belonged to a deleted stream of this name, or to one with fewer partitions.
                await self._store.delete(group)
            elif kept.config.name not in led.runners:
                self._runner(view, led, kept).begin()
        led.is_loaded = True

    def _runner(self, view: JetStreamView, led: LedConsumers, kept: KeptConsumer) -> ConsumerRunner:
        runner = ConsumerRunner(self._host, view.name, led.partition, kept=kept)
        led.runners[kept.config.name] = runner
        self._api.follow_consumer_acks(view.name)
        return runner

    def _removed(self, led: LedConsumers, runner: ConsumerRunner) -> None:
        """Note that a consumer no longer runs here."""
        led.runners.pop(runner.config.name, None)
        if not led.runners:
            self._api.unfollow_consumer_acks(runner.stream)

    def _review(self) -> None:
        """Stop the consumers of streams that this broker no longer leads."""
        for name, led in list(self._led.items()):
            view = self._api.find_or_none(name)
            if view is None:
                self._release(led, DELETED)
            elif not led.is_current(view):
                self._replaced(led, view)
                if view.partitions[0].is_led:
                    self._adopt_soon((view.stream.name,))

    def _adopt_soon(self, names: Collection[str]) -> None:
        """Schedule the loading of consumers of streams in which a leadership has begun here."""
        self._unadopted.update(names)
        self._adopted.set()

    async def _adopt_forever(self) -> None:
        """Load the consumers of streams that this broker has begun to lead, until cancelled.

        They are loaded without a request, because none comes for push consumers, nor from clients
        that wait for the answer to an acknowledgement.
        """
        while True:
            await self._adopted.wait()
            self._adopted.clear()
            names, self._unadopted = self._unadopted, set()
            if GROUPS_STREAM in self._api.broker.image.streams:
                failed = await self._adopt(names)
                if failed:
                    self._adopt_soon(failed)
            # Loading stores an entry each time: wait, so that streams led soon after share one.
            await asyncio.sleep(ADOPT_INTERVAL_S)

    async def _adopt(self, names: set[str]) -> set[str]:
        """Load the durable consumers of streams; return the streams that must be tried again."""
        try:
            groups = await self._store.list(GROUP_PREFIX)
        except StrandlineError as error:
            logger.debug("the groups of consumers cannot be listed yet: %s", error)
            return names
        failed = set()
        for shown in sorted({group.split("/")[1] for group in groups}):
            view = self._api.find_or_none(shown)
            if view is None or view.stream.name not in names or not view.partitions[0].is_led:
                continue
            # First, because clients may be acknowledging what the previous leader has delivered.
            self._api.follow_consumer_acks(view.name)
            try:
                led = await self._loaded(view)
            except (StrandlineError, ApiRejection) as error:
                logger.debug("the consumers of %s cannot be loaded yet: %s", shown, error)
                failed.add(view.stream.name)
            else:
                if not led.runners:
                    self._api.unfollow_consumer_acks(view.name)
        return failed

    def _replaced(self, led: LedConsumers, view: JetStreamView) -> None:
        """Stop consumers that a new leadership, or a new stream of the same name, replaces."""
        self._release(led, LEADERSHIP_CHANGE if led.counts_like(view) else DELETED)

    def _release(self, led: LedConsumers, why: str) -> None:
        self._led.pop(led.name, None)
        for runner in led.runners.values():
            self._api.unfollow_consumer_acks(runner.stream)
        self._spawn(self._close([led], why))

    async def _close(self, several: list[LedConsumers], why: str) -> None:
        runners = [runner for led in several for runner in led.runners.values()]
        await asyncio.gather(*(runner.close(why) for runner in runners))

    def _spawn(self, coroutine: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(coroutine, name="jetstream-consumers")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _every_runner(self) -> Iterator[ConsumerRunner]:
        for led in self._led.values():
            yield from led.runners.values()

    def _interest_changed(self, changed: Collection[bytes]) -> None:
        for runner in self._every_runner():
            runner.interest_changed(changed)

    def _reconnected(self) -> None:
        for runner in self._every_runner():
            runner.reconnected()

    def _wake_all(self) -> None:
        for runner in self._every_runner():
            runner.wake()

    def count(self, name: str) -> int:
        """Return how many consumers of a stream run here; clients know the stream by ``name``."""
        led = self._led.get(name)
        return len(led.runners) if led is not None else 0

    # Storing

    def _group(self, runner: ConsumerRunner) -> str:
        return f"{GROUP_PREFIX}{runner.stream}/{runner.config.name}"

    async def _keep(self, runner: ConsumerRunner, *, is_new: bool = False) -> None:
        """Store a durable consumer.

        Raises:
            UnknownGroupError: the consumer was deleted.
            StrandlineError: the consumer may not have been stored.
        """
        led = self._led.get(runner.stream)
        if led is None or led.runners.get(runner.config.name) is not runner:
            raise StaleMemberError("another broker leads now")
        text = msgspec.json.encode(runner.kept).decode()
        floors = runner.kept.state.floors
        stream, first = runner.partition.name  # partition 0 if the consumer has several
        positions = {stream: dict(enumerate(floors, first))}
        await self._store.keep(self._group(runner), positions, text, epoch=led.epoch, is_new=is_new)

    def _ended(self, runner: ConsumerRunner, why: str) -> None:
        """Handle the end of a consumer that was inactive, deleted, or is led elsewhere now."""
        led = self._led.get(runner.stream)
        if led is None or led.runners.get(runner.config.name) is not runner:
            return
        self._removed(led, runner)
        if why == LEADERSHIP_CHANGE:
            self._release(led, why)
        elif runner.is_durable:
            self._spawn(self._forget(self._group(runner)))

    async def _forget(self, group: str) -> None:
        """Delete a stored consumer, if it exists."""
        try:
            await self._store.delete(group)
        except UnknownGroupError:
            return  # it is deleted already

    async def forget_stream(self, name: str) -> None:
        """Delete the stored consumers of a deleted stream."""
        shown = shown_name(name)
        for group in await self._store.list(f"{GROUP_PREFIX}{shown}"):
            if group.startswith((f"{GROUP_PREFIX}{shown}/", f"{GROUP_PREFIX}{shown}:")):
                await self._forget(group)

    # Operations

    async def _create(self, request: ApiRequest) -> ApiReply:
        body = request.body(CreateConsumerRequest)
        if body.stream_name != request.call.stream:
            reject(STREAM_MISMATCH)
        led = await self._of(request)
        made_up = secrets.token_hex(4)
        config = consumer_config(request.call, body, made_up)
        view = self._api.view(request)
        is_cluster = bool(self._api.broker.image.brokers)
        check_replicas(config, view.stream.config, is_cluster=is_cluster)
        if not view.is_exact:
            check_merged(config, view.name, len(view.partitions))
        self._check_target(view, config)
        async with led.lock:
            runner = led.runners.get(config.name)
            if runner is None:
                if body.action == "update":
                    reject(NO_CONSUMER)
                runner = await self._make(view, led, config)
            elif runner.config != config:
                if body.action == "create":
                    reject(CONSUMER_EXISTS)
                check_update(runner.config, config, is_bound=runner.is_bound)
                await runner.reconfigure(config)
            info = await runner.info()
            runner.begin()
        return request.answer(**msgspec.structs.asdict(info))

    def _check_target(self, view: JetStreamView, config: ConsumerConfig) -> None:
        """Reject a subject to which a push consumer may not deliver.

        With access control only private inboxes are allowed: every client may subscribe to other
        inboxes, and otherwise a client could publish through a consumer where it may not.
        """
        subject = config.deliver_subject
        if not subject:
            return
        if not self._leaf.may_send(subject.encode()):
            reject(INVALID_TARGET, PUBLIC_INBOX.description)
        if subject_matches(view.stream.config.subject, subject):
            reject(TARGET_CYCLE)

    async def _make(
        self, view: JetStreamView, led: LedConsumers, config: ConsumerConfig
    ) -> ConsumerRunner:
        """Create a consumer; store it if it is durable."""
        if len(led.runners) >= CONSUMERS_MAX:
            reject(TOO_MANY_CONSUMERS)
        await self._api.caught_up(view)
        state, heads_to = await first_state(view, config, self._merged), 0
        if config.deliver_policy == "last_per_subject":
            heads_to = led.partition.last_stable_offset
            heads = await self._api.on_thread(find_heads, led.partition, config.filters, heads_to)
            before = (heads.after(0) or heads_to + 1) - 1
            state = ConsumerState(delivered_stream=before, floor_stream=before)
        kept = KeptConsumer(
            config=config,
            created_ns=self._api.broker.clock.now_ns(),
            stream_created_ns=led.created_ns,
            state=state,
            heads_to=heads_to,
        )
        runner = self._runner(view, led, kept)
        try:
            if runner.is_durable:
                await self._keep(runner, is_new=True)
        except BaseException as error:
            self._removed(led, runner)
            await runner.close(DELETED)
            if isinstance(error, GroupInUseError):
                reject_consumer(error.message)
            raise
        return runner

    async def _found(self, request: ApiRequest) -> ConsumerRunner:
        return _runner_in(await self._of(request), request.call.consumer)

    async def _info(self, request: ApiRequest) -> ApiReply:
        runner = await self._found(request)
        info = await runner.info()
        if runner.config.deliver_subject:
            # nats.py ends a watch if nothing is pending and it has received nothing: deliver first.
            await self._leaf.settle()
        return request.answer(**msgspec.structs.asdict(info))

    async def _delete(self, request: ApiRequest) -> ApiReply:
        await self._end(await self._of(request), request.call.consumer)
        return request.answer(success=True)

    async def _end(self, led: LedConsumers, name: str) -> None:
        """Delete a consumer, and end its pulls.

        Raises:
            ApiRejection: the consumer does not exist.
        """
        async with led.lock:
            runner = _runner_in(led, name)
            if runner.is_durable:
                await self._forget(self._group(runner))
            self._removed(led, runner)
        await runner.close(DELETED)

    async def _group_deleted(self, group: str) -> None:
        """Stop the consumer of a deleted group, at whichever broker it runs."""
        _, stream, name = group.split("/", 2)
        view = self._api.find_or_none(stream)
        try:
            if view is not None and view.partitions[0].is_led:
                await self._end(await self._loaded(view), name)
            else:
                async with asyncio.timeout(PEER_TIMEOUT_S):
                    await self._api.ask_others(f"CONSUMER.DELETE.{stream}.{name}")
        except (StrandlineError, ApiRejection, TimeoutError) as error:
            # It may have ended already. Otherwise it ends when its state is stored the next time.
            logger.debug("the consumer of %s is not ended yet: %s", group, error)

    async def _pause(self, request: ApiRequest) -> ApiReply:
        """Pause a consumer until a time; resume it if the request has no time."""
        until = request.body(_PauseRequest).pause_until or ""
        until_ns = 0
        if is_asking(until):
            try:
                until_ns = parse_time(until)
            except ValueError as error:
                reject_json(error)
        led = await self._of(request)
        async with led.lock:
            runner = _runner_in(led, request.call.consumer)
            text = format_time(until_ns) if until_ns else ""
            await runner.reconfigure(msgspec.structs.replace(runner.config, pause_until=text))
        return request.answer(
            paused=runner.paused_ns > 0,
            pause_until=text or ZERO_TIME,
            pause_remaining=runner.paused_ns or msgspec.UNSET,
        )

    async def _page(
        self, request: ApiRequest, size: int
    ) -> tuple[list[ConsumerRunner], dict[str, int]]:
        """Return a page of a stream's consumers, and the fields that describe the page."""
        body = request.body(_ConsumerPageRequest)
        led = await self._of(request)
        names = sorted(led.runners)
        first = min(max(0, body.offset or 0), len(names))
        fields = {"total": len(names), "offset": first, "limit": size}
        return [led.runners[name] for name in names[first : first + size]], fields

    async def _names(self, request: ApiRequest) -> ApiReply:
        runners, fields = await self._page(request, NAMES_PER_PAGE)
        return request.answer(**fields, consumers=[runner.config.name for runner in runners])

    async def _list(self, request: ApiRequest) -> ApiReply:
        runners, fields = await self._page(request, CONSUMERS_PER_PAGE)
        infos = [await runner.info() for runner in runners]
        return request.answer(**fields, consumers=infos)

    # Pulls

    async def _next(self, request: ApiRequest) -> ApiReply:
        runner = await self._found(request)
        pull = self._parse_pull(runner, request.reply, request.payload, link=request.link)
        if isinstance(pull, str):
            return status(pull)
        runner.pull(pull)
        return ApiReply(b"", b"", is_silent=True)

    def _parse_pull(
        self, runner: ConsumerRunner, inbox: bytes, payload: bytes, *, link: ApiLink
    ) -> Pull | str:
        token = link.receiver(inbox)
        if isinstance(token, bytes) and not self._leaf.may_send(token):
            # Not 403: nats.js would then wait for heartbeats.
            return f"400 Bad Request - {PUBLIC_INBOX.description}"
        now_ms = self._api.broker.clock.monotonic_ms()
        return parse_pull(runner.config, token, payload, now_ms=now_ms)

    # Acknowledgements

    def _take_acks(self, messages: Sequence[Message], link: ApiLink) -> None:
        """Handle acknowledgements that arrived together; plain ones with one call per consumer."""
        acks = plain_acks(messages, PLAIN_ACKS)
        if acks is not None:
            runners = [self._runner_of_acks(each) for each in acks]
            if None not in runners:
                for runner, several in zip(runners, acks.values(), strict=True):
                    if runner is not None:
                        runner.ack_many(several)
                return
        for subject, _, reply, _, payload in messages:
            self._take_ack(subject, reply, payload=payload, link=link)

    def _runner_of_acks(self, beginning: bytes) -> ConsumerRunner | None:
        """Return the consumer for acknowledgements with a subject prefix, if it runs here."""
        names = parse_ack_names(beginning.decode(errors="replace"))
        led = self._led_here(names[0])[1] if names is not None else None
        return led.runners.get(names[1]) if led is not None and names is not None else None

    def _led_here(self, stream: str) -> tuple[bool, LedConsumers | None]:
        """Return whether this broker leads a stream, and its consumers if they are loaded."""
        view = self._api.find_or_none(stream)
        if view is None or not view.partitions[0].is_led:
            return False, None
        led = self._led.get(view.name)
        is_loaded = led is not None and led.is_loaded and led.is_current(view)
        return True, led if is_loaded else None

    def _take_ack(
        self, subject: bytes, reply: bytes | None, *, payload: bytes, link: ApiLink
    ) -> None:
        """Handle an acknowledgement, or an answer to flow control, for a consumer led here."""
        if subject.startswith(FLOW_PREFIX.encode()):
            self._take_flow(subject.decode(errors="replace"))
            return
        ack = parse_ack(subject.decode(errors="replace"))
        is_led, led = self._led_here(ack.stream) if ack is not None else (False, None)
        if ack is None or not is_led:
            return
        if led is None:
            # The first message for a consumer at a new leader may be an acknowledgement.
            if len(self._tasks) < EARLY_ACKS_MAX:
                self._spawn(self._take_early(ack, reply, payload=payload, link=link))
            return
        runner = led.runners.get(ack.consumer)
        if runner is not None:
            self._acknowledge(runner, ack, reply, payload=payload, link=link)

    def _take_flow(self, subject: str) -> None:
        """Handle the answer to a flow control request."""
        found = parse_flow(subject)
        led = None if found is None else self._led.get(found[0])
        if found is None:
            return
        runner = led.runners.get(found[1]) if led is not None else None
        if runner is not None:
            runner.flow_answered(subject)

    async def _take_early(
        self, ack: AckSubject, reply: bytes | None, *, payload: bytes, link: ApiLink
    ) -> None:
        """Load the consumers of a stream, then handle the acknowledgement."""
        call = ApiCall("CONSUMER.INFO", ack.stream, ack.consumer)
        try:
            runner = await self._found(ApiRequest(call, b"", link))
        except (StrandlineError, ApiRejection) as error:
            logger.debug("an acknowledgement came too early or too late: %s", error)
            return
        self._acknowledge(runner, ack, reply, payload=payload, link=link)

    def _acknowledge(
        self,
        runner: ConsumerRunner,
        ack: AckSubject,
        reply: bytes | None,
        *,
        payload: bytes,
        link: ApiLink,
    ) -> None:
        body = parse_ack_body(payload)

        def answer() -> None:
            if reply is not None:
                link.deliver(reply, b"")
                link.flush_answers()

        if body.pull is not None:
            pull = self._parse_pull(runner, reply or b"", body.pull, link=link)
            runner.ack("ack", ack)
            if reply is not None and isinstance(pull, Pull):
                runner.pull(pull)
            elif reply is not None and isinstance(pull, str):
                link.deliver_with_headers(reply, b"", block=status(pull).block)
                link.flush_answers()
        elif body.kind is not None:
            asked = answer if reply is not None else None
            runner.ack(body.kind, ack, delay_ms=body.delay_ms, answer=asked)
        else:
            answer()  # a body of an unknown kind is answered, too
