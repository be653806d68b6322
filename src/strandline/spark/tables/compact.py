"""Compaction: merges small files of a table, in a commit like any other.

Rules: a merge keeps the rows and the offsets. It commits directly after the version of the table
for which it was decided, so that of a merge and another commit one succeeds and the other decides
again. The files it replaces stay until their snapshots expire, for readers of older versions. Files
from before a column was added, widened or renamed are merged; files with columns that others may
have added, and that the load does not have, are not. Must not know Spark, nor the table's format.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from strandline.spark.arrow import plain_schema
from strandline.spark.tables.columns import conformed, is_part
from strandline.spark.tables.log import LiveFile, Proposal, decode_schema
from strandline.spark.tables.stage import FileSettings, stage
from strandline.spark.tables.store import Loaded, TableStore, usable

logger = logging.getLogger(__name__)

FILES_MAX = 24
"""The number of small files for each partition of the stream, above which files are merged."""
_PREFIX = "merged"


def compact(
    store: TableStore,
    *,
    file_bytes: int,
    compression: str = "zstd",
    files_max: int = FILES_MAX,
) -> int:
    """Merge small files if there are too many; return the number of files merged.

    Args:
        store: the table.
        file_bytes: size at which a merged file is closed; files below half of it are small.
        compression: the compression of merged files.
        files_max: the number of small files for each partition above which files are merged.

    Raises:
        DataLossError: a committed file is missing.
        UnavailableError: the table cannot be reached; whether the merge was committed is unknown.
    """
    loaded = store.load()
    state = loaded.state
    # After a restore the next load checks its offsets against the records; a merge would hide the
    # restore from that check.
    if state is None or state.restored:
        return 0
    files_max *= max(1, len(state.offsets))
    small = store.live_files(loaded)
    if len(small) <= files_max:
        return 0
    schema = decode_schema(state.arrow_schema)
    settings = FileSettings(
        schema=schema,
        prefix=_PREFIX,
        compression=compression,
        file_bytes=file_bytes,
        is_summarized=False,
    )
    chosen = choose_files(small, files_max=files_max, file_bytes=file_bytes)
    merged: list[LiveFile] = []
    staged = stage(store, _rows(store, loaded, chosen, schema=schema, merged=merged), settings)
    if len(merged) < 2:
        store.directory.discard([file.staged for file in staged.files])
        return 0
    proposal = Proposal(
        txn_id=_PREFIX,
        batch=state.sequence,
        files=staged.files,
        arrow_schema=state.arrow_schema,
        tracks_offsets=state.tracks_offsets,
        stream=state.stream,
        replaces=[file.path for file in merged],
    )
    assert proposal.rows == sum(file.rows for file in merged), (proposal.rows, merged)
    following = msgspec.structs.replace(state, sequence=state.sequence + 1)
    if store.publish(loaded, following, proposal):
        return len(merged)
    if not store.directory.in_place:
        store.directory.discard([file.staged for file in staged.files])
    return 0


def choose_files(files: Sequence[LiveFile], *, files_max: int, file_bytes: int) -> list[LiveFile]:
    """Return the files to merge; empty if there are few small ones.

    The smallest files are chosen, until only half of the limit is left, and then every file that is
    not larger than the result so far, up to ``file_bytes``. So a row is merged only a few times,
    however small its commit was.
    """
    small = sorted((f for f in files if f.size_bytes < file_bytes // 2), key=lambda f: f.size_bytes)
    if len(small) <= files_max:
        return []
    wanted = len(small) - files_max // 2
    chosen: list[LiveFile] = []
    total = 0
    for file in small:
        is_similar = len(chosen) < wanted or file.size_bytes <= total
        if not is_similar or (len(chosen) > 1 and total + file.size_bytes > file_bytes):
            break
        chosen.append(file)
        total += file.size_bytes
    return chosen


def _rows(
    store: TableStore,
    loaded: Loaded,
    files: Sequence[LiveFile],
    *,
    schema: pa.Schema,
    merged: list[LiveFile],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files without foreign columns, and add these files to ``merged``."""
    names = store.names(loaded)
    for file in files:
        with usable(file.path), pq.ParquetFile(store.open_live(loaded, file)) as parquet:
            theirs = plain_schema(parquet.schema_arrow)
            if _has_no_others(theirs, schema, names):
                merged.append(file)
                yield from (conformed(batch, schema, names) for batch in parquet.iter_batches())


def _has_no_others(theirs: pa.Schema, schema: pa.Schema, names: Mapping[str, str]) -> bool:
    """Return whether a file has only columns of the table, perhaps with earlier names or types."""
    ours = {field.name: field.type for field in plain_schema(schema)}
    found = ((ours.get(names.get(field.name, field.name)), field.type) for field in theirs)
    return all(kind is not None and is_part(has, kind, widens=True) for kind, has in found)
