"""Writes the rows of one task into a staged Parquet file, durably, and notes what it holds.

Rules: the file and its name are on the disk when ``stage`` returns; memory holds one row group; a
failed attempt removes its file, and one that was killed leaves garbage that nobody names. Must not
know Spark, nor whether the file will be committed.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import InvalidRecordError
from strandline.spark.table_files import TableFiles, sync_directory, sync_file
from strandline.spark.table_log import DataFile, Ranges, RangeSummary, merge_ranges

_ROW_GROUP_BYTES = 64 << 20
_WORD = 1 << 64


def tracks_offsets(schema: pa.Schema) -> bool:
    """Whether rows say which record they come from: ``partition`` int32 and ``offset`` int64."""
    types = {field.name: field.type for field in schema}
    return bool(types.get("partition") == pa.int32() and types.get("offset") == pa.int64())


def stage(
    files: TableFiles,
    batches: Iterable[pa.RecordBatch],
    *,
    schema: pa.Schema,
    prefix: str,
    compression: str,
) -> DataFile | None:
    """Write ``batches`` to a new staged file.

    Args:
        files: the table's directory.
        batches: the rows of one task; their columns are cast to ``schema`` by position.
        schema: the table's.
        prefix: who writes, for the person who looks into the directory.
        compression: a Parquet codec, for example ``zstd`` or ``none``.

    Returns:
        What was written; None, and no file, if there were no rows.

    Raises:
        InvalidRecordError: a row without partition or offset in a table that tracks them.
    """
    path = files.new_staged_path(prefix)
    try:
        rows, ranges = _write(path, batches, schema=schema, compression=compression)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    if rows == 0:
        path.unlink(missing_ok=True)
        return None
    sync_file(path)
    sync_directory(files.staging)
    return DataFile(
        name="", staged=path.name, rows=rows, size_bytes=path.stat().st_size, ranges=ranges
    )


def summarize(batch: pa.RecordBatch) -> Ranges:
    """Which offsets of which partitions the rows of ``batch`` come from.

    Raises:
        InvalidRecordError: a row has no partition or no offset.
    """
    partitions, offsets = batch.column("partition"), batch.column("offset")
    if partitions.null_count or offsets.null_count:
        raise InvalidRecordError("a row without partition or offset cannot be committed once")
    grouped = (
        pa.table({"partition": partitions, "offset": offsets})
        .group_by("partition")
        .aggregate([("offset", "min"), ("offset", "max"), ("offset", "count"), ("offset", "sum")])
    )
    return {
        row["partition"]: RangeSummary(
            row["offset_min"],
            row["offset_max"] + 1,
            row["offset_count"],
            row["offset_sum"] % _WORD,
        )
        for row in grouped.to_pylist()
    }


def _write(
    path: Path, batches: Iterable[pa.RecordBatch], *, schema: pa.Schema, compression: str
) -> tuple[int, Ranges]:
    tracked = tracks_offsets(schema)
    found: list[Ranges] = []
    waiting: list[pa.RecordBatch] = []
    rows = waiting_bytes = 0
    # Dictionaries pay for repeated text; long binary values only fill them up.
    dictionary = [f.name for f in schema if not pa.types.is_binary(f.type)]
    with pq.ParquetWriter(path, schema, compression=compression, use_dictionary=dictionary) as out:
        for raw in batches:
            batch = _cast(raw, schema)
            rows += batch.num_rows
            if tracked and batch.num_rows:
                found.append(summarize(batch))
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= _ROW_GROUP_BYTES:
                out.write_table(pa.Table.from_batches(waiting, schema))
                waiting, waiting_bytes = [], 0
        if waiting:
            out.write_table(pa.Table.from_batches(waiting, schema))
    return rows, merge_ranges(found)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
