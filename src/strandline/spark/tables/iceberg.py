"""An Iceberg table as a store of commits: offsets and data in the same metadata file.

Rules: the state is a property of the table, set in the transaction that adds the files, so it
survives the expiry of snapshots. The summary of a snapshot has the number of its commit and the
table's offsets after it. A rollback does not change the properties, so the state is valid only if
the current snapshot descends from the snapshot of the state; otherwise the summary of the newest
ancestor says what is committed. A table whose partitions or columns do not fit is rejected.
pyiceberg repeats a commit that lost a race, with the same files after the winner's; that would
store records twice, so the table's ``commit.retry.num-retries`` is set to 0 and the loser decides
again. Data files get their names under the table's location before the commit. Must not know Spark,
nor what may be committed.
"""

import contextlib
import json
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    ValidationError,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot

from strandline.errors import InvalidConfigError, InvalidRequestError, UnavailableError
from strandline.spark.tables.log import (
    LiveFile,
    Proposal,
    TableState,
    decode_schema,
    decode_state,
    encode_state,
    partition_id,
    staged_name,
)
from strandline.spark.tables.store import (
    Loaded,
    MissingTableError,
    TableDirectory,
    TableStore,
    check_every,
    check_has_records,
    failure_kind,
    reason_of,
)

STATE_KEY = "strandline.state"
"""The table property with the state of loads."""
_SEQUENCE_KEY = "strandline.sequence"
_OFFSETS_KEY = "strandline.offsets"
"""Keys in a snapshot's summary: the number of the commit, and the table's offsets after it."""
_RETRIES_KEY = "commit.retry.num-retries"
_METADATA_KEY = "write.metadata.delete-after-commit.enabled"
"""Each commit writes a metadata file; a table that a load creates keeps the last hundred."""


class IcebergStore(TableStore):
    """An Iceberg table of a catalog; ``prepare`` creates it if it does not exist.

    Args:
        name: ``namespace.table``.
        directory: the directory of the table; its files are in ``data``.
        catalog: properties of the catalog, as pyiceberg takes them, with its ``name``.
        storage: settings of the object store.
    """

    def __init__(
        self,
        name: str,
        *,
        directory: TableDirectory,
        catalog: Mapping[str, str],
        storage: Mapping[str, str],
    ) -> None:
        super().__init__(directory)
        self.name = name
        self._catalog = dict(catalog)
        self._storage = dict(storage)

    def load(self) -> Loaded:
        """Return the state in the table's properties, and the table as loaded."""
        try:
            table = _load_table(self.name, self._catalog, self._storage)
        except NoSuchTableError:
            return Loaded(None)
        stored = table.properties.get(STATE_KEY)
        if not stored:
            return Loaded(None, table)
        state = decode_state(stored, name=f"property {STATE_KEY} of {self.name}")
        return Loaded(_current_state(table, state), table)

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Add the files and set the state in one transaction on the table that was loaded."""
        table: Table = after.at
        if table.properties.get(_RETRIES_KEY) != "0":
            # Not in ``load``, which readers call, too. The caller then loads and decides again.
            with contextlib.suppress(CommitFailedException), table.transaction() as transaction:
                transaction.set_properties({_RETRIES_KEY: "0"})
            return False
        ours = decode_schema(state.arrow_schema)
        known = ours if after.state is None else decode_schema(after.state.arrow_schema)
        if after.state is not None or proposal.follows is None:
            _check_writable(table, known)
        self.directory.check_files_exist(proposal.files)
        named = [staged_name(file) for file in proposal.files]
        self.directory.place(named)
        paths = [self.directory.uri(file) for file in named]
        # A file of a failed commit keeps its name: the outcome is not always known.
        try:
            with _reached(self.name), table.transaction() as transaction:
                transaction.set_properties({STATE_KEY: encode_state(state), _RETRIES_KEY: "0"})
                if proposal.follows is not None and (after.state is None or ours != known):
                    _follow(transaction, ours, names=proposal.follows)
                if proposal.replaces:
                    _replace(
                        transaction, proposal.replaces, paths, summary=_summary(state, proposal)
                    )
                else:
                    _add(transaction, paths, summary=_summary(state, proposal))
        except CommitFailedException:
            return False
        except (ValidationError, ValueError) as error:  # the file, or a column, does not fit
            raise _unwritable(table, reason=str(error).partition("\n")[0]) from error
        return True

    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the loaded snapshot."""
        assert loaded.state is not None
        names = decode_schema(loaded.state.arrow_schema).names
        yield from loaded.at.scan(selected_fields=tuple(names)).to_arrow_batch_reader()

    def live_files(self, loaded: Loaded, *, every: bool = False) -> list[LiveFile]:
        """Return the Parquet files of the snapshot without deleted rows."""
        found = [
            LiveFile(path=f.file_path, rows=f.record_count, size_bytes=f.file_size_in_bytes)
            for f in _data_files(loaded.at)
        ]
        if every:
            check_every(self.name, len(found), len(list(loaded.at.scan().plan_files())))
        return found

    def names(self, loaded: Loaded) -> Mapping[str, str]:
        """Return the present names of columns, from the table's name mapping."""
        table: Table = loaded.at
        by_id = {field.field_id: field.name for field in table.schema().fields}
        mapping = table.name_mapping()
        return {
            name: by_id[each.field_id]
            for each in (mapping.root if mapping is not None else ())
            if each.field_id in by_id
            for name in each.names
        }

    def open_live(self, loaded: Loaded, file: LiveFile) -> Any:
        """Open a file at its location."""
        del loaded
        return self.directory.open_file(file.path)

    def committed_at_ms(self, loaded: Loaded) -> int | None:
        """Return the time of the current snapshot."""
        snapshot = loaded.at.current_snapshot() if loaded.at is not None else None
        return None if snapshot is None else int(snapshot.timestamp_ms)

    def expire(self, *, age_s: float) -> int:
        """Expire snapshots and remove the files that only they had."""
        table: Table | None = self.load().at
        now_s = time.time()
        ages_s = [now_s - each.timestamp_ms / 1000 for each in table.snapshots()] if table else []
        # An expiry reads all manifests, so run one only for each tenth of ``age_s``.
        if table is None or max(ages_s, default=0) < age_s * 1.1:
            return 0
        try:
            with _reached(self.name):
                before = _all_paths(table)
                oldest = datetime.fromtimestamp(now_s - age_s, UTC).replace(tzinfo=None)
                table.maintenance.expire_snapshots().older_than(oldest).commit()
                gone = before - _all_paths(table.refresh())
                for path in gone:
                    table.io.delete(path)
                self.forget(gone)
        except (CommitFailedException, ValueError) as error:
            # Another commit came first, and the next call does it; or, as a ValueError, it expired
            # the same snapshots.
            if isinstance(error, ValueError) and "does not exist" not in str(error):
                raise
            return 0
        return len(gone)


def open_catalog(
    properties: Mapping[str, str], storage: Mapping[str, str] | None = None
) -> Catalog:
    """Open a catalog; pyiceberg's own configuration completes the properties.

    A catalog in a database closes its connections once it and its tables are garbage-collected.

    Args:
        properties: the properties of the catalog, with its ``name``.
        storage: settings of the object store, with references instead of secrets.

    Raises:
        InvalidConfigError: the properties name no catalog, or the catalog cannot be opened.
        UnavailableError: the catalog does not answer.
    """
    rest = {key: value for key, value in properties.items() if key != "name"}
    if storage:
        from strandline.spark.tables.objects import iceberg_properties

        rest = iceberg_properties(storage) | rest
    try:
        opened = load_catalog(properties.get("name", "default"), **rest)
    except Exception as error:  # SQLAlchemy, requests and others
        reason = str(error).partition("\n")[0]
        # Network errors are OSErrors.
        kind = UnavailableError if isinstance(error, OSError) else InvalidConfigError
        raise kind(
            f"cannot open the Iceberg catalog: {reason}; check the properties in 'catalog'"
        ) from error
    if hasattr(opened, "engine"):  # its pool would keep connections with open transactions
        weakref.finalize(opened, opened.engine.dispose)
    return opened


def prepare_iceberg(
    name: str,
    *,
    catalog: Mapping[str, str],
    storage: Mapping[str, str],
    schema: pa.Schema,
    is_followed: bool = False,
) -> None:
    """Create the table if it does not exist.

    Args:
        name: ``namespace.table``.
        catalog: as for ``IcebergStore``.
        storage: as for ``IcebergStore``.
        schema: the columns of a new table.
        is_followed: whether the table follows a stream's schema, so that its columns may have other
            names.

    Raises:
        InvalidRequestError: the table is partitioned, or has other columns.
    """
    namespace = _namespace_of(name)
    opened = open_catalog(catalog, storage)
    with _reached(name):
        opened.create_namespace_if_not_exists(namespace)
        properties = {_RETRIES_KEY: "0", _METADATA_KEY: "true"}
        table = opened.create_table_if_not_exists(name, schema=schema, properties=properties)
    _check_writable(table, pa.schema([]) if is_followed else schema)


def _follow(transaction: Transaction, ours: pa.Schema, *, names: Mapping[str, str]) -> None:
    """Change a table's columns to those of new rows: rename by id, widen types, add columns."""
    theirs = [field.name for field in transaction.table_metadata.schema().fields]
    with transaction.update_schema() as renaming:
        for name in theirs:
            if names.get(name) in ours.names and names[name] not in theirs:
                renaming.rename_column(name, names[name])
    with transaction.update_schema() as adding:
        adding.union_by_name(ours)


def _namespace_of(name: str) -> str:
    namespace, _, table_name = name.rpartition(".")
    if not namespace or not table_name:
        raise InvalidConfigError(f"an Iceberg table must be namespace.table, got {name!r}")
    return namespace


def _add(transaction: Transaction, paths: list[str], *, summary: dict[str, str]) -> None:
    """Add files, or an empty snapshot: only with a snapshot does the catalog detect a lost race."""
    if paths:
        transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
    else:
        empty = transaction.table_metadata.schema().as_arrow().empty_table()
        transaction.append(empty, snapshot_properties=summary)


def _replace(
    transaction: Transaction, replaced: Sequence[str], paths: list[str], *, summary: dict[str, str]
) -> None:
    """Replace data files by new ones, in one snapshot."""
    table = transaction._table  # noqa: SLF001 - as loaded; a transaction does not show it
    with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
        for file in _data_files(table):
            if file.file_path in replaced:
                snapshot.delete_data_file(file)
        for path in paths:
            snapshot.append_data_file(
                parquet_file_to_data_file(table.io, transaction.table_metadata, path)
            )


def _data_files(table: Table) -> list[DataFile]:
    """Return the Parquet files of the current snapshot of which no rows are deleted."""
    return [
        task.file
        for task in table.scan().plan_files()
        if not task.delete_files and task.file.file_format == FileFormat.PARQUET
    ]


def _all_paths(table: Table) -> set[str]:
    """Return the paths of the data files, manifests and manifest lists of all snapshots."""
    found = set(table.inspect.all_data_files().column("file_path").to_pylist())
    for snapshot in table.snapshots():
        found |= {snapshot.manifest_list, *(m.manifest_path for m in snapshot.manifests(table.io))}
    return found


def _current_state(table: Table, state: TableState) -> TableState:
    """Return the state committed in the current snapshot.

    Args:
        table: the table as loaded.
        state: the last stored state, of any snapshot.

    Raises:
        InvalidRequestError: the table was rolled back to a snapshot without a state.
    """
    known = {each.snapshot_id: each for each in table.snapshots()}
    at = table.metadata.current_snapshot_id
    while at is not None and at in known:
        summary = known[at].summary
        sequence = summary.additional_properties.get(_SEQUENCE_KEY) if summary else None
        if sequence == str(state.sequence):
            return state
        if summary is not None and sequence is not None:
            return _restored(state, json.loads(summary.additional_properties[_OFFSETS_KEY]))
        at = known[at].parent_snapshot_id
    # No remaining ancestor has our state: either our snapshot expired ...
    if not any(_is_commit(each, state.sequence) for each in known.values()):
        check_has_records(".".join(table.name()), state, partial(_has_record, table))
        return state
    # ... or the current snapshot does not descend from it.
    raise InvalidRequestError(
        f"table {'.'.join(table.name())} was rolled back, or replaced, and no snapshot says which "
        "of the records it still has; load into another table, with a new checkpoint"
    )


def _has_record(table: Table, values: Mapping[str, int | str]) -> bool:
    """Return whether a table has a row with these values."""
    test = " and ".join(f"{name} = {value!r}" for name, value in values.items())
    found = table.scan(row_filter=test, selected_fields=tuple(values), limit=1).to_arrow()
    return bool(found.num_rows)


def _restored(state: TableState, offsets: Mapping[str, int]) -> TableState:
    """Return a state with other offsets and the same number, so that the next number is new."""
    committed = {partition_id(name): offset for name, offset in offsets.items()}
    return msgspec.structs.replace(state, offsets=committed, transactions={}, restored=True)


def _is_commit(snapshot: Snapshot, sequence: int) -> bool:
    """Return whether a snapshot is the commit with this number of a load."""
    summary = snapshot.summary
    found = summary.additional_properties.get(_SEQUENCE_KEY) if summary else None
    return found == str(sequence)


def _check_writable(table: Table, ours: pa.Schema) -> None:
    """Check that rows can be added to a table that others may have changed.

    Raises:
        InvalidRequestError: the table is partitioned, or its columns were renamed or dropped, or a
            required one was added.
    """
    if not table.spec().is_unpartitioned():
        raise _unwritable(table, reason=f"it is partitioned by {table.spec()}")
    theirs = {field.name: field for field in table.schema().fields}
    missing = [name for name in ours.names if name not in theirs]
    if missing:
        raise _unwritable(table, reason=f"it has no columns {', '.join(missing)}")
    required = [field.name for field in theirs.values() if field.required]
    if required:
        raise _unwritable(table, reason=f"its columns {', '.join(required)} are required")


def _unwritable(table: Table, *, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"this sink cannot add rows to table {'.'.join(table.name())}: {reason}; take that back, "
        "or load into another table with a new checkpoint"
    )


def _summary(state: TableState, proposal: Proposal) -> dict[str, str]:
    """Return the summary of a snapshot."""
    read = {str(p): [found.start, found.stop] for p, found in proposal.ranges.items()}
    return {
        "strandline.transaction": proposal.txn_id,
        "strandline.batch": str(proposal.batch),
        "strandline.read": json.dumps(read),
        _SEQUENCE_KEY: str(state.sequence),
        _OFFSETS_KEY: json.dumps(state.offsets),
    }


def location_of(name: str, *, catalog: Mapping[str, str], storage: Mapping[str, str]) -> str:
    """Return the location of an existing table.

    Raises:
        InvalidConfigError: the table does not exist, or the name is not valid.
    """
    _namespace_of(name)
    try:
        return _load_table(name, catalog, storage).location()
    except NoSuchTableError as error:
        raise MissingTableError(f"the catalog has no table {name}") from error


def _load_table(name: str, catalog: Mapping[str, str], storage: Mapping[str, str]) -> Table:
    """Load a table's newest metadata."""
    opened = open_catalog(catalog, storage)
    with _reached(name):
        return opened.load_table(name)


@contextlib.contextmanager
def _reached(name: str) -> Iterator[None]:
    """Translate the errors of a catalog or object store that does not answer.

    A catalog in a database raises errors of SQLAlchemy, which is imported only for such a catalog.
    """
    try:
        yield
    except Exception as error:
        is_of_database = type(error).__module__.startswith("sqlalchemy.")
        if not (is_of_database or isinstance(error, CommitStateUnknownException | OSError)):
            raise
        reason = str(error).partition("\n")[0] if is_of_database else reason_of(error)
        raise failure_kind(error)(f"the catalog or metadata of {name}: {reason}") from error
