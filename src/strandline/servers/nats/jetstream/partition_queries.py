"""Requests to the leaders of partitions, for consumers of several partitions at another broker.

Rules: the requests are an operation of the API that no access rule allows to clients. Where access
    is
checked, they are answered to private inboxes only. For each partition, one request waits until the
end of the log changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from strandline.broker.write_path.partition import Partition
from strandline.errors import UNDECODABLE, DisconnectedError, StrandlineError, UnavailableError
from strandline.servers.nats.jetstream.api import PEER_TIMEOUT_S, ApiReply, ApiRequest, JetStreamApi
from strandline.servers.nats.jetstream.consumer_config import ConsumerConfig
from strandline.servers.nats.jetstream.errors import (
    BAD_REQUEST,
    PUBLIC_INBOX,
    UNAVAILABLE,
    ApiRejection,
    reject,
    reject_json,
)
from strandline.servers.nats.jetstream.integers import Int64
from strandline.servers.nats.jetstream.messages import StoredMessage
from strandline.servers.nats.jetstream.partition_reader import OnThread, PartitionReader
from strandline.servers.nats.jetstream.records import check_pattern
from strandline.servers.nats.jetstream.starts import start_of
from strandline.servers.nats.jetstream.state import RecordCounter
from strandline.servers.nats.leaf_link import LeafClient

logger = logging.getLogger(__name__)

WAIT_S: Final = 1.0
"""How long a request waits for the end of the log to change; less than its sender waits."""
RETRY_S: Final = 1.0
OPERATION: Final = "STRANDLINE.READ"
ENVELOPE_BYTES: Final = 128
"""A generous size of each message in an answer, besides its subject, headers and payload."""


class PartitionQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to the leader of a partition; the one field that is set says for what."""

    filters: tuple[str, ...] = ()
    read_from: Int64 | None = None
    """Asks for the next records from this offset on."""
    offsets: tuple[Int64, ...] | None = None
    """Asks for the records at these offsets."""
    count_after: Int64 | None = None
    """Asks for the number of records after this sequence."""
    begin: ConsumerConfig | None = None
    """Asks for the sequence before the first record of a new consumer."""
    end_not: Int64 | None = None
    """Asks for the end of the log, as soon as it is not this one."""


class PartitionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a partition's leader."""

    log_start_offset: int
    end: int
    """The last stable offset: the end of what can be read."""
    messages: tuple[StoredMessage, ...] = ()
    missing: tuple[int, ...] = ()
    """Requested sequences whose records are no longer stored."""
    position: int = 0
    number: int = 0
    """The answer if a number was asked for."""


Ask = Callable[[str, PartitionQuery], Awaitable[PartitionAnswer]]
"""A function that asks the leader of a partition, given by the name that clients know.

It raises ``StrandlineError`` or ``ApiRejection`` if the leader does not answer."""


async def answer_query(
    query: PartitionQuery, reader: PartitionReader, *, on_thread: OnThread, bytes_max: int
) -> PartitionAnswer:
    """Answer another broker's request for a partition that this broker leads.

    Raises:
        UnavailableError: this broker does not know the requested records yet.
    """
    partition = reader.partition
    messages: list[StoredMessage] = []
    missing: list[int] = []
    position = number = 0
    if query.read_from is not None:
        run, position, _ = await reader.read(query.read_from)
        messages = _fitting(list(run.messages()), bytes_max)
        if len(messages) < len(run.sequences):
            position = messages[-1].sequence
    elif query.offsets:
        if max(query.offsets) >= partition.last_stable_offset:
            # Otherwise a record that is not known here yet would be reported as deleted.
            raise UnavailableError(f"{partition.name} is not read up to there yet")
        found = await reader.read_at(list(query.offsets))
        first = query.offsets[0] + 1
        there = [found.pop(first, None), *found.values()]
        messages = _fitting([each for each in there if each is not None], bytes_max)
        missing = [each for each, message in found.items() if message is None]
        if there[0] is None:
            missing.append(first)
    elif query.count_after is not None:
        number = await reader.count(query.count_after)
    elif query.begin is not None:
        number = await on_thread(start_of, partition, query.begin)
    elif query.end_not is not None:
        await _other_end(partition, query.end_not)
    return PartitionAnswer(
        partition.log_start_offset,
        partition.last_stable_offset,
        tuple(messages),
        tuple(missing),
        position,
        number,
    )


def _fitting(messages: list[StoredMessage], bytes_max: int) -> list[StoredMessage]:
    """Return the first messages that fit into an answer, at least one."""
    size = 0
    for count, each in enumerate(messages):
        size += ENVELOPE_BYTES + len(each.subject) + len(each.block) + len(each.payload)
        if count and size > bytes_max:
            return messages[:count]
    return messages


async def _other_end(partition: Partition, end: int) -> None:
    """Wait until the end of the log has changed, for at most ``WAIT_S``."""
    changed = asyncio.Event()
    partition.watch(changed)
    try:
        async with asyncio.timeout(WAIT_S):
            while partition.last_stable_offset == end and partition.is_led:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return  # the other broker asks again
    finally:
        partition.unwatch(changed)


class RemoteEnds:
    """The ends of partitions that other brokers lead, kept current while consumers wait.

    Args:
        ask: asks the leader of a partition.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._ends: dict[str, int] = {}
        self._watching: dict[str, list[asyncio.Event]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def known(self, name: str) -> int:
        """Return the last known end of a partition."""
        return self._ends.get(name, 0)

    def saw(self, name: str, end: int) -> None:
        """Note the end of a partition; wake the waiters if it has changed."""
        if end != self.known(name):
            self._ends[name] = end
            for event in self._watching.get(name, ()):
                event.set()

    def watch(self, name: str, event: asyncio.Event) -> None:
        """Set an event whenever the end of a partition changes."""
        self._watching.setdefault(name, []).append(event)
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._follow(name), name="jetstream-end")

    def unwatch(self, name: str, event: asyncio.Event) -> None:
        """Stop setting an event."""
        self._watching[name].remove(event)

    async def _follow(self, name: str) -> None:
        """Ask for the end of a partition again and again, while an event is registered."""
        try:
            while self._watching[name]:
                try:
                    answer = await self._ask(name, PartitionQuery(end_not=self.known(name)))
                except (StrandlineError, ApiRejection) as error:
                    logger.debug("the end of %s is unknown: %s", name, error)
                    await asyncio.sleep(RETRY_S)
                    continue
                self.saw(name, answer.end)
        finally:
            del self._tasks[name]

    async def stop(self) -> None:
        """Stop asking."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PartitionQueries:
    """The requests that this broker sends to others, and its answers to theirs.

    Args:
        api: finds streams, and sends requests.
        leaf: knows to which inboxes records may be sent.
        counter: counts the records of a partition.
    """

    def __init__(self, api: JetStreamApi, leaf: LeafClient, counter: RecordCounter) -> None:
        self._api = api
        self._leaf = leaf
        self._counter = counter
        self._waiting: set[asyncio.Task[None]] = set()
        self.ends = RemoteEnds(self.ask)
        api.handlers[OPERATION] = self._answer

    async def stop(self) -> None:
        """Stop asking and answering."""
        await self.ends.stop()
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def ask(self, name: str, query: PartitionQuery) -> PartitionAnswer:
        """Send a request to the leader of a partition.

        Raises:
            ApiRejection: the leader does not answer, or answers with an error.
        """
        payload = msgspec.json.encode(query)
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                answer = await self._api.ask_others(f"{OPERATION}.{name}", payload)
            return msgspec.msgpack.decode(answer or b"", type=PartitionAnswer)
        except (TimeoutError, DisconnectedError, *UNDECODABLE):  # an error answer is JSON
            reject(UNAVAILABLE, f"the broker that leads {name} does not answer")

    async def _answer(self, request: ApiRequest) -> ApiReply:
        """Answer the request of another broker."""
        query = request.body(PartitionQuery)
        if not self._leaf.may_send(request.reply):
            reject(PUBLIC_INBOX)  # every client may subscribe to such an inbox
        for pattern in query.filters:
            check_pattern(pattern)
        view = self._api.view(request)
        if not view.is_exact:
            reject(BAD_REQUEST)
        await self._api.caught_up(view)
        reader = PartitionReader(
            view.partitions[0],
            query.filters,
            counter=self._counter,
            on_thread=self._api.on_thread,
        )
        if query.end_not is not None:
            # It waits, and meanwhile must not count as a request in progress.
            task = asyncio.create_task(self._answer_later(request, query, reader))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            return ApiReply(b"", is_silent=True)
        return ApiReply(await self._found(request, query, reader))

    async def _answer_later(
        self, request: ApiRequest, query: PartitionQuery, reader: PartitionReader
    ) -> None:
        request.link.deliver(request.reply, await self._found(request, query, reader))
        request.link.flush_answers()

    async def _found(
        self, request: ApiRequest, query: PartitionQuery, reader: PartitionReader
    ) -> bytes:
        bytes_max = request.link.payload_max - ENVELOPE_BYTES
        try:
            found = await answer_query(
                query, reader, on_thread=self._api.on_thread, bytes_max=bytes_max
            )
        except ValueError as error:  # the start time is invalid
            reject_json(error)
        return msgspec.msgpack.encode(found)
