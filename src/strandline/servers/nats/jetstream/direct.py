"""Batches of direct reads: many messages for one request, followed by a status.

Rules: a batch shows the stream as it was when the request arrived. A request gets at most
``BATCH_BYTES_MAX`` of messages; the status at the end says how many are left.
"""

from functools import partial
from typing import Final

import msgspec

from strandline.broker.write_path.partition import Partition
from strandline.servers.nats.jetstream.api import ApiReply, ApiRequest, JetStreamApi, status
from strandline.servers.nats.jetstream.errors import BAD_REQUEST, reject, reject_json
from strandline.servers.nats.jetstream.integers import Count
from strandline.servers.nats.jetstream.messages import StoredMessage
from strandline.servers.nats.jetstream.records import (
    check_pattern,
    count_matching,
    messages_at,
    read_some,
    tally_subjects,
)
from strandline.servers.nats.jetstream.state import RecordCounter
from strandline.servers.nats.jetstream.times import format_time, parse_time
from strandline.types import TimestampNs

BATCH_BYTES_MAX: Final = 16 << 20
MULTI_LAST_MAX: Final = 1024
_Count = Count | None


class GetRequest(msgspec.Struct, frozen=True):
    """A request for messages."""

    seq: _Count = None
    last_by_subj: str | None = None
    next_by_subj: str | None = None
    start_time: str | None = None
    no_hdr: bool | None = None
    batch: _Count = None
    max_bytes: _Count = None
    multi_last: list[str] | None = None
    up_to_seq: _Count = None
    up_to_time: str | None = None


class _Batch:
    """The messages sent for one request, and its limits."""

    def __init__(self, request: ApiRequest, body: GetRequest, pending: int) -> None:
        self._request = request
        self._body = body
        self._pending = pending
        self._last = self._size = 0
        self._left = body.batch or MULTI_LAST_MAX
        self._bytes_max = min(body.max_bytes or BATCH_BYTES_MAX, BATCH_BYTES_MAX)

    @property
    def is_empty(self) -> bool:
        """Whether no message was sent."""
        return not self._last

    def send(self, message: StoredMessage) -> bool:
        """Send a message unless a limit is reached; return whether another one may follow."""
        request, size = self._request, self._size + len(message.payload) + len(message.block)
        if self._last and size > self._bytes_max:
            return False
        counts = (("Nats-Num-Pending", self._pending - 1), ("Nats-Last-Sequence", self._last))
        reply = direct_reply(request, self._body, message, counts=counts)
        if len(reply.payload) + len(reply.block) > request.link.payload_max:
            return False  # the client asks for the rest, and then for this message alone
        request.link.deliver_with_headers(request.reply, reply.payload, block=reply.block)
        self._last, self._size = message.sequence, size
        self._pending, self._left = self._pending - 1, self._left - 1
        return self._left > 0

    def end(self, *headers: tuple[str, int]) -> ApiReply:
        """Return the status that ends the batch."""
        counts = (("Nats-Num-Pending", self._pending), ("Nats-Last-Sequence", self._last))
        return status("204 EOB", *counts, *headers)


def direct_reply(
    request: ApiRequest,
    body: GetRequest,
    message: StoredMessage,
    *,
    counts: tuple[tuple[str, int], ...] = (),
) -> ApiReply:
    """Return a message in the form of a direct read, with its position in headers."""
    own = b"" if body.no_hdr else message.block
    headers = (
        f"Nats-Stream: {request.call.stream}\r\nNats-Subject: {message.subject}\r\n"
        f"Nats-Sequence: {message.sequence}\r\nNats-Time-Stamp: {format_time(message.time_ns)}\r\n"
    )
    headers += "".join(f"{name}: {value}\r\n" for name, value in counts)
    return ApiReply(message.payload, (own[:-2] or b"NATS/1.0\r\n") + headers.encode() + b"\r\n")


class DirectBatches:
    """The answers to requests for batches of messages.

    Args:
        api: runs reads on threads.
        counter: counts the records of a partition.
    """

    def __init__(self, api: JetStreamApi, counter: RecordCounter) -> None:
        self._api = api
        self._counter = counter

    async def answer(self, request: ApiRequest, body: GetRequest, partition: Partition) -> ApiReply:
        """Send the messages that a request asks for; return the status at their end.

        Raises:
            ApiRejection: the request contradicts itself.
        """
        if body.last_by_subj or (body.seq and body.start_time):
            reject(BAD_REQUEST)
        if body.multi_last:
            return await self._answer_multi_last(request, body, partition)
        if body.up_to_seq or body.up_to_time:
            reject(BAD_REQUEST)
        return await self._answer_next(request, body, partition)

    async def _answer_next(
        self, request: ApiRequest, body: GetRequest, partition: Partition
    ) -> ApiReply:
        """Send consecutive messages."""
        patterns = (body.next_by_subj,) if body.next_by_subj else ()
        for pattern in patterns:
            check_pattern(pattern)
        position, end = max(0, (body.seq or 1) - 1), partition.last_stable_offset
        if body.start_time:
            position = await self._api.on_thread(offset_at_time, partition, body.start_time)
        counted = partial(count_matching, partition, position, end, patterns=patterns)
        if not patterns:
            counted = partial(self._counter.count, partition, min(position, end), end)
        batch = _Batch(request, body, await self._api.on_thread(counted))
        search = partition.find_runs(*patterns)
        while position < end:
            found, position = await self._api.on_thread(read_some, partition, position, search)
            if not all(batch.send(each) for each in found.messages() if each.sequence <= end):
                break
        return status("404 Message Not Found") if batch.is_empty else batch.end()

    async def _answer_multi_last(
        self, request: ApiRequest, body: GetRequest, partition: Partition
    ) -> ApiReply:
        """Send the last message of each subject, in the order of their sequences."""
        patterns = tuple(body.multi_last or ())
        for pattern in patterns:
            check_pattern(pattern)
        if body.up_to_seq and body.up_to_time:
            reject(BAD_REQUEST)
        stop: int = partition.last_stable_offset
        if body.up_to_seq:
            stop = min(stop, body.up_to_seq)
        elif body.up_to_time:
            after = partial(offset_at_time, partition, body.up_to_time, after_ns=1)
            stop = min(stop, await self._api.on_thread(after))
        tally = partial(tally_subjects, partition, *patterns, stop=stop)
        tallies = await self._api.on_thread(tally)
        offsets = sorted(each.last for each in tallies.values() if each.last + 1 >= (body.seq or 0))
        if not offsets:
            return status("404 No Results")
        if len(offsets) > MULTI_LAST_MAX:
            return status("413 Too Many Results")
        batch = _Batch(request, body, len(offsets))
        read: dict[int, StoredMessage | None] = {}
        for number, offset in enumerate(offsets):
            if offset + 1 not in read:
                read = await self._api.on_thread(messages_at, partition, offsets[number:])
            message = read[offset + 1]
            if message is not None and not batch.send(message):
                break
        return batch.end(("Nats-UpTo-Sequence", stop))


def offset_at_time(partition: Partition, text: str, *, after_ns: int = 0) -> int:
    """Return the offset of the first message stored at a time or later.

    Raises:
        ApiRejection: the text is not a time.
    """
    try:
        time_ns = parse_time(text)
    except ValueError as error:
        reject_json(error)
    return partition.offset_for_timestamp(TimestampNs(time_ns + after_ns))
