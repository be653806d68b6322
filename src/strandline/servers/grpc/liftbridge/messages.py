"""Encoding of records as Liftbridge's ``Message`` for gRPC, some hundred thousand per second.

It is written by hand, because protobuf's objects take several times as long per record. Parts that
are equal in many records are encoded once. A test compares the result with protobuf's.
"""

from typing import Final

import pyarrow as pa

from strandline.record.protobuf_wire import Scalar, put_field, put_varint
from strandline.servers.grpc.grpc_messages import PREFIX
from strandline.types import PartitionName

COLUMNS: Final = ("offset", "timestamp", "subject", "key", "value", "headers")
REPLY: Final = "reply"
SUBJECT: Final = "subject"
REMEMBERED_MAX: Final = 4096
"""The limit of cached encodings, each for subjects and for lengths of values."""

_OFFSET = b"\x08"
_KEY = 2
_VALUE = b"\x1a"
_TIMESTAMP = b"\x20"
_STREAM, _PARTITION, _SUBJECT, _REPLY_SUBJECT, _HEADERS = 5, 6, 7, 8, 9
_SINGLE = [bytes((low,)) for low in range(128)]
_CONTINUED = [bytes((low | 128,)) for low in range(128)]

Headers = list[tuple[str, bytes]]


def _varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


class MessageEncoder:
    """An encoder for one partition's records; used by one thread at a time.

    Args:
        name: the partition.
    """

    def __init__(self, name: PartitionName) -> None:
        opening = bytearray()
        put_field(opening, _STREAM, scalar=Scalar.STRING, value=name.stream)
        put_field(opening, _PARTITION, scalar=Scalar.INT, value=name.partition)
        self._opening = bytes(opening)
        self._tails: dict[str, bytes] = {}
        self._lengths: dict[int, bytes] = {}
        self._high = -1
        self._high_bytes = b""
        self._last_ns = -1
        self._last_ns_bytes = b""

    def encode(self, batches: list[pa.RecordBatch]) -> bytes:
        """Return batches with the columns ``COLUMNS`` as framed messages."""
        parts: list[bytes] = []
        for batch in batches:
            self._encode_batch(batch, parts)
        return b"".join(parts)

    def _encode_batch(self, batch: pa.RecordBatch, parts: list[bytes]) -> None:
        offsets, timestamps, subjects, keys, values, headers = batch.columns
        tails = [self._tail(subject) for subject in subjects.dictionary.to_pylist()]
        is_plain = keys.null_count == len(keys) and headers.null_count == len(headers)
        lengths = self._lengths
        rows = zip(
            offsets.to_pylist(),
            timestamps.cast(pa.int64()).to_pylist(),
            subjects.indices.to_pylist(),
            values.to_pylist(),
            strict=True,
        )
        extras = None if is_plain else zip(keys.to_pylist(), headers.to_pylist(), strict=True)
        names = None if is_plain else subjects.dictionary.to_pylist()
        for offset, timestamp, index, value, *_ in rows:
            tail, content = tails[index], value or b""
            if extras is not None and names is not None:
                key, pairs = next(extras)
                if key is not None or pairs:
                    tail = self._decorated(names[index], key, pairs)
            size = len(content)
            head = lengths.get(size) or self._length(size)
            if offset >> 7 != self._high:
                self._high = offset >> 7
                self._high_bytes = _varint(self._high)
            if timestamp != self._last_ns:
                self._last_ns = timestamp
                self._last_ns_bytes = _TIMESTAMP + _varint(timestamp)
            if offset < 128:
                body = b"".join(
                    (_OFFSET, _SINGLE[offset], self._last_ns_bytes, tail, head, content)
                )
            else:
                low = _CONTINUED[offset & 127]
                body = b"".join(
                    (_OFFSET, low, self._high_bytes, self._last_ns_bytes, tail, head, content)
                )
            parts.append(PREFIX.pack(0, len(body)))
            parts.append(body)

    def _length(self, size: int) -> bytes:
        """Encode the tag and the length of a value."""
        if len(self._lengths) >= REMEMBERED_MAX:
            self._lengths.clear()
        head = self._lengths[size] = _VALUE + _varint(size)
        return head

    def _tail(self, subject: str) -> bytes:
        """Encode the fields that all records of one subject without headers share."""
        known = self._tails.get(subject)
        if known is None:
            if len(self._tails) >= REMEMBERED_MAX:
                self._tails.clear()
            known = self._tails[subject] = self._decorated(subject, None, None)
        return known

    def _decorated(self, subject: str, key: bytes | None, pairs: Headers | None) -> bytes:
        """Encode stream, partition, subject, key and headers, including subject and reply."""
        headers = dict(pairs or ())
        reply = headers.get(REPLY) or b""
        headers |= {SUBJECT: subject.encode(), REPLY: reply}
        out = bytearray(self._opening)
        put_field(out, _KEY, scalar=Scalar.BYTES, value=key or b"")
        put_field(out, _SUBJECT, scalar=Scalar.STRING, value=subject)
        text = reply.decode(errors="replace")
        put_field(out, _REPLY_SUBJECT, scalar=Scalar.STRING, value=text)
        put_field(out, _HEADERS, scalar=Scalar.ENTRIES, value=headers.items())
        return bytes(out)
