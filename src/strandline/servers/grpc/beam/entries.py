"""Conversion of records to log entries, in replies of limited size. Pure."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from strandline.servers.grpc._generated import logspec_pb2 as pb
from strandline.servers.grpc.grpc_messages import framed

COLUMNS: Final = ("offset", "value")
REPLY_BYTES_MAX: Final = 1 << 20
"""The limit of a reply with more than one entry; standard clients accept 4 MiB."""
REPLY_ENTRIES_MAX: Final = 8192


def entries_of(batches: list[pa.RecordBatch], start: int) -> Iterator[pb.Entry]:
    """Yield the entries from ``start`` to the last record, with skip entries in the gaps."""
    expected = start
    for batch in batches:
        offsets, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        for offset, value in zip(offsets, values, strict=True):
            yield from skips(expected, offset)
            index = offset + 1
            yield (
                pb.Entry(index=index, skip=True)
                if value is None
                else pb.Entry(index=index, data=value)
            )
            expected = index


def skips(start: int, stop: int) -> Iterator[pb.Entry]:
    """Yield skip entries for the offsets from ``start`` up to ``stop``."""
    for offset in range(start, stop):
        yield pb.Entry(index=offset + 1, skip=True)


def replies(entries: Iterator[pb.Entry]) -> Iterator[pb.ReadReply]:
    """Yield replies that contain the entries; every client accepts their size."""
    batch: list[pb.Entry] = []
    size = 0
    for entry in entries:
        entry_bytes = len(entry.data)
        is_full = size + entry_bytes > REPLY_BYTES_MAX or len(batch) >= REPLY_ENTRIES_MAX
        if batch and is_full:
            yield pb.ReadReply(ok=pb.ReadReply.OK(entries=batch))
            batch, size = [], 0
        batch.append(entry)
        size += entry_bytes
    if batch:
        yield pb.ReadReply(ok=pb.ReadReply.OK(entries=batch))


def framed_replies(entries: Iterator[pb.Entry]) -> bytes:
    """Return the replies with gRPC's framing."""
    return b"".join(framed(reply.SerializeToString()) for reply in replies(entries))
