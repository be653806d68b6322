"""Reads the copy that one broker keeps, for tests that compare copies.

A client reads one broker's copy, too (``replica="this"``), but only in sync, up to where the leader
is, and on after a lost connection. What a copy has by itself, though it is behind, is told here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import pyarrow as pa

from strandline.api import admin
from strandline.client.connection import BrokerConnection
from strandline.client.reader.reading import BatchStream, read_request

TIMEOUT_S = 10.0


class ReplicaReader:
    """Asks one broker alone; a context.

    Args:
        address: ``host:port`` of its Arrow Flight.
        timeout_s: how long calls may take.

    Raises:
        StrandlineError: from any method: the broker rejects, or cannot be reached.
    """

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._connection = BrokerConnection(address, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ends(self, stream: str) -> dict[int, int]:
        """The high watermark of each partition, as known here."""
        body = admin.OffsetsRequest(name=stream)
        [answer] = self._connection.action(admin.OFFSETS, body)
        return dict(answer.offsets)

    def wait_for(
        self, stream: str, beyond: Mapping[int, int], *, timeout_s: float = 1.0
    ) -> dict[int, int]:
        """Wait until a high watermark here is above the offset given for it; all of them."""
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
        """Records of a partition from an offset on, to another or to what is committed here."""
        request = read_request(stream, partition=partition, start=start, stop=stop, columns=columns)
        yield from BatchStream(self._connection, request).batches()
