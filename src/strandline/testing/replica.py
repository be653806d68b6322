"""Reads the replica of one broker, for tests that compare replicas.

A client can read one broker's replica, too (``replica="this"``), but only while it is in sync, and
it reconnects after a lost connection. This module reads what the replica itself has, even if it
lags.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import pyarrow as pa

from strandline.api import admin
from strandline.client.connection import BrokerConnection
from strandline.client.reader.reading import BatchStream, read_request

TIMEOUT_S = 10.0


class ReplicaReader:
    """Reads from one broker only; a context manager.

    Args:
        address: the ``host:port`` of the broker's Arrow Flight.
        timeout_s: how long calls may take.

    Raises:
        StrandlineError: raised by any method: the broker rejects the call, or cannot be reached.
    """

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = BrokerConnection(address, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ends(self, stream: str) -> dict[int, int]:
        """Return the high watermark of each partition, as far as this broker knows."""
        body = admin.OffsetsRequest(name=stream)
        [answer] = self._connection.action(admin.OFFSETS, body)
        return dict(answer.offsets)

    def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait until this broker has one of the high watermarks above its offset; return all."""
        body = admin.WaitRequest(
            name=stream, beyond=dict(beyond), wait_ms_max=int(timeout_s * 1000)
        )
        [answer] = self._connection.action(admin.WAIT_BEYOND, body, wait_s=timeout_s)
        return dict(answer.offsets)

    def read(
        self,
        stream: str,
        *,
        partition: int = 0,
        start: int = 0,
        stop: int | None = None,
        columns: Sequence[str] = ("value",),
    ) -> Iterator[pa.RecordBatch]:
        """Yield a partition's records from ``start`` to ``stop``, or to the high watermark."""
        request = read_request(stream, partition=partition, start=start, stop=stop, columns=columns)
        yield from BatchStream(self._connection, request).batches()
