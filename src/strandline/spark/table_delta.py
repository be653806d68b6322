"""A Delta Lake table as a store of commits: offsets and data in the same entry of the Delta log.

Rules: a commit is written for exactly the next version (``max_commit_retries=0``), so of two
writers one wins and the other decides anew; delta-rs alone would let both append. The state is JSON
in the commit's information, and the offsets are Delta's application transactions besides
(``strandline/<partition>``), which outlive the clean-up of the log. Data files get their names in
the table's directory before the commit: the log alone says what is in a Delta table, and ``VACUUM``
removes what a crash in between left. Must not know Spark, nor what may be committed.
"""

import json
import time
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from strandline.errors import InvalidRequestError, UnavailableError
from strandline.spark.table_files import TableFiles
from strandline.spark.table_log import (
    DataFile,
    Proposal,
    TableState,
    decode_schema,
    decode_state,
    encode_schema,
    encode_state,
)
from strandline.spark.table_store import Loaded, TableStore, local_path

STATE_KEY = "strandline.state"
"""Where the commit information has our state."""
OFFSET_ID = "strandline/"
"""Application transactions of this prefix and a partition's number hold its committed offset."""
SEQUENCE_ID = "strandline-commits"
"""The application transaction that counts our commits."""
PARTITIONS_ID = "strandline-partitions"
"""The application transaction that says how many partitions to look for."""


class DeltaStore(TableStore):
    """The Delta table at ``path``, made by the first commit.

    Args:
        path: directory, absolute or relative; a ``file:`` URI is understood.

    Raises:
        InvalidConfigError: a URI of another kind.
    """

    def __init__(self, path: str) -> None:
        super().__init__(local_path(path))

    def load(self) -> Loaded:
        """The newest state in the Delta log, and the table at the version it was read from.

        Raises:
            InvalidRequestError: there is no directory, or no Delta log that can be read.
        """
        try:
            table = DeltaTable(str(self.root))
        except TableNotFoundError:
            return Loaded(None)
        except DeltaError as error:
            raise InvalidRequestError(f"{self.root} is no Delta table: {error}") from error
        for entry in table.history():
            if STATE_KEY in entry:
                where = f"version {entry['version']} of {self.root}"
                return Loaded(decode_state(entry[STATE_KEY], name=where), table)
        return Loaded(_state_by_transactions(table), table)

    def refuse_other_kind(self, schema: pa.Schema) -> None:
        """Check that there is no table of plain files, nor somebody's Delta table of other columns.

        Of a table that has commits of ours the state tells the columns.
        """
        if TableFiles(str(self.root)).sequences():
            raise InvalidRequestError(
                f"{self.root} is a table of plain Parquet files; leave tableFormat out, or choose "
                "another directory"
            )
        state, table = self.load()
        if table is not None and state is None:
            _refuse_foreign(table, schema)

    def publish(self, after: Loaded, state: TableState, proposal: Proposal) -> bool:
        """Append the files to the version after the one that was loaded."""
        self.refuse_missing(proposal.files)
        named = [_named(file) for file in proposal.files]
        self.link_staged(named, self.root)
        schema = Schema.from_arrow(decode_schema(state.arrow_schema))
        actions = [_add_action(file) for file in named]
        properties = _properties(state, proposal)
        # A file of a commit that failed keeps its name: whether it failed is not always known.
        try:
            if after.at is None:
                create_table_with_add_actions(
                    str(self.root), schema, actions, commit_properties=properties
                )
            else:
                after.at.create_write_transaction(
                    actions, "append", schema, commit_properties=properties
                )
        except CommitFailedError:
            return False
        except DeltaError as error:
            if after.at is None and "already exists" in str(error):
                return False
            raise UnavailableError(f"the Delta log of {self.root}: {error}") from error
        return True


def _refuse_foreign(table: DeltaTable, schema: pa.Schema) -> None:
    """Check that rows can be appended to a Delta table that is not ours."""
    columns, partitioned = table.schema(), table.metadata().partition_columns
    if partitioned:
        raise InvalidRequestError(
            f"{table.table_uri} is a Delta table that is partitioned by {', '.join(partitioned)}, "
            "which this sink cannot write; choose another directory"
        )
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
    """What is committed when the log was cleaned up beyond our last commit; None if we made none.

    Batches are forgotten then: a replay is refused for its offsets, not acknowledged. So is which
    stream it was.
    """
    sequence = table.transaction_version(SEQUENCE_ID)
    if sequence is None:
        return None
    partitions = range(table.transaction_version(PARTITIONS_ID) or 0)
    found = {p: table.transaction_version(f"{OFFSET_ID}{p}") for p in partitions}
    return TableState(
        sequence=sequence,
        arrow_schema=encode_schema(pa.schema(table.schema().to_arrow())),
        tracks_offsets=bool(partitions),
        offsets={p: offset for p, offset in found.items() if offset is not None},
    )


def _properties(state: TableState, proposal: Proposal) -> CommitProperties:
    marks = {f"{OFFSET_ID}{p}": state.offsets[p] for p in proposal.ranges}
    marks |= {SEQUENCE_ID: state.sequence, PARTITIONS_ID: max(state.offsets, default=-1) + 1}
    read = {str(p): [found.start, found.stop] for p, found in proposal.ranges.items()}
    return CommitProperties(
        custom_metadata={STATE_KEY: encode_state(state), "strandline.read": json.dumps(read)},
        max_commit_retries=0,
        app_transactions=[Transaction(name, value) for name, value in marks.items()],
    )


def _named(file: DataFile) -> DataFile:
    """Under its staged name, which is random: no version number is known before the commit."""
    return msgspec.structs.replace(file, name=f"part-{Path(file.staged).name}")


def _add_action(file: DataFile) -> AddAction:
    return AddAction(
        file.name,
        file.size_bytes,
        {},
        time.time_ns() // 1_000_000,
        True,
        json.dumps({"numRecords": file.rows}),
    )
