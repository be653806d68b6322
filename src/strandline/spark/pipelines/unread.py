"""The age of the oldest record that a pipeline has not read yet.

Rules: asks only about partitions with a lag, one record each; a report must never end a pipeline,
so a failed query is left out. Must not know Spark.
"""

import time
from collections.abc import Mapping

from strandline.errors import StrandlineError
from strandline.spark.connection import client_of


def oldest_unread_ms(server: str, unread: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return the age of each partition's first unread record, by ``stream/partition``.

    Args:
        server: the address of a broker.
        unread: the next offset to read of each stream and partition.
    """
    found = {}
    for (stream, partition), offset in unread.items():
        stored_ns = _stored_ns(server, stream, place=(partition, offset))
        if stored_ns is not None:
            found[f"{stream}/{partition}"] = max(0, time.time_ns() - stored_ns) // 1_000_000
    return found


def _stored_ns(server: str, stream: str, *, place: tuple[int, int]) -> int | None:
    """Return the time at which the first record at or after an offset was stored; None: unknown."""
    partition, offset = place
    try:
        table = (
            client_of(server)
            .read(stream, partition=partition, start=offset, records_max=1, columns=["timestamp"])
            .read_all()
        )
    except StrandlineError:
        return None  # reported with a later batch
    return int(table.column("timestamp").cast("int64")[0].as_py()) if table.num_rows else None
