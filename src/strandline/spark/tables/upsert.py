"""Applies changes by primary key to a table: a commit that replaces files, by copy on write.

Rules: of several changes of a key only the last one counts, by the place of its record, and any
change removes the key's present row. A data file with such a row is replaced by a file without it,
in the commit that adds the new rows. The files are chosen for the version that the commit follows,
so a commit is applied once, completely or not at all, like every other. Keys are compared in
memory, those of a batch with those of one row group at a time. Must not know Spark, nor the table's
format.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.spark.arrow import plain_schema
from strandline.spark.tables.changes import delete_schema, place_columns
from strandline.spark.tables.columns import conformed
from strandline.spark.tables.log import DataFile, LiveFile, Proposal, decode_schema, staged_name
from strandline.spark.tables.stage import FileSettings, stage
from strandline.spark.tables.store import Loaded, TableStore, usable

_PREFIX = "changed"
_ROW = "row of a file"
_FILE = "file of a batch"
_RANK = "rank in a batch"


class Upsert:
    """Turns staged changes into the files that a commit adds and replaces.

    Args:
        store: the table.
        compression: the compression of files.
        file_bytes: size at which a file is closed.
    """

    def __init__(self, store: TableStore, *, compression: str, file_bytes: int) -> None:
        self._store = store
        self._compression = compression
        self._file_bytes = file_bytes

    def __call__(self, loaded: Loaded, proposal: Proposal) -> Proposal:
        """Return a proposal with data files instead of changes.

        Args:
            loaded: the version that the commit follows.
            proposal: has staged rows and deletes; without a primary key it is returned unchanged.

        Raises:
            InvalidRequestError: a file of the table cannot be rewritten.
            DataLossError: a file is missing.
        """
        if not proposal.primary_key or not (proposal.files or proposal.deletes):
            return proposal
        schema = decode_schema(proposal.arrow_schema)
        names = {**self._store.names(loaded), **(proposal.follows or {})}
        last = self._last_of_each_key(proposal, schema)
        files: list[DataFile] = []
        for number, file in enumerate(proposal.files):
            kept = last.filter(pc.equal(last.column(_FILE), number)).column(_ROW)
            if len(kept) == file.rows:
                files.append(file)
            elif len(kept):
                with self._open_staged(file) as parquet:
                    rows = _rows(parquet, _mask(file.rows, kept))
                    files += self._write((conformed(each, schema) for each in rows), schema)
        touched = last.select(proposal.primary_key)
        replaces: list[str] = []
        existing = self._store.live_files(loaded, every=True) if loaded.at is not None else []
        for live in existing:
            left = self._without(loaded, live, touched, names=names, schema=schema)
            if left is not None:
                replaces.append(live.path)
                files += left
        return msgspec.structs.replace(proposal, files=files, deletes=[], replaces=replaces)

    def _without(
        self,
        loaded: Loaded,
        live: LiveFile,
        touched: pa.Table,
        *,
        names: Mapping[str, str],
        schema: pa.Schema,
    ) -> list[DataFile] | None:
        """Return files with a file's rows that have none of these keys; None: all rows stay."""
        with usable(live.path), pq.ParquetFile(self._store.open_live(loaded, live)) as parquet:
            gone = _touched_rows(parquet, touched, _Bounds.of(touched.column(0)))
            if not len(gone):
                return None
            if len(gone) == live.rows:
                return []
            left = pc.invert(_mask(live.rows, gone))
            return self._rewrite(parquet, left, names=names, schema=schema)

    def _last_of_each_key(self, proposal: Proposal, schema: pa.Schema) -> pa.Table:
        """Return the last change of each key: the number of its file, its row there, the key."""
        key, found, rows = proposal.primary_key, list[pa.Table](), list[pa.Table]()
        columns = delete_schema(schema, key)
        for number, file in enumerate([*proposal.files, *proposal.deletes]):
            with self._open_staged(file) as parquet:
                found.append(parquet.read(columns=columns.names).cast(columns))
            numbers = pa.repeat(pa.scalar(number), file.rows)
            rows.append(pa.table({_FILE: numbers, _ROW: _numbered(0, file.rows)}))
        every, where = pa.concat_tables(found).combine_chunks(), pa.concat_tables(rows)
        # The sort is stable: the rows of one record (an Arrow value has several) keep their order.
        order = [(name, "ascending") for name in place_columns(schema)]
        places = pc.sort_indices(every, sort_keys=order)
        ranks = pc.sort_indices(places)  # the inverse
        ranked = every.select(key).append_column(_RANK, ranks)
        last = ranked.group_by(key).aggregate([(_RANK, "max")])
        chosen = where.take(places.take(last.column(f"{_RANK}_max")))
        for name in key:
            chosen = chosen.append_column(name, last.column(name))
        return chosen

    def _rewrite(
        self,
        parquet: pq.ParquetFile,
        left: pa.BooleanArray,
        *,
        names: Mapping[str, str],
        schema: pa.Schema,
    ) -> list[DataFile]:
        """Write the remaining rows of a file; columns that others added keep their values."""
        theirs = (
            pa.field(names.get(field.name, field.name), field.type)
            for field in plain_schema(parquet.schema_arrow)
        )
        added = [field for field in theirs if field.name not in schema.names]
        columns = pa.schema([*schema, *added])
        rows = (conformed(batch, columns, names) for batch in _rows(parquet, left))
        return self._write(rows, columns)

    def _write(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> list[DataFile]:
        settings = FileSettings(
            schema=schema,
            prefix=_PREFIX,
            compression=self._compression,
            file_bytes=self._file_bytes,
            is_summarized=False,
        )
        return stage(self._store, rows, settings).files

    def _open_staged(self, file: DataFile) -> pq.ParquetFile:
        directory = self._store.directory
        return pq.ParquetFile(directory.open_file(directory.locate(staged_name(file))))


def _touched_rows(parquet: pq.ParquetFile, touched: pa.Table, bounds: "_Bounds") -> pa.ChunkedArray:
    """Return the numbers of a file's rows that have one of these keys."""
    found, start = list[pa.Array](), 0
    for number in range(parquet.num_row_groups):
        group = parquet.metadata.row_group(number)
        if bounds.may_be_in(group, touched.schema.names[0]):
            keys = parquet.read_row_group(number, columns=touched.schema.names)
            keys = keys.select(touched.schema.names).cast(touched.schema)
            here = keys.append_column(_ROW, _numbered(start, group.num_rows))
            found += here.join(touched, touched.schema.names, join_type="left semi")[_ROW].chunks
        start += group.num_rows
    return pa.chunked_array(found, pa.int64())


class _Bounds(NamedTuple):
    """The least and the greatest of some keys."""

    least: Any
    greatest: Any

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "_Bounds":
        # For these types a file's statistics are exact, or too wide, in the order of Python.
        kind = keys.type
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
            return cls(None, None)
        return cls(*pc.min_max(keys).as_py().values())

    def may_be_in(self, group: pq.RowGroupMetaData, name: str) -> bool:
        """Return whether a row group may contain a key within the bounds, by its statistics."""
        columns = (group.column(number) for number in range(group.num_columns))
        statistics = next((c.statistics for c in columns if c.path_in_schema == name), None)
        if self.least is None or statistics is None or not statistics.has_min_max:
            return True
        return bool(statistics.min <= self.greatest and self.least <= statistics.max)


def _mask(count: int, rows: pa.ChunkedArray) -> pa.BooleanArray:
    """Return a mask of ``count`` rows in which the given ones are true."""
    return pc.is_in(_numbered(0, count), rows.combine_chunks())


def _numbered(start: int, count: int) -> pa.Int64Array:
    return pa.array(range(start, start + count), pa.int64())


def _rows(parquet: pq.ParquetFile, chosen: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
    """Yield the chosen rows of a file."""
    start, schema = 0, plain_schema(parquet.schema_arrow)
    for batch in parquet.iter_batches():
        yield batch.cast(schema).filter(chosen.slice(start, batch.num_rows))
        start += batch.num_rows
