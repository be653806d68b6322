"""The newest record of each key of a stream, as a table: a changelog as what it describes.

Rules: a key whose newest record has no value (a tombstone) is not in the table; records without a
key are left out. Works on whole columns: no Python object is made for a record.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from strandline.client.client import Client

_FOLD_BYTES = 64 << 20
"""Records gathered before those that are superseded among them are dropped."""


def latest_by_key(
    client: "Client", stream: str, *, columns: Sequence[str] | None = None, **filters: Any
) -> pa.Table:
    """The newest record of each key, in the order of their offsets, partition by partition.

    Args:
        client: of the broker.
        stream: its name; a key has to be in one partition alone, as producers see to.
        columns: as ``Client.read`` takes them; None: all.
        **filters: as ``Client.read`` takes them.

    Raises:
        StrandlineError: as ``Client.read``.
    """
    asked = None if columns is None else list(dict.fromkeys([*columns, "key", "value"]))
    found = [
        _latest(client.read(stream, partition=info.partition, columns=asked, **filters))
        for info in client.stream_info(stream).partitions
    ]
    table = pa.concat_tables(found)
    live = table.filter(pc.is_valid(table.column("value")))
    return live if columns is None else live.select(list(columns))


def _latest(reader: pa.RecordBatchReader) -> pa.Table:
    """The newest record of each key of one partition, tombstones among them."""
    kept = reader.schema.empty_table()
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in reader:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= max(_FOLD_BYTES, kept.nbytes):
            kept = _newest(pa.concat_tables([kept, pa.Table.from_batches(waiting, kept.schema)]))
            waiting, waiting_bytes = [], 0
    return _newest(pa.concat_tables([kept, pa.Table.from_batches(waiting, kept.schema)]))


def _newest(table: pa.Table) -> pa.Table:
    """The last row of each key."""
    row_numbers = pa.array(range(table.num_rows), pa.int64())
    rows = pa.table({"key": table.column("key"), "row": row_numbers})
    rows = rows.filter(pc.is_valid(rows.column("key")))
    last = rows.group_by("key").aggregate([("row", "max")]).column("row_max")
    return table.take(last.take(pc.sort_indices(last)))
