"""A table of Parquet files into which streaming jobs commit exactly once; readable from Python.

    from strandline.spark.table import committed_offsets, read_table
    read_table("lake/flights").to_table()

Rules: what is committed is what the manifests name (``table_log`` decides, ``table_files`` stores);
the offsets a commit covers are in the same manifest as its files, so data and position cannot part.
Must not know Spark: ``table_source`` brings tasks and drivers here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.errors import InvalidRequestError
from strandline.spark.options import TableFormat
from strandline.spark.table_files import TableFiles
from strandline.spark.table_log import (
    Manifest,
    Proposal,
    TableState,
    decide,
    decode_schema,
    live_files,
)
from strandline.spark.table_open import existing_store
from strandline.spark.table_store import TableStore

if TYPE_CHECKING:
    import pyarrow.dataset


@dataclass(frozen=True)
class TableSummary:
    """What a table holds."""

    commits: int
    files: int
    rows: int
    offsets: dict[int, int]
    """For each partition the offset up to which it is committed, exclusive."""


def read_table(path: str) -> "pyarrow.dataset.Dataset":
    """The committed rows, as of now.

    Args:
        path: the table's directory.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
        DataLossError: a committed file is gone.
    """
    # Imported here: it brings pandas along, which costs every Spark worker half a second.
    import pyarrow.dataset

    files, manifests = TableFiles(path), _manifests(path)
    return pyarrow.dataset.dataset(
        [str(files.locate(file)) for file in live_files(manifests)],
        schema=decode_schema(manifests[-1].arrow_schema),
        format="parquet",
    )


def committed_files(path: str) -> list[str]:
    """Paths of the committed Parquet files, oldest commit first.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
        DataLossError: a committed file is gone.
    """
    files = TableFiles(path)
    return [str(files.locate(file)) for file in live_files(_manifests(path))]


def committed_schema(path: str) -> pa.Schema:
    """The columns of the table.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
    """
    last = TableFiles(path).load_last()
    if last is None:
        raise _no_table(path)
    return decode_schema(last.arrow_schema)


def committed_offsets(
    path: str,
    *,
    table_format: TableFormat = "parquet",
    catalog: Mapping[str, str] | None = None,
) -> str:
    """Where a new query that continues this table has to start: a value for ``startingOffsets``.

    ``earliest`` if nothing is committed yet, so that the first run needs no special case.

    Args:
        path: the table's directory, or ``namespace.table`` of an Iceberg table.
        table_format: ``parquet``, ``delta`` or ``iceberg``.
        catalog: properties of the Iceberg catalog.

    Raises:
        InvalidConfigError: an Iceberg table that is not there.
    """
    store = existing_store(path, table_format=table_format, catalog=catalog)
    state = store.load().state
    if state is None or not state.offsets:
        return "earliest"
    return json.dumps({str(partition): offset for partition, offset in state.offsets.items()})


def table_summary(path: str) -> TableSummary:
    """Counts of commits, files and rows, and the committed offsets; zeros if there is no table."""
    manifests = TableFiles(path).load_all()
    return TableSummary(
        commits=len(manifests),
        files=len(live_files(manifests)),
        rows=sum(manifest.rows for manifest in manifests),
        offsets=dict(manifests[-1].offsets) if manifests else {},
    )


def commit(
    store: TableStore,
    proposal: Proposal,
    *,
    garbage_age_ms: int,
    explain: Callable[[TableState | None, Proposal], Proposal] = lambda _, proposal: proposal,
) -> bool:
    """Commit staged files, once.

    Args:
        store: the table.
        proposal: what to commit.
        explain: adds what the stream holds where offsets are missing after a state.
        garbage_age_ms: uncommitted staged files older than this are removed on the way.

    Returns:
        True if this call committed; False if the same batch was committed before, in which case
        the files staged now are removed.

    Raises:
        InvalidRequestError: the batch or its offsets are committed with other content.
        DataLossError: the table would get a hole, or a staged file is gone.
    """
    while True:
        loaded = store.load()
        decision = decide(loaded.state, explain(loaded.state, proposal))
        if not isinstance(decision, TableState):
            store.discard([file.staged for file in proposal.files])
            return False
        if store.publish(loaded, decision, proposal):
            store.collect_garbage(age_s=garbage_age_ms / 1000)
            return True


def _manifests(path: str) -> list[Manifest]:
    manifests = TableFiles(path).load_all()
    if not manifests:
        raise _no_table(path)
    return manifests


def _no_table(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"{path} is not a table, or nothing is committed to it yet")
