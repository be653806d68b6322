"""The newest record of each key of a stream, as a table.

Rules: a key whose newest record has no value (a tombstone) is left out, and so are records without
a key. Works on whole columns, without a Python object for each record.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline import arrow_compute as pc

if TYPE_CHECKING:
    from strandline.client.client import Client

FOLD_BYTES = 64 << 20
"""The size of the records that are gathered before replaced ones are dropped."""
_FOLD_RATIO = 3
"""Gather so many times the kept size, since each merge reads all kept records again."""
_PIECE_ROWS = 1 << 16
"""The rows that are taken from a table at a time."""


def compacted_view(
    client: "Client", stream: str, *, columns: Sequence[str] | None = None, **filters: Any
) -> pa.Table:
    """Return the newest record of each key, ordered by partition and offset.

    Args:
        client: a client of the broker or cluster.
        stream: the stream's name; all records of a key must be in one partition, as producers do.
        columns: as for ``Client.read``; None: all columns.
        **filters: as for ``Client.read``.

    Raises:
        StrandlineError: as for ``Client.read``.
    """
    asked = None if columns is None else list(dict.fromkeys([*columns, "key", "value"]))
    found = []
    for info in client.stream_info(stream).partitions:
        reader = client.read(stream, partition=info.partition, columns=asked, **filters)
        found.append(compact_batches(reader, reader.schema))
    table = pa.concat_tables(found)
    live = _with(table, "value")
    return live if columns is None else live.select(list(columns))


def compact_batches(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, fold_bytes: int = FOLD_BYTES
) -> pa.Table:
    """Return the newest record of each key among ordered batches, including tombstones.

    Args:
        batches: the batches, in order, with a column ``key``.
        schema: the schema of the batches.
        fold_bytes: the size of the records that are gathered before they are merged.
    """
    kept = schema.empty_table()
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= max(fold_bytes, _FOLD_RATIO * kept.nbytes):
            kept = _newest(pa.concat_tables([kept, pa.Table.from_batches(waiting, schema)]))
            waiting, waiting_bytes = [], 0
    return _newest(pa.concat_tables([kept, pa.Table.from_batches(waiting, schema)]))


def _newest(table: pa.Table) -> pa.Table:
    """Return the last row of each key."""
    table = _with(table, "key")
    rows = pa.table({"key": table.column("key"), "row": _numbers(table.num_rows)})
    # On one thread: several would take three times the CPU, and hardly less time.
    found = rows.group_by("key", use_threads=False).aggregate([("row", "max")])
    if found.num_rows == table.num_rows:
        return table
    last = found.column("row_max").combine_chunks()
    return _picked(table, last.take(pc.sort_indices(last)))


def _picked(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Take rows by ascending numbers, in pieces: an array of bytes holds at most 2 GiB."""
    pieces = [table.slice(0, 0)]
    for first in range(0, len(rows), _PIECE_ROWS):
        piece = rows.slice(first, _PIECE_ROWS)
        start, stop = piece[0].as_py(), piece[-1].as_py() + 1
        pieces.append(table.slice(start, stop - start).take(pc.subtract(piece, start)))
    return pa.concat_tables(pieces)


def _with(table: pa.Table, name: str) -> pa.Table:
    """Drop the rows whose column is null; without any, return the table itself, uncopied."""
    column = table.column(name)
    return table.filter(pc.is_valid(column)) if column.null_count else table


def _numbers(count: int) -> pa.Array:
    """Return the numbers from 0 to ``count``, exclusive."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    return pc.subtract(pc.cumulative_sum(ones), 1)
