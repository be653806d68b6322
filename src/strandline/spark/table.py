"""A table of Parquet files into which streaming jobs commit exactly once; readable from Python.

    from strandline.spark.table import committed_offsets, read_table
    read_table("lake/flights").to_table()

Rules: the manifests name what is committed (``tables/log`` decides, ``tables/files`` stores); a
commit's offsets are in the same manifest as its files, so that data and offsets cannot diverge.
Must not know Spark: ``tables/source`` connects tasks and driver.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from strandline.errors import InvalidRequestError, UnavailableError
from strandline.spark.options import TableFormat
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.log import (
    Manifest,
    PartitionId,
    Proposal,
    TableState,
    decide,
    decode_schema,
    live_files,
)
from strandline.spark.tables.open import directory_of, existing_store
from strandline.spark.tables.store import Loaded, TableStore

if TYPE_CHECKING:
    import pyarrow.dataset


@dataclass(frozen=True)
class TableSummary:
    """The numbers of commits, files and rows of a table."""

    commits: int
    files: int
    rows: int
    offsets: dict[PartitionId, int]
    """The offset up to which each partition is committed, exclusive."""


Storage = Mapping[str, str] | None


def read_table(path: str, *, storage: Storage = None) -> "pyarrow.dataset.Dataset":
    """Return the rows that are committed at the time of the call.

    Args:
        path: the table's directory, or its URL in an object store.
        storage: settings of the object store.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
        DataLossError: a committed file is missing.
    """
    # Imported here: it also imports pandas, which would cost every Spark worker half a second.
    import pyarrow.dataset

    files = _files(path, storage)
    manifests = _manifests(files)
    located = [files.directory.locate(file) for file in live_files(manifests)]
    paths, filesystem = files.directory.arrow_paths(located)
    return pyarrow.dataset.dataset(
        paths,
        schema=decode_schema(manifests[-1].arrow_schema),
        format="parquet",
        filesystem=filesystem,
    )


def committed_files(path: str, *, storage: Storage = None) -> list[str]:
    """Return the paths or URLs of the committed Parquet files, oldest commit first.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
        DataLossError: a committed file is missing.
    """
    files = _files(path, storage)
    return [files.directory.locate(file) for file in live_files(_manifests(files))]


def committed_schema(path: str, *, storage: Storage = None) -> pa.Schema:
    """Return the columns of the table.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
    """
    files = _files(path, storage)
    last = files.load_last()
    if last is None:
        raise _no_table(files)
    return decode_schema(last.arrow_schema)


def committed_offsets(
    path: str,
    *,
    table_format: TableFormat = "parquet",
    catalog: Mapping[str, str] | None = None,
    storage: Storage = None,
) -> str:
    """Return the ``startingOffsets`` of a new query that continues this table.

    ``earliest`` if nothing is committed yet, so that the first run needs no special case.

    Args:
        path: the table's directory or URL, or ``namespace.table`` of an Iceberg table.
        table_format: ``parquet``, ``delta`` or ``iceberg``.
        catalog: properties of the Iceberg catalog.
        storage: settings of the object store.

    Raises:
        InvalidConfigError: the Iceberg table does not exist.
    """
    store = existing_store(path, table_format=table_format, catalog=catalog, storage=storage)
    state = store.load().state
    if state is None or not state.offsets:
        return "earliest"
    return json.dumps({str(partition): offset for partition, offset in state.offsets.items()})


def table_summary(path: str, *, storage: Storage = None) -> TableSummary:
    """Return counts of commits, files and rows, and committed offsets; zeros without a table."""
    manifests = _files(path, storage).load_all()
    return TableSummary(
        commits=manifests[-1].sequence + 1 if manifests else 0,
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
    prepare: Callable[[Loaded, Proposal], Proposal] = lambda _, proposal: proposal,
) -> bool:
    """Commit staged files, once.

    Args:
        store: the table.
        proposal: what to commit.
        explain: adds, for offsets missing after a state, how many records the stream has there.
        prepare: turns staged changes into the files to publish, given what was loaded so far.
        garbage_age_ms: uncommitted staged files that are older are removed.

    Returns:
        True if this call committed; False if the same batch was committed before, in which case
        the newly staged files are removed.

    Raises:
        InvalidRequestError: the batch or its offsets are committed with other content.
        DataLossError: the table would get a gap, or a staged file is missing.
    """
    pauses_s = iter(store.directory.retry_pauses_s)
    attempts = 0
    while True:
        try:
            loaded = store.load()
            decision = decide(loaded.state, explain(loaded.state, proposal))
            if not isinstance(decision, TableState):
                # An earlier attempt whose answer was lost may have committed the files.
                if not (attempts and store.directory.in_place):
                    store.directory.discard(sorted(_staged(proposal)))
                return False
            attempts += 1
            prepared = prepare(loaded, proposal)
            if store.publish(loaded, decision, prepared):
                store.directory.discard(sorted(_staged(proposal) - _staged(prepared)))
                store.collect_garbage(age_s=garbage_age_ms / 1000)
                return True
            if not store.directory.in_place:
                store.directory.discard(sorted(_staged(prepared) - _staged(proposal)))
        except UnavailableError:
            # Deciding again is safe: if the lost attempt takes effect later, its number is taken.
            pause_s = next(pauses_s, None)
            if pause_s is None:
                raise
            time.sleep(pause_s)


def _staged(proposal: Proposal) -> set[str]:
    return {file.staged for file in [*proposal.files, *proposal.deletes]}


def _files(path: str, storage: Storage) -> TableFiles:
    return TableFiles(directory_of(path, storage or {}))


def _manifests(files: TableFiles) -> list[Manifest]:
    manifests = files.load_all()
    if not manifests:
        raise _no_table(files)
    return manifests


def _no_table(files: TableFiles) -> InvalidRequestError:
    return InvalidRequestError(
        f"{files.directory} is not a table, or nothing is committed to it yet; check the path, "
        "or wait for the first commit"
    )
