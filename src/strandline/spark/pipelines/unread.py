"""How long the oldest record has waited that a pipeline has not read yet, as the broker knows it.

Rules: asks only about partitions that the pipeline is behind of, a record each; a report must never
end a pipeline, so what cannot be asked now is left out. Must not know Spark.
"""

import time
from collections.abc import Mapping

from strandline.errors import StrandlineError
from strandline.spark.connection import client_of


def oldest_unread_ms(server: str, unread: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """The age of each partition's first unread record, by ``stream/partition``.

    Args:
        server: a broker.
        unread: stream and partition, and the offset where the pipeline goes on.
    """
    found = {}
    for (stream, partition), offset in unread.items():
        stored_ns = _stored_ns(server, stream, place=(partition, offset))
        if stored_ns is not None:
            found[f"{stream}/{partition}"] = max(0, time.time_ns() - stored_ns) // 1_000_000
    return found


def _stored_ns(server: str, stream: str, *, place: tuple[int, int]) -> int | None:
    """When the first record at or after a place was stored; None: none is there, or no answer."""
    partition, offset = place
    try:
        table = (
            client_of(server)
            .read(stream, partition=partition, start=offset, records_max=1, columns=["timestamp"])
            .read_all()
        )
    except StrandlineError:
        return None  # told with the next batch, when the broker is back
    return int(table.column("timestamp").cast("int64")[0].as_py()) if table.num_rows else None
