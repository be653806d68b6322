"""Requests to the leader of a partition, for consumers of several that work at another broker.

Rules: they are an operation of the API that no rule allows a client. Where access is checked they
are answered to private inboxes only. One request for each partition waits until its log has another
end.
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
"""For how long a request waits for another end of the log: less than its caller does."""
RETRY_S: Final = 1.0
OPERATION: Final = "STRANDLINE.READ"
ENVELOPE_BYTES: Final = 128
"""Of each message of an answer, besides its subject, headers and payload; generous."""


class PartitionQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to the leader of a partition; one of its fields says for what."""

    filters: tuple[str, ...] = ()
    read_from: Int64 | None = None
    """For the next records from this offset on."""
    offsets: tuple[Int64, ...] | None = None
    """For the records at these."""
    count_after: Int64 | None = None
    """For the number of records after this sequence."""
    begin: ConsumerConfig | None = None
    """For the sequence before the first record of a new consumer."""
    end_not: Int64 | None = None
    """For the end of the log, once it is another one."""


class PartitionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a partition's leader."""

    log_start_offset: int
    end: int
    """Of what can be read."""
    messages: tuple[StoredMessage, ...] = ()
    missing: tuple[int, ...] = ()
    """Sequences that were asked for, of records that are no longer there."""
    position: int = 0
    number: int = 0
    """What was asked for, if that is a number."""


Ask = Callable[[str, PartitionQuery], Awaitable[PartitionAnswer]]
"""Asks the leader of a partition, which clients know by this name.

Raises ``StrandlineError`` or ``ApiRejection`` if it does not answer."""


async def answer_query(
    query: PartitionQuery, reader: PartitionReader, *, on_thread: OnThread, bytes_max: int
) -> PartitionAnswer:
    """Answer another broker about a partition that is led here.

    Raises:
        UnavailableError: this broker does not know yet what was asked for.
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
            # Else a record that is not known here yet would count as removed.
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
    """Wait until the log has another end, or for as long as a request may."""
    changed = asyncio.Event()
    partition.watch(changed)
    try:
        async with asyncio.timeout(WAIT_S):
            while partition.last_stable_offset == end and partition.is_led:
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return  # the caller asks again
    finally:
        partition.unwatch(changed)


class RemoteEnds:
    """The ends of partitions that other brokers lead, as far as somebody waits for records.

    Args:
        ask: asks leaders.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._ends: dict[str, int] = {}
        self._watching: dict[str, list[asyncio.Event]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def known(self, name: str) -> int:
        """Return the end as far as it is known."""
        return self._ends.get(name, 0)

    def saw(self, name: str, end: int) -> None:
        """Note an end; wake who waits for another one."""
        if end != self.known(name):
            self._ends[name] = end
            for event in self._watching.get(name, ()):
                event.set()

    def watch(self, name: str, event: asyncio.Event) -> None:
        """Set an event whenever a partition has another end."""
        self._watching.setdefault(name, []).append(event)
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._follow(name), name="jetstream-end")

    def unwatch(self, name: str, event: asyncio.Event) -> None:
        """Do so no longer."""
        self._watching[name].remove(event)

    async def _follow(self, name: str) -> None:
        """Ask for the end while somebody watches."""
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
        """Ask no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class PartitionQueries:
    """The requests of this broker to others, and theirs to this one.

    Args:
        api: finds streams, and carries requests.
        leaf: knows where records may be sent.
        counter: counts records.
    """

    def __init__(self, api: JetStreamApi, leaf: LeafClient, counter: RecordCounter) -> None:
        self._api = api
        self._leaf = leaf
        self._counter = counter
        self._waiting: set[asyncio.Task[None]] = set()
        self.ends = RemoteEnds(self.ask)
        api.handlers[OPERATION] = self._answer

    async def stop(self) -> None:
        """Ask and answer no more."""
        await self.ends.stop()
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    async def ask(self, name: str, query: PartitionQuery) -> PartitionAnswer:
        """Ask the leader of a partition.

        Raises:
            ApiRejection: it does not answer, or cannot now.
        """
        payload = msgspec.json.encode(query)
        try:
            async with asyncio.timeout(PEER_TIMEOUT_S):
                answer = await self._api.ask_others(f"{OPERATION}.{name}", payload)
            return msgspec.msgpack.decode(answer or b"", type=PartitionAnswer)
        except (TimeoutError, DisconnectedError, *UNDECODABLE):  # an error is JSON
            reject(UNAVAILABLE, f"the broker that leads {name} does not answer")

    async def _answer(self, request: ApiRequest) -> ApiReply:
        """Answer another broker."""
        query = request.body(PartitionQuery)
        if not self._leaf.may_send(request.reply):
            reject(PUBLIC_INBOX)  # everybody may subscribe there
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
            # It waits, and must not count among the requests under way meanwhile.
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
        except ValueError as error:  # the time of a start is none
            reject_json(error)
        return msgspec.msgpack.encode(found)
