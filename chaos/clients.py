"""Our own client in a chaos run: an idempotent producer, and members of a consumer group.

Rules: the producer gives each record to the client once and leaves retries to it, so a record may
be stored once and in the order given. A member processes what it is handed, commits, and goes on;
after a while, or an error, it leaves and joins again, as a program would that is started again: so
whoever gets a partition has to begin where the group has come to.
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
"""Longer than any fault lasts: a record given up is a broken promise."""
FULL: Final = (DiskFullError, LogPoisonedError)
"""What comes of a full disk is told at once, without retries."""
NOT_OURS: Final = (UnknownMemberError, StaleMemberError, StillLoadingError)
"""A member hears that others consume what it had, or that its coordinator has just begun."""
GROUP: Final = "chaos"
SESSION_S: Final = 6.0
POLL_S: Final = 0.5


def addresses(servers: Sequence[ProcessServer]) -> str:
    """All brokers, as ``strandline.connect`` takes them."""
    return ",".join(server.flight for server in servers)


class Sent(NamedTuple):
    """A record on its way."""

    value: bytes
    partition: int
    ack: "Future[Ack]"


class OwnProducer:
    """Appends numbered records to all partitions in rotation, by an idempotent producer.

    Args:
        servers: brokers to connect to.
        stream: to append to.
        histories: of its partitions.
        name: part of each record.
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
        """Append until told to stop, and hear of everything.

        Raises:
            ViolationError: a record was given up, or an ack is wrong.
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
        """Append as many as may be in flight."""
        while len(self._open) < UNDER_WAY and not self.is_stopping:
            value = f"{self.name} {self._sent}".encode()
            partition = self._sent % len(self._histories)
            self._open.append(Sent(value, partition, producer.append(value, partition=partition)))
            self._sent += 1

    async def _hear(self) -> None:
        """Wait for the oldest ack: each comes after those before it in its partition."""
        if not self._open:
            return
        value, partition, ack = self._open.popleft()
        try:
            at = await asyncio.wrap_future(ack)
        except StrandlineError as error:
            self.rejections[given_up(error)] += 1
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
        stream: to consume.
        histories: of the group, for each partition.
        name: who it is in the histories.
        stay_s: after so long it leaves, and joins again.
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
        """Be a member until told to stop.

        Raises:
            ViolationError: records, positions or errors that must not be.
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
        """Commit; a failed commit is repeated with the next, or another member processes again."""
        places = consumer.positions()
        try:
            consumer.commit()
        except StrandlineError as error:
            self.errors[expected(error, *NOT_OURS, *FULL)] += 1
            return
        for name, at in places.items():
            self._histories[name.partition].commits(at)


def given_up(error: StrandlineError) -> str:
    """The code of an error for which a producer may give a record up, which is not stored then.

    Raises:
        ViolationError: it had to try on until the record is stored.
    """
    if isinstance(error, DiskFullError):
        return error.code
    raise ViolationError(f"a record was given up: {error.code}: {error}") from error


def positions(servers: Sequence[ProcessServer], stream: str, partitions: int) -> list[int | None]:
    """Return the group's committed offsets, as its coordinator reports them.

    Raises:
        StrandlineError: it cannot be asked.
    """
    with strandline.connect(addresses(servers)) as client:
        found = client.groups.committed_offsets(GROUP)
    return [found.get(PartitionName(stream, number)) for number in range(partitions)]
