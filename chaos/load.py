"""Publishers and readers of a chaos run, which record their observations in histories.

Rules: a publisher retries each record with the same ``Nats-Msg-Id`` until it is acked, at whichever
broker's nats-server answers. With a window of one it waits for each ack, so its records must be in
order. A reader continues where it was, perhaps at another replica: it must see one log. A publish
has three outcomes: acked, rejected, or no answer, after which the record may be stored or not. An
error that no fault may cause is a broken promise.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from chaos.cluster import HOST
from strandline.errors import (
    DisconnectedError,
    NotEnoughReplicasError,
    NotLeaderError,
    RequestTimeoutError,
    ShuttingDownError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)
from strandline.servers.nats.protocol import (
    Parser,
    Ping,
    encode_publish_with_headers,
    encode_subscribe,
)
from strandline.testing.history import PartitionHistory, ViolationError
from strandline.testing.process import ProcessServer
from strandline.testing.replica import ReplicaReader

ANSWER_TIMEOUT_S: Final = 0.5
CONNECT_TIMEOUT_S: Final = 1.0
SILENCES_MAX: Final = 2
"""After this many windows without any answer a publisher tries another nats-server."""
RETRY_S: Final = 0.02
READ_TIMEOUT_S: Final = 1.0
ROAM_AFTER: Final = 5
PAYLOAD_MAX: Final = 1 << 20
OPTIONS: Final = b'{"verbose":false,"pedantic":false,"headers":true,"echo":false,"protocol":1}'
PASSING: Final = (
    DisconnectedError,
    NotEnoughReplicasError,
    NotLeaderError,
    RequestTimeoutError,
    ShuttingDownError,
    UnknownStreamError,  # by a broker that has just started
)
"""Errors that a client may receive during faults, besides ``UnavailableError``."""


def expected(error: StrandlineError, *others: type[StrandlineError]) -> str:
    """Return an error's code if the faults may cause it.

    Args:
        error: the error that a client received.
        others: classes that this client may receive besides ``PASSING``.

    Raises:
        ViolationError: no fault may cause the error.
    """
    if type(error) is UnavailableError or isinstance(error, PASSING + others):
        return error.code
    raise ViolationError(f"an error that no fault may cause: {error.code}: {error}") from error


class AckTimes:
    """The number of acks, and the longest time between two of them, by the monotonic clock."""

    def __init__(self) -> None:
        self.count = 0
        self.silence_s_max = 0.0
        self._last_s = time.monotonic()

    def note(self) -> None:
        """Note an ack."""
        now_s = time.monotonic()
        self.silence_s_max = max(self.silence_s_max, now_s - self._last_s)
        self._last_s = now_s
        self.count += 1

    def forget(self) -> None:
        """Start a new maximum; a silence that began before still counts in full."""
        self.silence_s_max = 0.0


class ChaosPublisher:
    """Publishes numbered records to one subject until told to stop, each until it is acked.

    Args:
        servers: brokers to publish at, whose ports do not change.
        subject: the subject of the partition.
        history: the history of the partition.
        name: becomes part of each record and message id.
        window: how many records are in flight.
        padding: records get 0 to 6 times this many extra bytes.
        answer_timeout_s: how long to wait for acks before retrying.
        together: records the acks of several publishers.
    """

    def __init__(
        self,
        servers: Sequence[ProcessServer],
        subject: str,
        history: PartitionHistory,
        *,
        name: str,
        window: int = 1,
        padding: int = 100,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        together: AckTimes | None = None,
    ) -> None:
        self.name = name
        self.acked = AckTimes()
        self.duplicates = 0
        self.rejections: Counter[str] = Counter()
        self.unanswered = 0
        self.is_stopping = False
        self._servers = servers
        self._subject = subject.encode()
        self._history = history
        self._window = window
        self._padding = padding
        self._answer_timeout_s = answer_timeout_s
        self._together = together
        self._open: dict[int, int] = {}
        self._sent = 0
        self._acked_end = 0

    async def run(self) -> None:
        """Publish at one server after the other."""
        turn = 0
        while not self._is_done:
            server = self._servers[turn % len(self._servers)]
            turn += 1
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    port = server.ready["nats_port"]
                    reader, writer = await asyncio.open_connection(HOST, port)
            except (OSError, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._publish(reader, writer, f"_INBOX.{self.name}.{turn}".encode())
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(RETRY_S)
            finally:
                writer.transport.abort()

    @property
    def steps(self) -> int:
        """The number of acknowledged records."""
        return self.acked.count

    @property
    def _is_done(self) -> bool:
        return self.is_stopping and not self._open

    async def _publish(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: bytes
    ) -> None:
        """Publish one window after another until the server is silent or disconnects."""
        writer.write(b"CONNECT %b\r\n%b" % (OPTIONS, encode_subscribe(inbox + b".*", b"1")))
        parser, silences = Parser(PAYLOAD_MAX, from_client=False), 0
        while not self._is_done and silences <= SILENCES_MAX:
            while len(self._open) < self._window and not self.is_stopping:
                self._open[self._sent] = self._acked_end
                self._sent += 1
            writer.write(b"".join(self._encoded(number, inbox) for number in self._open))
            await writer.drain()
            before = self.acked.count
            waiting = set(self._open)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._answer_timeout_s):
                    while waiting:
                        await self._take_answers(reader, writer, parser, waiting=waiting)
            self.unanswered += len(waiting)
            silences = 0 if self.acked.count > before else silences + 1
            if self._open:
                await asyncio.sleep(RETRY_S)

    def _encoded(self, number: int, inbox: bytes) -> bytes:
        block = f"NATS/1.0\r\nNats-Msg-Id: {self.name}-{number}\r\n\r\n".encode()
        reply = b"%b.%d" % (inbox, number)
        return encode_publish_with_headers(
            self._subject, self._value(number), block=block, reply=reply
        )

    def _value(self, number: int) -> bytes:
        return f"{self.name} {number} ".encode() + bytes(number % 7 * self._padding)

    async def _take_answers(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        parser: Parser,
        *,
        waiting: set[int],
    ) -> None:
        """Read once, and handle every answer.

        Raises:
            ConnectionResetError: the server has closed the connection.
        """
        data = await reader.read(PAYLOAD_MAX)
        if not data:
            raise ConnectionResetError
        for event in parser.feed(data):
            if isinstance(event, Ping):
                writer.write(b"PONG\r\n")
            if not isinstance(event, tuple):
                continue
            number = int(event[0].rpartition(b".")[2])
            answer = json.loads(event[4])
            waiting.discard(number)
            if "error" in answer:
                self.rejections[answer["error"]["description"]] += 1
            elif number in self._open:
                self._take_ack(number, answer)

    def _take_ack(self, number: int, answer: dict[str, object]) -> None:
        offset = int(str(answer["seq"])) - 1
        self._history.ack(self._value(number), offset, floor=self._open.pop(number))
        self._acked_end = max(self._acked_end, offset + 1)
        self.duplicates += bool(answer.get("duplicate"))
        self.acked.note()
        if self._together is not None:
            self._together.note()


class ChaosReader:
    """Reads every partition of a stream from its start until told to stop; runs in a thread.

    It reads only up to the high watermark that the replica has just reported, so an answer that an
    offset does not exist is an error.

    Args:
        servers: replicas to read from; with several, it continues at the next after a few reads.
        stream: the name of the stream.
        histories: the histories of the partitions.
        name: its name in the histories.
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
        self.records = 0
        self.errors: Counter[str] = Counter()
        self.is_stopping = False
        self._servers = servers
        self._stream = stream
        self._histories = histories
        self._next = dict.fromkeys(range(len(histories)), 0)

    @property
    def steps(self) -> int:
        """The number of records read."""
        return self.records

    def is_at(self, ends: Sequence[int]) -> bool:
        """Whether it has read each partition to its end."""
        return [self._next[number] for number in range(len(ends))] == list(ends)

    def run(self) -> None:
        """Read at one replica after the other.

        Raises:
            ViolationError: a record or an error that must not occur.
        """
        turn = 0
        while not self.is_stopping:
            server = self._servers[turn % len(self._servers)]
            turn += 1
            try:
                with ReplicaReader(server.flight, timeout_s=READ_TIMEOUT_S) as replica:
                    self._follow(replica)
            except StrandlineError as error:
                self.errors[expected(error)] += 1
                time.sleep(RETRY_S)

    def _follow(self, replica: ReplicaReader) -> None:
        for _ in range(ROAM_AFTER):
            ends = replica.wait_for(self._stream, self._next, timeout_s=READ_TIMEOUT_S / 2)
            for partition, end in ends.items():
                if end > self._next[partition]:
                    self._take(replica, partition, end)
            if self.is_stopping:
                return

    def _take(self, replica: ReplicaReader, partition: int, end: int) -> None:
        first, columns = self._next[partition], ["offset", "value"]
        batches = replica.read(
            self._stream, partition=partition, start=first, stop=end, columns=columns
        )
        for batch in batches:
            offsets, values = (column.to_pylist() for column in batch.columns)
            self._next[partition] = self._histories[partition].read(self.name, offsets, values)
            self.records += len(values)


def read_log(server: ProcessServer, stream: str, partition: int) -> list[bytes]:
    """Return a whole partition as a replica serves it.

    Raises:
        StrandlineError: the broker does not answer.
    """
    with ReplicaReader(server.flight) as replica:
        batches = replica.read(stream, partition=partition)
        return [value for batch in batches for value in batch.column(0).to_pylist()]
