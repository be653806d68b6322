"""Loads data into a stream quickly, for benchmarks that measure something else.

Rules: values are random, so that nothing can be compressed; every record is acknowledged before a
function returns; bulk data goes through the Python client's pipelined `append_batch`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from benchmarks.broker import Broker
from benchmarks.loadgen import Load, LoadError, run_load
from benchmarks.peers.process import LOOPBACK

if TYPE_CHECKING:
    from strandline.client import Client

TABLE_BYTES: Final = 1 << 20
LOAD_S_MAX: Final = 180.0


@dataclass(frozen=True)
class Shape:
    """Data to read: how many records, and how many bytes each value has."""

    records: int
    value_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return self.records * self.value_bytes


def random_batch(value_bytes: int, rows: int) -> pa.RecordBatch:
    """A record batch with one column, `value`."""
    data = pa.py_buffer(os.urandom(value_bytes * rows))
    fixed = pa.Array.from_buffers(pa.binary(value_bytes), rows, [None, data])
    return pa.RecordBatch.from_arrays([fixed.cast(pa.binary())], names=["value"])


def append_many(
    client: Client, stream: str, shape: Shape, *, progress: Callable[[int], None] | None = None
) -> float:
    """Appends `shape` in batches of about TABLE_BYTES; seconds until all are acknowledged.

    Args:
        client: of the broker.
        stream: with one partition.
        shape: what to append.
        progress: called with the number of records handed over so far.
    """
    rows = max(1, TABLE_BYTES // (shape.value_bytes + 4))
    batch = random_batch(shape.value_bytes, rows)
    started = time.perf_counter()
    with client.producer(stream) as producer:
        for first in range(0, shape.records, rows):
            count = min(rows, shape.records - first)
            producer.append_batch(batch.slice(0, count))
            if progress is not None:
                progress(first + count)
    return time.perf_counter() - started


def append_loaded(
    broker: Broker, subject: str, shape: Shape, *, connections: int = 16, appenders: int = 128
) -> int:
    """Publishes with the native load generator; each appender waits for its own ack.

    With one appender on one connection, each record becomes a batch of its own.

    Returns:
        how many were stored; fewer than asked for if LOAD_S_MAX did not suffice.

    Raises:
        LoadError: the broker refused one.
    """
    load = Load(
        connections=connections,
        appenders=appenders,
        size_bytes=shape.value_bytes,
        seconds=LOAD_S_MAX,
        warmup=0,
        subject=subject,
        max_appends=shape.records,
    )
    result = run_load(load, LOOPBACK, broker.ingest_port)
    if result.errors:
        raise LoadError(f"{result.errors} errors, the first: {result.first_error}")
    return result.replies_total


def end_offset(client: Client, stream: str) -> int:
    """The high watermark of a stream with one partition."""
    [end] = client.offsets(stream, at="latest").values()
    return int(end)


def partition_state(client: Client, stream: str) -> Any:
    """The `PartitionInfo` of a stream with one partition."""
    [state] = client.stream_info(stream).partitions
    return state
