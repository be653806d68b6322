"""Writes the rows of one task into staged Parquet files, durably, and summarizes them.

Rules: files and their names are durable when ``stage`` returns; memory holds one row group; a
failed attempt removes its files, and a killed one leaves garbage that no commit names. Offset
ranges are those of the input records, whether or not they could be decoded. Must not know Spark,
nor whether the files will be committed.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import InvalidRecordError
from strandline.spark.tables.changes import Changes
from strandline.spark.tables.log import DataFile, Ranges, RangeSummary, merge_ranges
from strandline.spark.tables.store import TableStore, usable
from strandline.values.decode import RECORD_PREFIX

_ROW_GROUP_BYTES = 64 << 20
_WORD = 1 << 64
FILE_BYTES = 512 << 20


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Settings of the files that a task writes."""

    schema: pa.Schema
    """The table's schema."""
    prefix: str
    """Prefix of file names that names the writer."""
    compression: str = "zstd"
    """A Parquet codec, or ``none``."""
    file_bytes: int = FILE_BYTES
    """Size at which a file is closed and another begun."""
    decode: Callable[[pa.RecordBatch], pa.RecordBatch | Changes] | None = None
    """Decodes records to rows of the table, or to changes; None: the records are the rows."""
    deletes: pa.Schema | None = None
    """The columns of deletes, if records are decoded to changes."""
    is_summarized: bool = True
    """Whether to return the offset ranges of the rows."""
    by_stream: bool = False
    """Whether the records are of several streams, and name their stream."""


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """The files and offset ranges that a task staged."""

    files: list[DataFile]
    deletes: list[DataFile]
    """Files with the keys of rows to delete."""
    ranges: Ranges
    """Offsets of the input records."""


def tracks_offsets(schema: pa.Schema) -> bool:
    """Return whether rows have their record's ``partition`` (int32) and ``offset`` (int64)."""
    types = {field.name: field.type for field in schema}
    return bool(types.get("partition") == pa.int32() and types.get("offset") == pa.int64())


def stage(
    store: TableStore, batches: Iterable[pa.RecordBatch], settings: FileSettings
) -> StagedRows:
    """Write ``batches`` to new staged files.

    Args:
        store: the table.
        batches: the records of one task.
        settings: how to write; columns are cast to the table's schema by position.

    Raises:
        InvalidRecordError: a row without partition or offset in a table that tracks them.
        DiskFullError: no space is left for the files.
        UnavailableError: the files cannot be written.
    """
    rows = _RollingWriter(store, settings)
    deletes = _RollingWriter(store, replace(settings, schema=settings.deletes or settings.schema))
    found: list[Ranges] = []
    try:
        for batch in batches:
            if settings.is_summarized and tracks_offsets(batch.schema) and batch.num_rows:
                found.append(summarize(batch, by_stream=settings.by_stream))
            decoded = batch if settings.decode is None else settings.decode(batch)
            with usable(store.directory.scratch):
                if isinstance(decoded, Changes):
                    deletes.write(decoded.deletes)
                    decoded = decoded.rows
                rows.write(decoded)
        with usable(store.directory.scratch):
            rows.close()
            deletes.close()
    except BaseException:
        rows.discard()
        deletes.discard()
        raise
    if rows.files or deletes.files:
        store.directory.seal_names()
    return StagedRows(files=rows.files, deletes=deletes.files, ranges=merge_ranges(found))


def summarize(batch: pa.RecordBatch, *, by_stream: bool = False) -> Ranges:
    """Return the offset range of each partition in ``batch``.

    Args:
        batch: a batch of records.
        by_stream: whether the records are of several streams, named in the column ``stream``.

    Raises:
        InvalidRecordError: a row has no partition or no offset.
    """
    place = ["stream", "partition"] if by_stream else ["partition"]
    rows = pa.Table.from_batches([batch]).select([*place, "offset"])
    if any(column.null_count for column in rows.columns):
        raise InvalidRecordError("a row without partition or offset cannot be committed once")
    grouped = rows.group_by(place).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count"), ("offset", "sum")]
    )
    return {
        (f"{row['stream']}/{row['partition']}" if by_stream else row["partition"]): RangeSummary(
            row["offset_min"],
            row["offset_max"] + 1,
            row["offset_count"],
            row["offset_sum"] % _WORD,
        )
        for row in grouped.to_pylist()
    }


@dataclass
class _RollingWriter:
    """Writes Parquet files one after another, each up to the requested size."""

    store: TableStore
    settings: FileSettings
    files: list[DataFile] = field(default_factory=list)
    _path: Path | None = None
    _out: pq.ParquetWriter | None = None
    _rows: int = 0
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        group_bytes = min(_ROW_GROUP_BYTES, self.settings.file_bytes)
        for piece in _sliced(_cast(batch, self.settings.schema), group_bytes):
            self._waiting.append(piece)
            self._waiting_bytes += piece.nbytes
            if self._waiting_bytes >= group_bytes:
                self._write_row_group()
                if self._path and self._path.stat().st_size >= self.settings.file_bytes:
                    self._finish_file()

    def close(self) -> None:
        if self._waiting:
            self._write_row_group()
        self._finish_file()

    def discard(self) -> None:
        """Remove every file of this task."""
        # Further errors are ignored: the error that led here is raised.
        if self._out is not None:
            with contextlib.suppress(OSError):
                self._out.close()
            self._out.is_open = False  # else it is closed, and fails, once more by its __del__
        if self._path is not None:
            with contextlib.suppress(OSError):  # on a read-only file system
                self._path.unlink(missing_ok=True)
        self.store.directory.discard([file.staged for file in self.files])

    def _write_row_group(self) -> None:
        schema = self.settings.schema
        if self._out is None:
            self._path = self.store.directory.new_staged_path(self.settings.prefix)
            # Dictionaries pay for repeated text. Long binary values only fill them up, and numbers
            # that ascend cost a quarter of the whole write there, and four bytes a row (measured).
            ascending = [each.name for each in schema if _ascends(each)]
            plain = {*ascending, *(each.name for each in schema if pa.types.is_binary(each.type))}
            self._out = pq.ParquetWriter(
                self._path,
                schema,
                compression=self.settings.compression,
                use_dictionary=[name for name in schema.names if name not in plain],
                column_encoding=dict.fromkeys(ascending, "DELTA_BINARY_PACKED"),
            )
        table = pa.Table.from_batches(self._waiting, schema)
        self._out.write_table(table)
        self._rows += table.num_rows
        self._waiting, self._waiting_bytes = [], 0

    def _finish_file(self) -> None:
        if self._out is None or self._path is None:
            return
        self._out.close()
        size = self.store.directory.seal(self._path)
        self.files.append(
            DataFile(name="", staged=self._path.name, rows=self._rows, size_bytes=size)
        )
        self._out, self._path, self._rows = None, None, 0


def _ascends(field: pa.Field) -> bool:
    """Return whether a column is a record's own offset or timestamp."""
    is_number = pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)
    return is_number and field.name.removeprefix(RECORD_PREFIX) in ("offset", "timestamp")


def _sliced(batch: pa.RecordBatch, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * piece_bytes // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
