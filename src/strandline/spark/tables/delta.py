"""A Delta Lake table as a store of commits: offsets and data in the same entry of the Delta log.

Rules: a commit is written for exactly the next version (``max_commit_retries=0``), so of two
writers one succeeds and the other decides again; delta-rs alone would let both append. The state is
JSON in the commit's information. The offsets are also in Delta's application transactions
(``strandline/<partition>``), which outlive the clean-up of the log. The valid state is that of the
version whose files the table has: a ``RESTORE`` also restores the state. If the table requires a
feature of its writers that this one lacks, each commit is rejected. Data files get their names in
the table's directory before the commit: only the log says which files are in a Delta table, and
``VACUUM`` removes files that a crash in between left. Must not know Spark, nor what may be
committed.
"""

import json
import math
import operator
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial, reduce
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    TableNotFoundError,
)
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from strandline.errors import InvalidRequestError, UnavailableError
from strandline.spark.tables.columns import followed_type, is_part
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.log import (
    DataFile,
    LiveFile,
    PartitionId,
    Proposal,
    TableState,
    decode_schema,
    decode_state,
    encode_schema,
    encode_state,
    staged_name,
)
from strandline.spark.tables.store import (
    Loaded,
    TableStore,
    check_every,
    check_has_records,
    failure_kind,
    reason_of,
)
from strandline.values.decode import RECORD_PREFIX

STATE_KEY = "strandline.state"
"""Key of the state in the commit's information."""
OFFSET_ID = "strandline/"
"""Prefix of the application transactions that hold a partition's committed offset."""
SEQUENCE_ID = "strandline-commits"
"""The application transaction that counts the commits of loads."""
PARTITIONS_ID = "strandline-partitions"
"""The application transaction with the number of partitions of a stream."""
STREAMS_ID = "strandline-stream-partitions"
"""The application transaction with the number of partitions of several streams."""
_FEATURES = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features that do not affect an append of whole columns, unless the table's metadata says
so; others are rejected by name.
"""
_CONSTRAINT = "delta.constraints."
_COMPUTED = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Metadata of a column whose values a writer must check or compute."""


class DeltaStore(TableStore):
    """A Delta table, created by the first commit."""

    def load(self) -> Loaded:
        """Return the newest state in the Delta log, and the table at the version it was read from.

        Raises:
            InvalidRequestError: there is no directory, or no readable Delta log.
            UnavailableError: the log cannot be read now.
        """
        try:
            return self._load()
        except TableNotFoundError:
            return Loaded(None)
        except OSError as error:
            raise failure_kind(error)(
                f"the Delta log of {self.directory}: {reason_of(error)}"
            ) from error
        except DeltaError as error:
            raise InvalidRequestError(
                f"{self.directory} is not a Delta table: {reason_of(error)}"
            ) from error

    def _load(self) -> Loaded:
        table = DeltaTable(str(self.directory), storage_options=self.directory.delta_options())
        while True:
            version, state = table.version(), _committed(table)
            # delta-rs reads the history of the newest version, but with the numbers of the loaded
            # one: after a commit in between the state would be ahead of the files.
            table.update_incremental()
            if table.version() == version:
                return Loaded(state, table)

    def check_kind(self, schema: pa.Schema | None) -> None:
        """Check that there is no table of plain files, nor a foreign Delta table of other columns.

        The columns of a table of a load are checked later, by its state.
        """
        if TableFiles(self.directory).sequences():
            raise InvalidRequestError(
                f"{self.directory} is a table of plain Parquet files; leave tableFormat out, or "
                "choose another directory"
            )
        state, table = self.load()
        if table is None or schema is None:
            return
        _check_writable(table, Schema.from_arrow(schema) if state else table.schema())
        if state is None:
            _check_foreign_columns(table, schema)

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Append the files to the version after the one that was loaded."""
        schema = Schema.from_arrow(decode_schema(state.arrow_schema))
        if after.at is not None:
            known = schema
            if after.state is not None:
                known = Schema.from_arrow(decode_schema(after.state.arrow_schema))
            _check_writable(after.at, known, replaces=bool(proposal.primary_key))
            if self._add_columns(after, _arrow(schema)):
                return False
            schema = after.at.schema()
        self.directory.check_files_exist(proposal.files)
        named = [staged_name(file) for file in proposal.files]
        self.directory.place(named)
        is_change = proposal.changes_data
        added = [_add_action(file, is_change=is_change) for file in named]
        removed = [RemoveAction(path, is_change, _now_ms()) for path in proposal.replaces]
        properties = _properties(state, proposal)
        # A file of a failed commit keeps its name: the outcome is not always known.
        try:
            if after.at is None:
                create_table_with_add_actions(
                    str(self.directory),
                    schema,
                    added,
                    commit_properties=properties,
                    storage_options=self.directory.delta_options(),
                )
            else:
                after.at.create_write_transaction(
                    [*added, *removed], "append", schema, commit_properties=properties
                )
        except (DeltaError, OSError) as error:
            self._check_lost_race(after, error)
            return False
        return True

    def _check_lost_race(self, after: Loaded, error: Exception) -> None:
        """Check that a commit failed because of another commit; raise any other error."""
        # Retry only after another writer's commit: other failures would recur without end.
        is_lost_race = isinstance(error, CommitFailedError) or "already exists" in str(error)
        if is_lost_race and self._has_moved_on(after):
            return
        if isinstance(error, DeltaProtocolError):
            raise InvalidRequestError(
                f"cannot write to {self.directory}: {reason_of(error)}"
            ) from error
        raise failure_kind(error)(
            f"the Delta log of {self.directory}: {reason_of(error)}"
        ) from error

    def _add_columns(self, after: Loaded, ours: pa.Schema) -> bool:
        """Add the columns that the table lacks, in a separate commit; False: it lacks none.

        The library has no commit of both columns and files. After a crash in between, the new
        columns are null and the table's state does not have them; the batch is decided again.

        Raises:
            InvalidRequestError: the table has a column of this name with another type.
        """
        table: DeltaTable = after.at
        theirs = _schema(table)
        missing, other = list[pa.Field](), list[pa.Field]()
        for field in ours:
            has = theirs.field(field.name).type if field.name in theirs.names else None
            both = field.type if has is None else followed_type(has, field.type, widens=False)
            if both != has:
                missing.append(field)
            if not is_part(field.type, both, widens=False):
                other.append(theirs.field(field.name))
        if other:
            raise InvalidRequestError(
                f"{table.table_uri} has a column {other[0].name} {other[0].type} of somebody else, "
                f"and the stream's schema one of {ours.field(other[0].name).type}: nothing was "
                "written; remove theirs, or load into another table with a new checkpoint"
            )
        if not missing:
            return False
        try:
            table.alter.add_columns(
                list(Schema.from_arrow(pa.schema(missing)).fields),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:
            self._check_lost_race(after, error)
        return True

    def scan(self, loaded: Loaded) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the loaded version.

        Raises:
            InvalidRequestError: the library cannot read the table.
        """
        assert loaded.state is not None
        names = decode_schema(loaded.state.arrow_schema).names
        try:
            dataset = loaded.at.to_pyarrow_dataset()
        except DeltaError as error:
            raise InvalidRequestError(
                f"{self.directory} cannot be read: {reason_of(error)}"
            ) from error
        yield from dataset.to_batches(columns=names)

    def live_files(self, loaded: Loaded, *, every: bool = False) -> list[LiveFile]:
        """Return the Parquet files of the version, unless some of their rows are deleted."""
        table: DeltaTable = loaded.at
        has_vectors = "deletionVectors" in (table.protocol().writer_features or ())
        named = pa.table(table.get_add_actions(flatten=True)).select(
            ["path", "size_bytes", "num_records"]
        )
        found = [
            LiveFile(path=path, rows=rows, size_bytes=size)
            for path, size, rows in zip(*(c.to_pylist() for c in named.columns), strict=True)
            if rows is not None and path.startswith("part-") and "/" not in path and not has_vectors
        ]
        if every:
            check_every(table.table_uri, len(found), named.num_rows)
        return found

    def open_live(self, loaded: Loaded, file: LiveFile) -> Any:
        """Open a file of the table's directory."""
        del loaded
        named = DataFile(name=file.path, staged="", rows=file.rows, size_bytes=file.size_bytes)
        return self.directory.open_file(self.directory.locate(named))

    def committed_at_ms(self, loaded: Loaded) -> int | None:
        """Return the time in the log."""
        if loaded.at is None:
            return None
        timestamp: int = loaded.at.history(1)[0]["timestamp"]
        return timestamp

    def expire(self, *, age_s: float) -> int:
        """Remove the files that were replaced at least ``age_s`` seconds ago, by ``VACUUM``."""
        table: DeltaTable | None = self.load().at
        if table is None:
            return 0
        hours = math.ceil(age_s / 3600)
        since_ms = time.time() * 1000 - age_s * 1000
        history = table.history()
        vacuumed_ms = next(
            (each["timestamp"] for each in history if each.get("operation") == "VACUUM END"), 0
        )
        # A ``VACUUM`` lists the directory, so run one only each tenth of ``age_s``.
        if history[-1]["timestamp"] > since_ms or vacuumed_ms > since_ms + age_s * 900:
            return 0
        try:
            removed = table.vacuum(hours, dry_run=False, enforce_retention_duration=False)
        except (DeltaError, OSError) as error:
            raise UnavailableError(f"VACUUM of {self.directory}: {reason_of(error)}") from error
        self.forget(removed)
        return len(removed)

    def _has_moved_on(self, after: Loaded) -> bool:
        """Return whether another writer committed since ``after`` was loaded."""
        now = self.load().at
        return now is not None and (after.at is None or now.version() > after.at.version())


def _committed(table: DeltaTable) -> TableState | None:
    """Return the state of our newest commit in the table, after any ``RESTORE``.

    Raises:
        InvalidRequestError: the state cannot be determined.
    """
    history = table.history()
    newest, undone = table.version(), None
    for i, entry in enumerate(history):
        if STATE_KEY in entry:
            where = f"version {entry['version']} of {table.table_uri}"
            state = decode_state(entry[STATE_KEY], name=where)
            if entry["version"] <= newest:
                return msgspec.structs.replace(state, restored=undone is not None)
            undone = undone or state
        elif entry["version"] <= newest and entry.get("operation") == "RESTORE":
            newest = _restored_version(entry, history[i + 1 :])
    if undone is None:
        return _state_by_transactions(table)
    if history[-1]["version"] > 0:
        raise InvalidRequestError(
            f"{table.table_uri} was restored to version {newest}, and its log does not reach back "
            "far enough to tell which records that version has; load into another table, with a "
            "new checkpoint"
        )
    return msgspec.structs.replace(undone, offsets={}, transactions={}, restored=True)


def _restored_version(entry: Mapping[str, Any], older: Sequence[Mapping[str, Any]]) -> int:
    """Return the version that a ``RESTORE`` brought back, given by number or time.

    Raises:
        InvalidRequestError: the entry has neither.
    """
    given = entry.get("operationParameters", {})
    if str(given.get("version", "")).isdecimal():
        return int(given["version"])
    until_ms = _milliseconds(str(given.get("timestamp") or given.get("datetime") or ""))
    if until_ms is None:
        raise InvalidRequestError(
            f"version {entry['version']} of the table is a RESTORE to {dict(given)}, from which "
            "its version cannot be determined; restore the table again, to a version number"
        )
    return next((each["version"] for each in older if each["timestamp"] <= until_ms), 0)


def _milliseconds(text: str) -> float | None:
    """Return the Unix milliseconds of a number or a time with its zone; None: it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else moment.timestamp() * 1000


def _check_writable(table: DeltaTable, ours: Schema, *, replaces: bool = False) -> None:
    """Check that this writer may append rows with these columns to a table, or replace rows.

    Raises:
        InvalidRequestError: the table requires a feature that this writer lacks; the message names
            it, and says what to do.
    """
    metadata, protocol = table.metadata(), table.protocol()
    theirs = {field.name: field for field in table.schema().fields}
    given = {field.name: field for field in ours.fields}
    rules = [key for key in metadata.configuration if key.startswith(_CONSTRAINT)]
    computed = [f.name for f in theirs.values() if any(key in f.metadata for key in _COMPUTED)]
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    required = [f.name for f in theirs.values() if not f.nullable]
    mapping = metadata.configuration.get("delta.columnMapping.mode") or "none"
    only_appends = replaces and metadata.configuration.get("delta.appendOnly") == "true"
    found, ours_in_arrow = _schema(table), _arrow(ours)
    changed = [
        f"{name} {field.type}"
        for name, field in given.items()
        if name not in theirs
        or not is_part(ours_in_arrow.field(name).type, found.field(name).type, widens=False)
    ]
    for wrong, reason in (
        (metadata.partition_columns, "is partitioned by {}, and rows come from all partitions"),
        (rules, "has the constraints {}, which this sink does not check"),
        (computed, "has values of {} checked or computed by its writers, which this sink does not"),
        (unknown, "has the writer features {}, which this sink does not know"),
        (required, "has NOT NULL columns ({}), which this sink does not check"),
        ([mapping] if mapping != "none" else [], "maps its columns by {}"),
        (["delta.appendOnly"] if only_appends else [], "takes only appends ({})"),
        (changed, "no longer has the columns {}"),
    ):
        if wrong:
            names = ", ".join(each.removeprefix(_CONSTRAINT) for each in wrong)
            raise InvalidRequestError(
                f"{table.table_uri} {reason.format(names)}: nothing was written; take that back, "
                "or load into another table with a new checkpoint"
            )


def _check_foreign_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Check that the rows have exactly the columns of a foreign Delta table."""
    columns = table.schema()
    if columns != Schema.from_arrow(schema):
        theirs, ours = (
            ", ".join(f"{field.name} {field.type}" for field in pa.schema(each))
            for each in (columns.to_arrow(), schema)
        )
        raise InvalidRequestError(
            f"{table.table_uri} is somebody's Delta table with the columns {theirs}, and the rows "
            f"have {ours}; choose another directory, or select the table's columns in its order "
            "and types"
        )


def _state_by_transactions(table: DeltaTable) -> TableState | None:
    """Return the committed state if log clean-up removed our last commit; None if we made none.

    Batches and the stream's identity are forgotten then: a replay is rejected for its offsets, not
    acknowledged.
    """
    sequence = table.transaction_version(SEQUENCE_ID)
    if sequence is None:
        return None
    offsets = _committed_offsets(table)
    state = TableState(
        sequence=sequence,
        arrow_schema=encode_schema(_schema(table)),
        tracks_offsets=bool(offsets),
        offsets=offsets,
        primary_key=None,
    )
    # A RESTORE leaves the application transactions as they are.
    check_has_records(table.table_uri, state, partial(_has_record, table))
    return state


def _committed_offsets(table: DeltaTable) -> dict[PartitionId, int]:
    """Return the offsets that the application transactions have.

    Raises:
        InvalidRequestError: they cannot all be found.
    """
    several = table.transaction_version(STREAMS_ID)
    partitions: Iterable[PartitionId] = range(table.transaction_version(PARTITIONS_ID) or 0)
    if several is not None:
        # Delta does not list its transactions, so the rows say which streams there are.
        prefix = RECORD_PREFIX if f"{RECORD_PREFIX}stream" in _schema(table).names else ""
        place = [f"{prefix}stream", f"{prefix}partition"]
        rows = _dataset(table).to_table(columns=place).group_by(place).aggregate([])
        partitions = ["/".join(map(str, row.values())) for row in rows.to_pylist()]
    versions = {p: table.transaction_version(f"{OFFSET_ID}{p}") for p in partitions}
    found = {p: offset for p, offset in versions.items() if offset is not None}
    if several is not None and len(found) != several:
        raise InvalidRequestError(
            f"the log of {table.table_uri} was cleaned up since the last load, and only "
            f"{len(found)} of the {several} partitions that were loaded have rows to tell their "
            "names; load into another table, with a new checkpoint"
        )
    return found


def _schema(table: DeltaTable) -> pa.Schema:
    return _arrow(table.schema())


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _has_record(table: DeltaTable, values: Mapping[str, int | str]) -> bool:
    """Return whether a table has a row with these values; errors as ``_dataset``."""
    tests = [pc.field(name) == value for name, value in values.items()]
    found: int = _dataset(table).count_rows(filter=reduce(operator.and_, tests))
    return found > 0


def _dataset(table: DeltaTable) -> Any:
    """Return the rows of a table.

    Raises:
        InvalidRequestError: the library cannot read them.
    """
    try:
        return table.to_pyarrow_dataset()
    except DeltaError as error:
        raise InvalidRequestError(
            f"{table.table_uri} cannot be read, and its log was cleaned up since the last load: "
            f"{reason_of(error)}; load into another table, with a new checkpoint"
        ) from error


def _properties(state: TableState, proposal: Proposal) -> CommitProperties:
    marks = {f"{OFFSET_ID}{p}": state.offsets[p] for p in proposal.ranges}
    numbers = [p for p in state.offsets if isinstance(p, int)]
    marks[SEQUENCE_ID] = state.sequence
    if len(numbers) == len(state.offsets):
        marks[PARTITIONS_ID] = max(numbers, default=-1) + 1
    else:
        marks[STREAMS_ID] = len(state.offsets)
    read = {str(p): [found.start, found.stop] for p, found in proposal.ranges.items()}
    return CommitProperties(
        custom_metadata={STATE_KEY: encode_state(state), "strandline.read": json.dumps(read)},
        max_commit_retries=0,
        app_transactions=[Transaction(name, value) for name, value in marks.items()],
    )


def _add_action(file: DataFile, *, is_change: bool) -> AddAction:
    """Return the action that adds a file; the rows of a merged one are no change of data."""
    statistics = json.dumps({"numRecords": file.rows})
    return AddAction(file.name, file.size_bytes, {}, _now_ms(), is_change, statistics)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
