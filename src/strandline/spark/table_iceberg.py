"""An Iceberg table as a store of commits: offsets and data in the same metadata file.

Rules: the state is a property of the table, set in the transaction that adds the files, so it
survives the expiry of snapshots; the snapshot's own properties say what it added, and up to which
offsets the table then was. A rollback leaves the properties as they are, so the state counts only
if the current snapshot descends from its own; else the newest ancestor says what is committed. A
table whose partitions or columns do not fit is rejected. pyiceberg repeats a commit that lost a
race, with the same files after the winner's; that would double records, so the table's
``commit.retry.num-retries`` is set to 0 and the loser decides anew. Data files get their names
under the table's location before the commit. Must not know Spark, nor what may be committed.
"""

import contextlib
import json
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot

from strandline.errors import InvalidConfigError, InvalidRequestError, UnavailableError
from strandline.spark.table_log import (
    Proposal,
    TableState,
    decode_schema,
    decode_state,
    encode_state,
)
from strandline.spark.table_store import (
    Loaded,
    TableStore,
    local_path,
    make_directory,
    refuse_without_records,
)

STATE_KEY = "strandline.state"
"""The table property with our state."""
_SEQUENCE_KEY = "strandline.sequence"
_OFFSETS_KEY = "strandline.offsets"
"""Keys in a snapshot's summary: the number of our commit, and the table's offsets after it."""
_RETRIES_KEY = "commit.retry.num-retries"


class IcebergStore(TableStore):
    """An Iceberg table of a catalog; ``prepare`` creates it if it does not exist.

    Args:
        name: ``namespace.table``.
        root: the directory of the table; ``iceberg_root`` finds it.
        catalog: properties of the catalog, as pyiceberg takes them, with its ``name``.
    """

    def __init__(self, name: str, *, root: Path, catalog: Mapping[str, str]) -> None:
        super().__init__(root)
        self.name = name
        self.catalog = dict(catalog)

    def load(self) -> Loaded:
        """Return the state in the table's properties, and the table as loaded."""
        try:
            table = open_catalog(self.catalog).load_table(self.name)
        except NoSuchTableError:
            return Loaded(None)
        stored = table.properties.get(STATE_KEY)
        if not stored:
            return Loaded(None, table)
        state = decode_state(stored, name=f"property {STATE_KEY} of {self.name}")
        return Loaded(_current_state(table, state), table)

    def create(self) -> None:
        """Create the directories, durably."""
        super().create()
        make_directory(self.root / "data")

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Add the files and set the state in one transaction on the table that was loaded."""
        table: Table = after.at
        if table.properties.get(_RETRIES_KEY) != "0":
            # Not in ``load``, which readers call, too. The caller loads and decides anew.
            with contextlib.suppress(CommitFailedException), table.transaction() as transaction:
                transaction.set_properties({_RETRIES_KEY: "0"})
            return False
        _refuse_unwritable(table, decode_schema(state.arrow_schema))
        self.refuse_missing(proposal.files)
        named = [msgspec.structs.replace(file, name=file.staged) for file in proposal.files]
        data = self.root / "data"
        self.link_staged(named, data)
        paths = [f"file://{data / file.name}" for file in named]
        # A file of a failed commit keeps its name: the outcome is not always known.
        try:
            with table.transaction() as transaction:
                transaction.set_properties({STATE_KEY: encode_state(state), _RETRIES_KEY: "0"})
                _add(transaction, paths, summary=_summary(state, proposal))
        except CommitFailedException:
            return False
        except ValueError as error:  # the file does not fit the table
            raise _unwritable(table, reason=str(error).partition("\n")[0]) from error
        except CommitStateUnknownException as error:
            raise UnavailableError(f"the catalog of {self.name}: {error}") from error
        return True

    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the loaded snapshot."""
        assert loaded.state is not None
        names = decode_schema(loaded.state.arrow_schema).names
        yield from loaded.at.scan(selected_fields=tuple(names)).to_arrow_batch_reader()


def open_catalog(properties: Mapping[str, str]) -> Catalog:
    """Open a catalog; pyiceberg's own configuration completes the properties.

    A catalog in a database closes its connections once it and its tables are garbage-collected.

    Raises:
        InvalidConfigError: they name no catalog, or one that cannot be opened.
        UnavailableError: the catalog does not answer.
    """
    rest = {key: value for key, value in properties.items() if key != "name"}
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


def prepare_iceberg(name: str, *, catalog: Mapping[str, str], schema: pa.Schema) -> Path:
    """Create the table if it does not exist; return its directory.

    Args:
        name: ``namespace.table``.
        catalog: as ``IcebergStore``.
        schema: of a new table.

    Raises:
        InvalidConfigError: the table is at a location that is not writable.
        InvalidRequestError: it is partitioned, or has other columns.
    """
    namespace = _namespace_of(name)
    opened = open_catalog(catalog)
    opened.create_namespace_if_not_exists(namespace)
    table = opened.create_table_if_not_exists(name, schema=schema, properties={_RETRIES_KEY: "0"})
    _refuse_unwritable(table, schema)
    return local_path(table.location())


def _namespace_of(name: str) -> str:
    namespace, _, table_name = name.rpartition(".")
    if not namespace or not table_name:
        raise InvalidConfigError(f"an Iceberg table must be namespace.table, got {name!r}")
    return namespace


def _add(transaction: Transaction, paths: list[str], *, summary: dict[str, str]) -> None:
    """Add files, or an empty snapshot, without which the catalog would not compare."""
    if paths:
        transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
    else:
        empty = transaction.table_metadata.schema().as_arrow().empty_table()
        transaction.append(empty, snapshot_properties=summary)


def _current_state(table: Table, state: TableState) -> TableState:
    """Return the state committed in the current snapshot.

    Args:
        table: as loaded.
        state: the last stored state, of any snapshot.

    Raises:
        InvalidRequestError: the table was rolled back to a snapshot without it.
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
        refuse_without_records(".".join(table.name()), state, partial(_has_record, table))
        return state
    # ... or the current snapshot does not descend from it.
    raise InvalidRequestError(
        f"table {'.'.join(table.name())} was rolled back, or replaced, and no snapshot says which "
        "of the records it still has; load into another table, with a new checkpoint"
    )


def _has_record(table: Table, values: Mapping[str, int]) -> bool:
    """Return whether a table has a row with these values."""
    test = " and ".join(f"{name} = {value}" for name, value in values.items())
    found = table.scan(row_filter=test, selected_fields=tuple(values), limit=1).to_arrow()
    return bool(found.num_rows)


def _restored(state: TableState, offsets: Mapping[str, int]) -> TableState:
    """Return a state with other offsets; its number is kept, so that the next commit's is new."""
    committed = {int(partition): offset for partition, offset in offsets.items()}
    return msgspec.structs.replace(state, offsets=committed, transactions={}, restored=True)


def _is_commit(snapshot: Snapshot, sequence: int) -> bool:
    """Return whether a snapshot is our commit of this number."""
    summary = snapshot.summary
    found = summary.additional_properties.get(_SEQUENCE_KEY) if summary else None
    return found == str(sequence)


def _refuse_unwritable(table: Table, ours: pa.Schema) -> None:
    """Check that rows can be added to a table that others may have changed.

    Raises:
        InvalidRequestError: it is partitioned, or columns were renamed, dropped or added as
            required.
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


def existing_iceberg(name: str, *, catalog: Mapping[str, str]) -> IcebergStore:
    """Return an existing table.

    Raises:
        InvalidConfigError: it does not exist.
    """
    _namespace_of(name)
    try:
        table = open_catalog(catalog).load_table(name)
    except NoSuchTableError as error:
        raise InvalidConfigError(f"the catalog has no table {name}") from error
    return IcebergStore(name, root=local_path(table.location()), catalog=catalog)
