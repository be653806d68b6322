"""The stream operations of the JetStream API."""

import asyncio
from itertools import accumulate, compress, takewhile
from typing import Any, Final

import msgspec

from strandline.broker.routing import subject_patterns
from strandline.broker.stream import Stream
from strandline.broker.write_path.partition import Partition
from strandline.broker.write_path.pending import CommitWaiter
from strandline.config import BrokerConfig, StreamConfig
from strandline.errors import (
    UNDECODABLE,
    DisconnectedError,
    StreamExistsError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.reading.descending import offset_before_end
from strandline.record.subjects import is_reserved, subject_covers, subjects_overlap
from strandline.servers.nats.atomic_batches import LEVEL_MAX
from strandline.servers.nats.inboxes import is_private
from strandline.servers.nats.jetstream.api import (
    PEER_TIMEOUT_S,
    ApiReply,
    ApiRequest,
    JetStreamApi,
    status,
)
from strandline.servers.nats.jetstream.consumers import ConsumerCalls
from strandline.servers.nats.jetstream.direct import (
    DirectBatches,
    GetRequest,
    direct_reply,
    offset_at_time,
)
from strandline.servers.nats.jetstream.errors import (
    BAD_REQUEST,
    NO_MESSAGE,
    NO_PEERS,
    PUBLIC_INBOX,
    STREAM_EXISTS,
    STREAM_MISMATCH,
    STREAM_NOT_FOUND,
    SUBJECTS_OVERLAP,
    UNAVAILABLE,
    ApiError,
    ApiRejection,
    reject,
    reject_config,
    reject_purge,
)
from strandline.servers.nats.jetstream.integers import Count
from strandline.servers.nats.jetstream.messages import StoredMessage
from strandline.servers.nats.jetstream.records import (
    SUBJECTS_PER_PAGE,
    check_pattern,
    is_at_hand,
    last_at_hand,
    last_message,
    message_at,
    next_message,
    tally_subjects,
)
from strandline.servers.nats.jetstream.state import RecordCounter, StreamState, summed_state
from strandline.servers.nats.jetstream.stream_config import (
    StreamConfigRequest,
    changed_settings,
    is_bucket,
    jetstream_config,
    stream_config,
)
from strandline.servers.nats.jetstream.times import format_time
from strandline.servers.nats.jetstream.views import JetStreamView, views_of
from strandline.types import Offset

NAMES_PER_PAGE: Final = 1024
STREAMS_PER_PAGE: Final = 256
STATE_BYTES: Final = 16 << 10
"""Of an answer with subjects, besides those: a stream's settings and state; generous."""
COUNT_BYTES: Final = 22
"""Of a subject's count, and what is around it, at most."""
UNLIMITED_ACCOUNT: Final = {
    "max_memory": -1,
    "max_storage": -1,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": -1,
    "max_bytes_required": False,
}

_Count = Count | None


class _PageRequest(msgspec.Struct, frozen=True):
    offset: _Count = None
    subject: str | None = None


class _InfoRequest(msgspec.Struct, frozen=True):
    offset: _Count = None
    subjects_filter: str | None = None


class _PurgeRequest(msgspec.Struct, frozen=True):
    filter: str | None = None
    seq: _Count = None
    keep: _Count = None


class _StateAnswer(msgspec.Struct, frozen=True):
    """The part of another broker's answer to STREAM.INFO that is passed on."""

    state: StreamState


class StreamCalls:
    """The operations on streams.

    Args:
        api: finds streams, and answers.
        config: the broker's settings.
        consumers: the consumers of these streams.
    """

    def __init__(self, api: JetStreamApi, config: BrokerConfig, consumers: ConsumerCalls) -> None:
        self._api = api
        self._consumers = consumers
        self._broker = api.broker
        self._config = config
        self._counter = RecordCounter()
        self._batches = DirectBatches(api, self._counter)
        api.handlers |= {
            "INFO": self._account,
            "STREAM.NAMES": self._names,
            "STREAM.LIST": self._list,
            "STREAM.CREATE": self._create,
            "STREAM.UPDATE": self._update,
            "STREAM.INFO": self._info,
            "STREAM.DELETE": self._delete,
            "STREAM.PURGE": self._purge,
            "STREAM.MSG.GET": self._get,
            "STREAM.MSG.DELETE": self._delete_message,
            "DIRECT.GET": self._get_direct,
        }

    # All streams

    def _views(self, pattern: str | None = None) -> list[JetStreamView]:
        """Return the streams, by name; with a pattern those whose subjects overlap it."""
        return [
            view
            for stream in self._broker.streams()
            for view in views_of(stream)
            if not pattern
            or any(subjects_overlap(pattern, each) for each in subject_patterns(stream.config))
        ]

    async def _account(self, request: ApiRequest) -> ApiReply:
        self._broker.check_metadata()
        streams = {view.stream.name: view.stream for view in self._views()}
        partitions = [each for stream in streams.values() for each in stream.partitions]
        return request.answer(
            memory=0,
            storage=sum(each.log.size_bytes for each in partitions),
            reserved_memory=0,
            reserved_storage=0,
            streams=len(streams),
            consumers=sum(self._consumers.count(view.name) for view in self._views()),
            limits=UNLIMITED_ACCOUNT,
            domain=self._api.domain or msgspec.UNSET,
            api={"level": LEVEL_MAX, "total": self._api.requests, "errors": self._api.errors},
        )

    def _page(self, request: ApiRequest, size: int) -> tuple[list[JetStreamView], dict[str, int]]:
        """Return a page of the streams, and the fields that say which."""
        body = request.body(_PageRequest)
        if body.subject:
            check_pattern(body.subject)
        self._broker.check_metadata()
        views = self._views(body.subject)
        first = min(body.offset or 0, len(views))
        fields = {"total": len(views), "offset": first, "limit": size}
        return views[first : first + size], fields

    async def _names(self, request: ApiRequest) -> ApiReply:
        views, fields = self._page(request, NAMES_PER_PAGE)
        return request.answer(**fields, streams=[view.name for view in views])

    async def _list(self, request: ApiRequest) -> ApiReply:
        views, fields = self._page(request, STREAMS_PER_PAGE)
        states = await asyncio.gather(*(self._known_state(view) for view in views))
        found = [
            self._shown(view, state)
            for view, state in zip(views, states, strict=True)
            if state is not None
        ]
        missing = [v.name for v, state in zip(views, states, strict=True) if state is None]
        more = {"missing": missing} if missing else {}
        return request.answer(**fields, streams=found, **more)

    # One stream

    def _shown(self, view: JetStreamView, state: StreamState) -> dict[str, Any]:
        """Return a stream as answers show it."""
        return {
            "config": jetstream_config(view.stream.config, view),
            "created": format_time(view.stream.created_ns),
            "state": state,
            "ts": format_time(self._broker.clock.now_ns()),
        }

    async def _state(self, view: JetStreamView) -> StreamState:
        """Return the state of a stream; other brokers are asked for partitions they lead.

        Raises:
            ApiRejection: one of them does not answer.
        """
        if not view.partitions[0].is_led:
            return await self._state_elsewhere(view)
        if view.is_exact:
            await self._api.caught_up(view)
            state = await self._api.on_thread(self._counter.state, view.partitions[0])
        else:
            numbers = range(len(view.partitions))
            parts = (self._state(JetStreamView(view.stream, each)) for each in numbers)
            state = summed_state(await asyncio.gather(*parts))
        state.consumer_count = self._consumers.count(view.name)
        return state

    async def _known_state(self, view: JetStreamView) -> StreamState | None:
        """Return the state of a stream, or None if it cannot be had now."""
        try:
            return await self._state(view)
        except (ApiRejection, UnavailableError, UnknownStreamError):
            return None  # the answer names it as missing, as JetStream does

    async def _state_elsewhere(self, view: JetStreamView) -> StreamState:
        """Ask the broker that leads a stream."""
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                answer = await self._api.ask_others(f"STREAM.INFO.{view.name}")
            return msgspec.json.decode(answer or b"", type=_StateAnswer).state
        except (TimeoutError, DisconnectedError, *UNDECODABLE):
            reject(UNAVAILABLE, f"the broker that leads {view.name} does not answer")

    async def _info(self, request: ApiRequest) -> ApiReply:
        body = request.body(_InfoRequest)
        view = self._api.view(request)
        state = await self._state(view)
        paging = {"total": 0, "offset": 0, "limit": 0}
        if body.subjects_filter:
            check_pattern(body.subjects_filter)
            if not view.is_exact:
                reject(BAD_REQUEST, _several(view))
            tallies = await self._api.on_thread(
                tally_subjects, view.partitions[0], body.subjects_filter
            )
            first, names = min(body.offset or 0, len(tallies)), sorted(tallies)
            page = _page_of(names[first : first + SUBJECTS_PER_PAGE], request.link.payload_max)
            state.subjects = {name: tallies[name].records for name in page} or msgspec.UNSET
            paging = {"total": len(tallies), "offset": first, "limit": SUBJECTS_PER_PAGE}
        return request.answer(**paging, **self._shown(view, state))

    async def _create(self, request: ApiRequest) -> ApiReply:
        config = self._asked(request)
        existing = self._api.find(request.call.stream)
        if existing is None:
            self._check_overlap(config)
            existing = await self._make(config)
        if changed_settings(
            jetstream_config(existing.stream.config, existing), jetstream_config(config)
        ):
            reject(STREAM_EXISTS)
        state = await self._state(existing)
        return request.answer(**self._shown(existing, state), did_create=True)

    def _asked(self, request: ApiRequest) -> StreamConfig:
        """Return the settings that a request asks for."""
        body = request.body(StreamConfigRequest)
        if body.name != request.call.stream:
            reject(STREAM_MISMATCH)
        config = stream_config(body, is_cluster=self._config.cluster.is_on)
        if self._config.auth.enabled and is_reserved(config.subject) and not is_bucket(config):
            # The permission to ask covers every subject but NATS' own, and a bucket's own.
            reject_config(f"subject {config.subject!r} is NATS' own")
        return config

    def _check_overlap(self, config: StreamConfig) -> None:
        """Reject a stream whose subjects another one acknowledges, too."""
        if self._broker.routes.answering_beside(Stream(config, 0, [])):
            reject(SUBJECTS_OVERLAP)

    async def _make(self, config: StreamConfig) -> JetStreamView:
        brokers = self._broker.image.brokers.values()
        if brokers and config.replicas > sum(each.may_take_replicas for each in brokers):
            reject(NO_PEERS)
        try:
            return JetStreamView(await self._broker.create_stream(config), 0)
        except StreamExistsError:  # somebody else's request came first
            return JetStreamView(self._broker.stream(config.name), 0)

    async def _update(self, request: ApiRequest) -> ApiReply:
        view = self._api.view(request)
        config = self._asked(request)
        before = jetstream_config(view.stream.config, view)
        changed = changed_settings(before, jetstream_config(config))
        if changed:
            reject_config(
                f"stream configuration update can not change {', '.join(changed)}: the settings of "
                "a stream are fixed when it is created"
            )
        return request.answer(**self._shown(view, await self._state(view)))

    async def _delete(self, request: ApiRequest) -> ApiReply:
        view = self._api.find(request.call.stream)
        if view is None:
            reject(STREAM_NOT_FOUND)
        if view.is_exact and len(view.stream.partitions) > 1:
            reject(
                BAD_REQUEST, f"delete {JetStreamView(view.stream).name}, with all its partitions"
            )
        await self._broker.delete_stream(view.stream.name)
        await self._consumers.forget_stream(view.stream.name)
        return request.answer(success=True)

    async def _purge(self, request: ApiRequest) -> ApiReply:
        body = request.body(_PurgeRequest)
        view = self._api.view(request)
        if body.seq and body.keep:
            reject(BAD_REQUEST)
        if not view.is_exact:
            reject_purge(_several(view))
        [partition] = view.partitions
        await self._api.caught_up(view)
        if body.filter:
            check_pattern(body.filter)
            if not subject_covers(body.filter, partition.config.subject):
                return request.answer(success=True, purged=await self._purge_some(partition, body))
        start, end = partition.log_start_offset, partition.last_stable_offset
        target = min(body.seq - 1, end) if body.seq else end
        if body.keep:
            target = await self._api.on_thread(offset_before_end, partition, body.keep)
        purged = 0
        if target > start:
            purged = await self._api.on_thread(self._counter.count, partition, start, target)
            await self._broker.delete_before(*partition.name, Offset(target))
        return request.answer(success=True, purged=purged)

    async def _purge_some(self, partition: Partition, body: _PurgeRequest) -> int:
        """Remove records of some subjects; return how many."""
        if partition.retention is None:
            reject_purge("a filter is supported in streams with max_msgs_per_subject only")
        pattern, end = body.filter or ">", partition.last_stable_offset
        below = min(body.seq - 1, end) if body.seq else end
        await self._api.on_thread(partition.retention.catch_up, end)
        offsets = (await self._api.on_thread(partition.retention.offsets, (pattern,))).tolist()
        if body.keep:
            below = Offset(offsets[-body.keep] if len(offsets) > body.keep else 0)
        purged = len([offset for offset in offsets if offset < below])
        if purged:
            committed = CommitWaiter()
            partition.sequences.purge(pattern, Offset(below), ack_sink=committed, token=None)
            await committed.wait()
        return purged

    # Messages

    async def _get(self, request: ApiRequest) -> ApiReply:
        body = request.body(GetRequest)
        found = await self._message(request, body)
        return request.answer(message=found.in_json)

    async def _delete_message(self, request: ApiRequest) -> ApiReply:
        self._api.view(request)
        raise ApiRejection(ApiError(500, 10057, "messages cannot be deleted"))

    async def _get_direct(self, request: ApiRequest) -> ApiReply:
        subject = request.call.subject
        if not subject and not request.payload.strip():
            return status("408 Empty Request")
        body = request.body(GetRequest) if not subject else GetRequest(last_by_subj=subject)
        if body.batch or body.multi_last:
            return await self._batches.answer(request, body, await self._partition(request))
        return direct_reply(request, body, await self._message(request, body))

    async def _partition(self, request: ApiRequest) -> Partition:
        """Return the partition of a request for records, once all acknowledged ones are known."""
        is_seen = self._config.auth.enabled and request.link.is_shared
        if is_seen and not is_private(request.reply):
            reject(PUBLIC_INBOX)  # everybody may subscribe there
        view = self._api.view(request)
        if not view.is_exact:
            reject(BAD_REQUEST, _several(view))
        await self._api.caught_up(view)
        [partition] = view.partitions
        return partition

    async def _message(self, request: ApiRequest, body: GetRequest) -> StoredMessage:
        """Return the message that a request asks for.

        Raises:
            ApiRejection: there is none, or the request contradicts itself.
        """
        partition = await self._partition(request)
        match body:
            case GetRequest(last_by_subj=str(pattern)) if pattern and not body.seq:
                check_pattern(pattern)
                found = await self._last(partition, pattern)
            case GetRequest(next_by_subj=str(pattern)) if pattern:
                check_pattern(pattern)
                start = max(0, (body.seq or 1) - 1)
                found = await self._api.on_thread(next_message, partition, start, pattern)
            case GetRequest(start_time=str(text)) if text and not body.seq:
                found = await self._api.on_thread(_message_from, partition, text)
            case GetRequest(seq=int(sequence)) if sequence:
                found = await self._at(partition, sequence - 1)
            case _:
                reject(BAD_REQUEST)
        if found is None:
            reject(NO_MESSAGE)
        return found

    async def _at(self, partition: Partition, offset: int) -> StoredMessage | None:
        """Return the message at an offset; a thread reads it only if that takes long."""
        if is_at_hand(partition, offset):
            return message_at(partition, offset)
        return await self._api.on_thread(message_at, partition, offset)

    async def _last(self, partition: Partition, pattern: str) -> StoredMessage | None:
        """Return the last message of a pattern; a thread looks for it only if that takes long."""
        offset = last_at_hand(partition, pattern)
        if offset is None:
            return await self._api.on_thread(last_message, partition, pattern)
        return await self._at(partition, offset)


def _page_of(names: list[str], bytes_max: int) -> list[str]:
    """Return as many names as fit into an answer with their counts; clients ask for the others."""
    sizes = (len(msgspec.json.encode(name)) + COUNT_BYTES for name in names)
    room = bytes_max - STATE_BYTES
    return list(compress(names, takewhile(room.__ge__, accumulate(sizes))))


def _message_from(partition: Partition, text: str) -> StoredMessage | None:
    """Return the first message stored at a time or later."""
    return next_message(partition, offset_at_time(partition, text))


def _several(view: JetStreamView) -> str:
    """Return why something is only possible in one of a stream's partitions."""
    count = len(view.stream.partitions)
    return f"stream has {count} partitions: use {view.name}:0 to {view.name}:{count - 1}"
