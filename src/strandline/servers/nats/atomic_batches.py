"""Atomic batches of JetStream's publishers: up to 1,000 messages that are stored all or not at all.

    header                meaning
    Nats-Batch-Id         the batch's name, of 64 characters at most
    Nats-Batch-Sequence   the message's number in the batch: 1, 2, 3, …
    Nats-Batch-Commit     1: store the batch, of which this is the last message; eob: store the
                          batch without this message

Rules: messages wait in the leader's memory; they are discarded if the leader fails, or if no
message of the batch arrives for ten seconds. Before the commit, a message with a reply subject gets
an empty reply. The first error ends the batch. All messages of a batch go to one partition. The
headers stay in the records.
"""

import asyncio
from typing import Final, NamedTuple, cast

import msgspec

from strandline.broker.routing import PartitionPort
from strandline.broker.write_path.atomic import AtomicRecord
from strandline.errors import StrandlineError
from strandline.record.codec import Headers
from strandline.servers.nats.replies import ReplySink, error_body, is_left_to_others
from strandline.types import Offset, PartitionName

ID_HEADER: Final = "Nats-Batch-Id"
SEQUENCE_HEADER: Final = "Nats-Batch-Sequence"
COMMIT_HEADER: Final = "Nats-Batch-Commit"
LEVEL_HEADER: Final = "Nats-Required-Api-Level"
LEVEL_MAX: Final = 2
COMMIT: Final = b"1"
END: Final = b"eob"
ID_CHARACTERS_MAX: Final = 64
MESSAGES_MAX: Final = 1_000
OPEN_MAX: Final = 50
"""The limit of open batches of a stream."""
OPEN_MAX_OF_ALL: Final = 1_000
BYTES_MAX: Final = 256 << 20
"""The limit of memory for all open batches."""
MESSAGE_OVERHEAD_BYTES: Final = 256
TIMEOUT_S: Final = 10.0
DIGITS_MAX: Final = 9


class BatchError(Exception):
    """An error that ends a batch, with nats-server's code and text."""

    def __init__(self, err_code: int, description: str, code: int = 400) -> None:
        super().__init__(description)
        self.body = {"code": code, "err_code": err_code, "description": description}


def _incomplete() -> BatchError:
    return BatchError(10176, "atomic publish batch is incomplete")


class BatchMessage(NamedTuple):
    """A message of a batch, and the values of its batch headers; empty if it lacks one."""

    stream: str
    partition: PartitionPort
    record: AtomicRecord
    unsupported: str
    """The name of a header that batches do not support; empty if it has none."""
    batch_id: str
    sequence_text: bytes
    commit: bytes
    """The header's value; if it is not empty, the message ends the batch."""
    level: bytes
    size: int
    """About how many bytes of memory the message takes."""

    @classmethod
    def of(
        cls, stream: str, partition: PartitionPort, *, record: AtomicRecord, unsupported: str
    ) -> "BatchMessage":
        """Return a message with the values of its batch headers."""
        pairs = record.headers or []
        found, size = dict(reversed(pairs)), MESSAGE_OVERHEAD_BYTES
        for name, value in pairs:
            size += len(name) + len(value)
        return cls(
            stream,
            partition,
            record,
            unsupported,
            found.get(ID_HEADER, b"").decode(errors="replace"),
            found.get(SEQUENCE_HEADER, b""),
            found.get(COMMIT_HEADER, b""),
            found.get(LEVEL_HEADER, b""),
            size + len(record.value or b""),
        )

    def sequence(self) -> int:
        """Return the message's number in its batch.

        Raises:
            BatchError: the message has no number, or a header that is not valid in a batch.
        """
        if not 0 < len(self.batch_id) <= ID_CHARACTERS_MAX:
            raise BatchError(10179, "atomic publish batch ID is invalid")
        level = self.level or b"0"
        if not level.isdigit() or len(level) > DIGITS_MAX or int(level) > LEVEL_MAX:
            raise BatchError(10185, "JetStream minimum api level required", 412)
        text = self.sequence_text
        if not text.isdigit() or len(text) > DIGITS_MAX:
            raise BatchError(10175, "atomic publish sequence is missing")
        if self.commit not in (b"", COMMIT, END):
            raise BatchError(10200, "atomic publish batch commit is invalid")
        if self.unsupported:
            raise BatchError(10177, f"atomic publish unsupported header used: {self.unsupported}")
        return int(text)


class _OpenBatch:
    """A batch that has not been committed."""

    def __init__(self, partition: PartitionPort) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.records: list[AtomicRecord] = []
        self.size = 0
        self.touched_s = 0.0


class AtomicBatches:
    """The open batches at one broker."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], _OpenBatch] = {}
        self._size = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, message: BatchMessage, reply: bytes | None, sink: ReplySink) -> None:
        """Handle a message of a batch whose partition this broker leads.

        Args:
            message: the message.
            reply: the message's reply subject, or None.
            sink: receives the answers.
        """
        key = message.stream, message.batch_id
        try:
            self._add(key, message)
        except BatchError as error:
            self._drop(key)
            if reply is not None:
                sink.deliver(reply, _error(message.stream, error.body))
            return
        if message.commit:
            batch = self._open[key]
            self._drop(key)
            answer = _BatchAckSink(
                sink, message.stream, batch_id=message.batch_id, count=len(batch.records)
            )
            batch.partition.append_atomic(batch.records, ack_sink=answer, token=reply)
        elif reply is not None:
            sink.deliver(reply, b"")

    def _add(self, key: tuple[str, str], message: BatchMessage) -> None:
        """Add a message to its batch.

        Raises:
            BatchError: the message cannot follow, or a limit is exceeded.
        """
        sequence, is_end = message.sequence(), message.commit == END
        if sequence == 1 and not is_end:
            self._drop(key)
            self._begin(key, message.partition)
        batch = self._open.get(key)
        if batch is None or sequence != len(batch.records) + 1:
            raise _incomplete()
        if batch.partition is not message.partition:
            raise BatchError(10052, "all messages of an atomic batch must go to one partition", 500)
        if batch.epoch != batch.partition.leader_epoch:
            raise _incomplete()  # another broker has led the partition in between
        if is_end:
            last = batch.records[-1]
            headers: Headers = [*(last.headers or ()), (COMMIT_HEADER, COMMIT)]
            batch.records[-1] = last._replace(headers=headers)
            return
        if sequence > MESSAGES_MAX:
            raise BatchError(10199, f"atomic publish batch is too large: {MESSAGES_MAX}")
        if self._size + message.size > BYTES_MAX:
            raise BatchError(10210, "too many bytes of open atomic publish batches", 429)
        batch.records.append(message.record)
        batch.size += message.size
        self._size += message.size
        batch.touched_s = asyncio.get_running_loop().time()

    def _begin(self, key: tuple[str, str], partition: PartitionPort) -> None:
        of_stream = sum(stream == key[0] for stream, _ in self._open)
        if of_stream >= OPEN_MAX or len(self._open) >= OPEN_MAX_OF_ALL:
            raise BatchError(10210, "too many inflight atomic publish batches", 429)
        self._open[key] = _OpenBatch(partition)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TIMEOUT_S, self._expire)

    def _drop(self, key: tuple[str, str]) -> None:
        """Forget a batch, if it exists."""
        batch = self._open.pop(key, None)
        if batch is not None:
            self._size -= batch.size

    def _expire(self) -> None:
        """Drop batches that have received no message for too long."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() - TIMEOUT_S
        for key in [key for key, batch in self._open.items() if batch.touched_s <= until_s]:
            self._drop(key)
        self._timer = loop.call_later(TIMEOUT_S / 2, self._expire) if self._open else None


class _BatchAckSink:
    """The ack sink of a committed batch; its token is the reply subject."""

    def __init__(self, sink: ReplySink, stream: str, *, batch_id: str, count: int) -> None:
        self._sink = sink
        self._stream = stream
        self._batch_id = batch_id
        self._count = count

    def acked(
        self, token: object, partition: PartitionName, offset: Offset, *, duplicate: bool
    ) -> None:
        """Answer that the whole batch is stored."""
        assert not duplicate, "a repeated batch is rejected"
        if token is None:
            return
        answer: dict[str, object] = {"stream": self._stream, "seq": offset + self._count}
        if partition.partition:
            answer["partition"] = partition.partition
        answer |= {"batch": self._batch_id, "count": self._count}
        self._sink.deliver(cast("bytes", token), msgspec.json.encode(answer))

    def rejected(self, token: object, error: StrandlineError) -> None:
        """Answer that no message of the batch is stored."""
        if token is not None and not is_left_to_others(error, self._sink):
            self._sink.deliver(cast("bytes", token), _error(self._stream, error_body(error)))


def _error(stream: str, body: dict[str, object]) -> bytes:
    return msgspec.json.encode({"error": body, "stream": stream, "seq": 0})
