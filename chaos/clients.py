"""Our own client in a chaos run: an idempotent producer, and members of a consumer group.

Rules: the producer passes each record to the client once and leaves retries to it, so every record
must be stored once and in order. A member processes the records it receives, commits, and
continues. After a while, or an error, it leaves and joins again, like a program that is restarted;
the next owner of its partitions has to continue at the committed offsets.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import strandline
from chaos.load import RETRY_S, AckTimes, expected
from strandline.client.consumer.consumer import Consumer, Partitions
from strandline.client.producer.producer import Producer
from strandline.client.reader.results import Ack
from strandline.errors import (
    DiskFullError,
    LogPoisonedError,
    StaleMemberError,
    StillLoadingError,
    StrandlineError,
    UnknownMemberError,
)
from strandline.testing.history import GroupHistory, PartitionHistory, ViolationError
from strandline.testing.process import ProcessServer
from strandline.types import PartitionName

UNDER_WAY: Final = 16
DELIVERY_TIMEOUT_S: Final = 90.0
"""Longer than any fault lasts, so a record that times out is a broken promise."""
FULL: Final = (DiskFullError, LogPoisonedError)
"""Errors of a full disk, which the producer raises at once, without retries."""
NOT_OURS: Final = (UnknownMemberError, StaleMemberError, StillLoadingError)
"""Errors of a member whose partitions were assigned to others, or whose coordinator restarted."""
GROUP: Final = "chaos"
SESSION_S: Final = 6.0
POLL_S: Final = 0.5


def addresses(servers: Sequence[ProcessServer]) -> str:
    """Return all brokers' addresses, as ``strandline.connect`` expects them."""
    return ",".join(server.flight for server in servers)


class Sent(NamedTuple):
    """A record that is not acknowledged yet."""

    value: bytes
    partition: int
    ack: "Future[Ack]"


class OwnProducer:
    """Appends numbered records to all partitions in rotation, by an idempotent producer.

    Args:
        servers: brokers to connect to.
        stream: the stream to append to.
        histories: the history of each partition.
        name: becomes part of each record.
    """

    def __init__(
        self,
        servers: Sequence[ProcessServer],
        stream: str,
        histories: Sequence[PartitionHistory],
        *,
        name: str,
    ) -> None:
        self.name = name
        self.acked = AckTimes()
        self.duplicates = 0
        self.rejections: Counter[str] = Counter()
        self.unanswered = 0
        self.is_stopping = False
        self._servers = servers
        self._stream = stream
        self._histories = histories
        self._sent = 0
        self._acked_ends = [0] * len(histories)
        self._open: deque[Sent] = deque()

    @property
    def steps(self) -> int:
        """The number of acknowledged records."""
        return self.acked.count

    async def run(self) -> None:
        """Append until told to stop, and wait for all acks.

        Raises:
            ViolationError: a record timed out, or an ack is wrong.
        """
        client = await asyncio.to_thread(strandline.connect, addresses(self._servers))
        try:
            producer = await asyncio.to_thread(
                client.producer, self._stream, delivery_timeout_s=DELIVERY_TIMEOUT_S
            )
            try:
                while self._open or not self.is_stopping:
                    self._send(producer)
                    await self._hear()
            finally:
                producer.abandon()
        finally:
            client.close()

    def _send(self, producer: Producer) -> None:
        """Append as many records as may be in flight."""
        while len(self._open) < UNDER_WAY and not self.is_stopping:
            value = f"{self.name} {self._sent}".encode()
            partition = self._sent % len(self._histories)
            self._open.append(Sent(value, partition, producer.append(value, partition=partition)))
            self._sent += 1

    async def _hear(self) -> None:
        """Wait for the oldest ack; acks of a partition come in order."""
        if not self._open:
            return
        value, partition, ack = self._open.popleft()
        try:
            at = await asyncio.wrap_future(ack)
        except StrandlineError as error:
            self.rejections[expected_failure(error)] += 1
            self._histories[partition].refused(value)
            await asyncio.sleep(RETRY_S)
            return
        floor = self._acked_ends[partition]
        self._histories[partition].ack(value, at.offset, floor=floor)
        self._acked_ends[partition] = at.offset + 1
        self.acked.note()


class GroupClient:
    """A member of the consumer group; runs in a thread.

    Args:
        servers: brokers to connect to.
        stream: the stream to consume.
        histories: the group's history of each partition.
        name: its name in the histories.
        stay_s: how long it is a member before it leaves and joins again, in seconds.
    """

    def __init__(
        self,
        servers: Sequence[ProcessServer],
        stream: str,
        histories: Sequence[GroupHistory],
        *,
        name: str,
        stay_s: float,
    ) -> None:
        self.name = name
        self.stays = 0
        self.records = 0
        self.errors: Counter[str] = Counter()
        self.is_stopping = False
        self._servers = servers
        self._stream = stream
        self._histories = histories
        self._stay_s = stay_s

    @property
    def steps(self) -> int:
        """The number of processed records."""
        return self.records

    def run(self) -> None:
        """Consume as a member until told to stop.

        Raises:
            ViolationError: a record, an offset or an error that must not occur.
        """
        while not self.is_stopping:
            try:
                self._consume()
            except StrandlineError as error:
                self.errors[expected(error, *NOT_OURS, *FULL)] += 1
                time.sleep(RETRY_S)

    def _consume(self) -> None:
        options = {"commit_interval_s": None, "session_timeout_s": SESSION_S}
        with (
            strandline.connect(addresses(self._servers)) as client,
            client.consumer(GROUP, self._stream, on_assigned=self._begin, **options) as consumer,
        ):
            self.stays += 1
            ends_s = time.monotonic() + self._stay_s
            while not self.is_stopping and time.monotonic() < ends_s:
                self._process(consumer)
                self._commit(consumer)

    def _begin(self, consumer: Consumer, partitions: Partitions) -> None:
        places = consumer.positions()
        for name in partitions:
            self._histories[name.partition].begins(self.name, places[name])

    def _process(self, consumer: Consumer) -> None:
        for batch in consumer.poll(POLL_S):
            offsets, values = (
                batch.records.column(name).to_pylist() for name in ("offset", "value")
            )
            self._histories[batch.partition].processed(self.name, offsets, values)
            self.records += len(values)

    def _commit(self, consumer: Consumer) -> None:
        """Commit; a failed commit is repeated with the next, or another member processes anew."""
        places = consumer.positions()
        try:
            consumer.commit()
        except StrandlineError as error:
            self.errors[expected(error, *NOT_OURS, *FULL)] += 1
            return
        for name, at in places.items():
            self._histories[name.partition].commits(at)


def expected_failure(error: StrandlineError) -> str:
    """Return the error's code if a producer may fail a record with it, which is then not stored.

    Raises:
        ViolationError: the producer had to retry until the record was stored.
    """
    if isinstance(error, DiskFullError):
        return error.code
    raise ViolationError(f"a producer failed a record: {error.code}: {error}") from error


def positions(servers: Sequence[ProcessServer], stream: str, partitions: int) -> list[int | None]:
    """Return the group's committed offsets, as its coordinator reports them.

    Raises:
        StrandlineError: the coordinator does not answer.
    """
    with strandline.connect(addresses(servers)) as client:
        found = client.groups.committed_offsets(GROUP)
    return [found.get(PartitionName(stream, number)) for number in range(partitions)]
