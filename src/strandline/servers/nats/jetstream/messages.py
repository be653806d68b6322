"""Records as NATS messages: single ones, or a run of them by column.

Rules: runs are for deliveries, where the time spent on each record counts; a column becomes a list
with one call. Pure.
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import pyarrow as pa

from strandline.errors import InvalidRecordError
from strandline.record.codec import Headers
from strandline.servers.nats.headers import encode_headers
from strandline.servers.nats.ingest import KEY_HEADER
from strandline.servers.nats.jetstream.times import format_time

COLUMNS: Final = ["offset", "timestamp", "subject", "key", "value", "headers"]


class StoredMessage(NamedTuple):
    """A record as a NATS message."""

    sequence: int
    subject: str
    time_ns: int
    block: bytes
    """The header block; empty if the record has no headers."""
    payload: bytes

    @property
    def in_json(self) -> dict[str, object]:
        """The message as an answer to STREAM.MSG.GET has it."""
        found: dict[str, object] = {"subject": self.subject, "seq": self.sequence}
        if self.block:
            found["hdrs"] = base64.b64encode(self.block).decode()
        if self.payload:
            found["data"] = base64.b64encode(self.payload).decode()
        return {**found, "time": format_time(self.time_ns)}


class MessageRun(NamedTuple):
    """Records in order, by column; the columns are the fields of ``StoredMessage``."""

    sequences: list[int]
    subjects: list[str]
    times_ns: list[int]
    blocks: list[bytes]
    payloads: list[bytes]

    @classmethod
    def of(cls, messages: Iterable[StoredMessage]) -> "MessageRun":
        """Return messages as a run."""
        columns: list[list[Any]] = [list(column) for column in zip(*messages, strict=True)]
        return cls(*columns) if columns else cls([], [], [], [], [])

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages one by one."""
        return map(StoredMessage, *self)

    def between(self, start: int, stop: int) -> "MessageRun":
        """Return the messages with indexes from ``start`` to ``stop``."""
        columns: list[Any] = [column[start:stop] for column in self]
        return MessageRun(*columns)


def joined(runs: Sequence[MessageRun]) -> MessageRun:
    """Return several runs as one."""
    if len(runs) == 1:
        return runs[0]
    columns = [list(chain(*several)) for several in zip(*runs, strict=True)]
    return MessageRun(*columns) if columns else MessageRun.of(())


def run_of(batch: pa.RecordBatch) -> MessageRun:
    """Return the records of a batch with ``COLUMNS``."""
    offsets, times, subjects, keys, values, headers = batch.columns
    names = subjects.dictionary.to_pylist()
    return MessageRun(
        [offset + 1 for offset in offsets.to_pylist()],
        [names[index] for index in subjects.indices.to_pylist()],
        times.cast(pa.int64()).to_pylist(),
        _blocks(keys, headers),
        [value or b"" for value in values.to_pylist()],
    )


def _blocks(keys: pa.Array, headers: pa.Array) -> list[bytes]:
    """Return the header block of each record."""
    if keys.null_count == headers.null_count == len(keys):
        return [b""] * len(keys)
    return list(map(header_block, keys.to_pylist(), headers.to_pylist()))


def header_block(key: bytes | None, headers: Headers | None) -> bytes:
    """Return a record's headers and key as a header block; empty if it has neither.

    A header that NATS cannot carry, for example with a line break, is left out.
    """
    pairs = list(headers or ())
    if key is not None:
        pairs.append((KEY_HEADER, key))
    if not pairs:
        return b""
    try:
        return encode_headers(pairs)
    except InvalidRecordError:
        return encode_headers([pair for pair in pairs if _is_encodable(pair)])


def _is_encodable(pair: tuple[str, bytes]) -> bool:
    try:
        encode_headers([pair])
    except InvalidRecordError:
        return False  # the receiver gets the other headers
    return True
