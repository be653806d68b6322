"""The commit log of a table: its state, and whether a proposed commit may follow it.

A commit adds data files and records the offset ranges they hold and the batch of the transaction,
all in one atomic step. This ``TableState`` contains everything that later decisions need, so that
the newest one is sufficient. A table of plain Parquet files keeps it in numbered manifests, a Delta
Lake or Iceberg table in the commit's metadata.

Rules: pure values and decisions, no files, no clock, no Spark. The invariants:

- a batch (transaction id, batch number) is committed once; repeating it is acknowledged if it holds
  the same records and rejected if not; a smaller batch number than the last is rejected;
- no offset of a partition is committed twice, and, in a dense table, none is left out;
- if the streams of the offsets are known, none was recreated since.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec
import pyarrow as pa

from strandline.errors import UNDECODABLE, DataLossError, InvalidRecordError, InvalidRequestError
from strandline.spark.planning import identities
from strandline.spark.tables.columns import follows

MANIFEST_VERSION = 1
_WORD = 1 << 64


class RangeSummary(msgspec.Struct, frozen=True, array_like=True):
    """A summary of the rows of one partition: ``start <= offset < stop``, count, sum of offsets."""

    start: int
    stop: int
    rows: int
    offset_sum: int
    """Sum of the rows' offsets modulo 2**64: distinguishes a repeated offset from a missing one."""

    @property
    def is_dense(self) -> bool:
        """Return whether count and sum match every offset of the range once."""
        span = self.stop - self.start
        expected = (self.start + self.stop - 1) * span // 2 % _WORD
        return self.rows == span and self.offset_sum % _WORD == expected


PartitionId = int | str
"""A partition: its number, or, in a table of several streams, its name, as ``orders/0``."""
Ranges = dict[PartitionId, RangeSummary]


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of the table."""

    name: str
    """The file's name among the committed files, once it is placed there."""
    staged: str
    """The file's name in the staging directory."""
    rows: int
    size_bytes: int


class LiveFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file of a table as it was loaded, whoever wrote it."""

    path: str
    """The path as written in the table's log."""
    rows: int
    size_bytes: int


class LastBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The newest batch of a transaction id, and its content."""

    batch: int
    rows: int
    ranges: Ranges = {}


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """The committed state of a table, with everything that later decisions need."""

    version: int = MANIFEST_VERSION
    sequence: int
    """The number of the commit among those of loads, from 0."""
    arrow_schema: bytes
    """The schema of every data file, in Arrow's IPC form."""
    tracks_offsets: bool
    offsets: dict[PartitionId, int] = {}
    """The offset up to which each partition is committed, exclusive."""
    transactions: dict[str, LastBatch] = {}
    stream: str | None = None
    """The stream of the offsets, name and creation time; of several with commas between; None:
    unknown.
    """
    primary_key: list[str] | None = []
    """Columns by which records replace and delete rows; None: unknown."""
    restored: bool = False
    """Whether the table was restored to this state. Not stored: true until the next commit."""


class Manifest(TableState, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One commit of a table of plain Parquet files, and the state after it."""

    txn_id: str
    batch: int
    rows: int
    committed_at_ms: int
    files: list[DataFile]
    """The files that this commit adds; of a complete manifest, all files of the table."""
    base: int = 0
    """Number of the newest complete manifest, possibly this one; without one, of the first."""
    replaced: list[str] = []
    """The files that a complete manifest replaces."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A proposed commit."""

    txn_id: str
    batch: int
    files: list[DataFile]
    arrow_schema: bytes
    tracks_offsets: bool
    ranges: Ranges = {}
    """The records read, including rejected ones that are in no file."""
    dense: bool = True
    """Reject gaps within the batch and between it and the committed offsets."""
    stream: str | None = None
    """As in ``TableState``."""
    primary_key: list[str] = []
    """As in ``TableState``."""
    deletes: list[DataFile] = []
    """Files with the keys of rows to delete."""
    stored: Ranges = {}
    """How many records the stream has in each span that ``unexplained`` returns."""
    replaces: list[str] = []
    """Paths of live files that ``files`` replace; ``files`` have their rows that remain."""
    follows: dict[str, str] | None = None
    """If the columns may be the table's with others after them, or wider: new names of columns."""

    @property
    def has_several(self) -> bool | None:
        """Return whether the ranges are of several streams; None: there are no ranges."""
        return isinstance(next(iter(self.ranges)), str) if self.ranges else None

    @property
    def changes_data(self) -> bool:
        """Return whether the commit adds or removes rows; a merge of files does not."""
        return bool(self.ranges) or not self.replaces

    @property
    def rows(self) -> int:
        """Return the number of rows of all files."""
        return sum(file.rows for file in [*self.files, *self.deletes])


S = TypeVar("S", bound=TableState)
V = TypeVar("V")


def decide(
    last: TableState | None, proposal: Proposal
) -> TableState | Literal["already committed"]:
    """Return the state after committing ``proposal`` on top of ``last``.

    Args:
        last: the newest state of the table; None before the first commit.
        proposal: what to commit; without files or ranges only the first commit is useful.

    Raises:
        InvalidRequestError: the batch was committed with other content, is older than the last, or
            repeats committed offsets; or its columns differ from the table's, or its records are
            another stream's; or the table that earlier batches of a load were in is gone.
        DataLossError: a dense table would get a gap.
    """
    assert last is None or proposal.files or proposal.ranges, "an empty batch needs no commit"
    ranges = proposal.ranges
    if last is not None:
        check_same_stream(last, proposal.stream, several=proposal.has_several)
        if _is_replay(last, proposal):
            return "already committed"
        _check_same_schema(last, proposal)
    elif proposal.batch > 0 and proposal.stream is not None:
        raise InvalidRequestError(
            f"there is no table, but batch {proposal.batch} of {proposal.stream} is not the load's "
            "first: the table was deleted, or moved, and its checkpoint was not; nothing was "
            "written: bring the table back, or load into a new one with a new checkpoint"
        )
    offsets = dict(last.offsets) if last else {}
    for partition, found in sorted(ranges.items()):
        _check_not_repeated(partition, found, offsets.get(partition))
    for partition, span in unexplained(last, proposal).items():
        _check_no_hole(partition, span, proposal)
    offsets |= {partition: found.stop for partition, found in ranges.items()}
    batch = LastBatch(batch=proposal.batch, rows=proposal.rows, ranges=ranges)
    transactions = dict(last.transactions) if last else {}
    return TableState(
        sequence=last.sequence + 1 if last else 0,
        arrow_schema=proposal.arrow_schema,
        tracks_offsets=proposal.tracks_offsets,
        offsets=dict(sorted(offsets.items())),
        transactions=transactions | {proposal.txn_id: batch},
        stream=_joined_streams(last, proposal.stream),
        primary_key=proposal.primary_key,
    )


def unexplained(last: TableState | None, proposal: Proposal) -> dict[PartitionId, tuple[int, int]]:
    """Return the missing offsets of each partition, for which the stream must count its records.

    Within a batch, and between it and the last one, only offsets of transaction markers, aborted
    records and compacted records may be missing. If a query filters records on purpose, only the
    offsets before the batch are checked, and only after the table was restored: a checkpoint from
    before the restore would skip the records that the table now lacks.
    """
    committed = last.offsets if last else {}
    restored = last is not None and last.restored
    spans: dict[PartitionId, tuple[int, int]] = {}
    for partition, found in proposal.ranges.items():
        start = committed.get(partition, 0 if restored else found.start)
        is_hole = start < found.start
        if proposal.dense and (is_hole or not found.is_dense):
            spans[partition] = (start, found.stop)
        elif is_hole and restored:
            spans[partition] = (start, found.start)
    return spans


def check_same_stream(
    state: TableState, stream: str | None, *, several: bool | None = None
) -> None:
    """Check that a table's offsets are those of a stream, or of several.

    Args:
        state: the state of the table.
        stream: name and creation time of the stream, or of several, separated by commas; None:
            unknown.
        several: whether rows name their stream; None: unknown.

    Raises:
        InvalidRequestError: the offsets are of another stream, perhaps with the same name; or only
            one of table and load has rows that name their stream.
    """
    has_several = any(isinstance(partition, str) for partition in state.offsets)
    if several is not None and state.offsets and several != has_several:
        kinds = "several streams, which a column names", "one stream, which no column names"
        theirs, ours = kinds if has_several else kinds[::-1]
        instead = (
            "select that one with option 'streamPattern' in place of its name"
            if has_several
            else "write to another table, with a new checkpoint"
        )
        raise InvalidRequestError(
            f"the table holds records of {theirs}, and the rows are those of {ours}; {instead}"
        )
    if stream is None or state.stream is None:
        return
    known, given = identities(state.stream), identities(stream)
    changed = {name for name in known.keys() & given.keys() if known[name] != given[name]}
    if not changed and (has_several or not state.offsets or known.keys() & given.keys()):
        return
    name = min(changed, default=None)
    theirs, ours = (state.stream, stream) if name is None else (known[name], given[name])
    raise InvalidRequestError(
        f"the table holds records of stream {theirs}, not of {ours}: offsets of one "
        "mean nothing in the other; write to another table, with a new checkpoint"
    )


def check_same_key(state: TableState, primary_key: Sequence[str]) -> None:
    """Check that a table has this primary key.

    Raises:
        InvalidRequestError: the table has another primary key, or only one of the two has none.
    """
    if state.primary_key is not None and state.primary_key != list(primary_key):
        theirs, ours = (", ".join(key) or "none" for key in (state.primary_key, primary_key))
        raise InvalidRequestError(
            f"the table's primary key is {theirs}, not {ours}: its rows are told apart by that; "
            "load into another table, with a new checkpoint"
        )


def _joined_streams(state: TableState | None, stream: str | None) -> str | None:
    """Return the identities of a table's streams and those of a proposal."""
    known = identities(state.stream or "") if state is not None else {}
    both = known | identities(stream or "")
    return ",".join(sorted(identity for identity in both.values() if identity)) or None


def manifest_of(
    state: TableState, proposal: Proposal, *, files: list[DataFile], base: int, now_ms: int
) -> Manifest:
    """Return the manifest that makes ``state`` the newest.

    Args:
        state: the state after the commit.
        proposal: the proposal that is committed.
        files: the files that the manifest lists, with their final names.
        base: number of the newest complete manifest.
        now_ms: Unix time.
    """
    return Manifest(
        sequence=state.sequence,
        arrow_schema=state.arrow_schema,
        tracks_offsets=state.tracks_offsets,
        offsets=state.offsets,
        transactions=state.transactions,
        stream=state.stream,
        txn_id=proposal.txn_id,
        batch=proposal.batch,
        rows=sum(file.rows for file in files),
        committed_at_ms=now_ms,
        files=files,
        base=base,
        replaced=proposal.replaces,
    )


def merge_ranges(several: Iterable[Mapping[PartitionId, RangeSummary]]) -> Ranges:
    """Merge the ranges of several files, partitions ascending."""
    merged: Ranges = {}
    for ranges in several:
        for partition, found in ranges.items():
            seen = merged.get(partition)
            merged[partition] = found if seen is None else _joined(seen, found)
    return dict(sorted(merged.items()))


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest as JSON, indented for human readers."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode_manifest(data: bytes, *, name: str) -> Manifest:
    """Decode the result of ``encode_manifest``; arguments and errors as ``decode_state``."""
    return _decoded(data, Manifest, name)


def encode_state(state: TableState) -> str:
    """Encode a state as JSON, for the metadata of a commit."""
    return msgspec.json.encode(state).decode()


def decode_state(data: bytes | str, *, name: str) -> TableState:
    """Decode the result of ``encode_state``.

    Args:
        data: the stored bytes.
        name: where they were found, for the error.

    Raises:
        InvalidRecordError: not a state, or of a version this release does not know.
    """
    return _decoded(data, TableState, name)


def encode_schema(schema: pa.Schema) -> bytes:
    """Encode a schema for a manifest."""
    return bytes(schema.serialize())


def decode_schema(data: bytes) -> pa.Schema:
    """Decode the result of ``encode_schema``."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def partition_id(text: str) -> PartitionId:
    """Return the ``PartitionId`` of a key in JSON."""
    return int(text) if text.isdecimal() else text


def live_files(manifests: Sequence[Manifest]) -> list[DataFile]:
    """Return every committed data file, oldest first."""
    return [file for manifest in manifests for file in manifest.files]


def _joined(a: RangeSummary, b: RangeSummary) -> RangeSummary:
    return RangeSummary(
        min(a.start, b.start),
        max(a.stop, b.stop),
        a.rows + b.rows,
        (a.offset_sum + b.offset_sum) % _WORD,
    )


def numbered(file: DataFile, sequence: int, index: int) -> DataFile:
    """Return a file named after its commit."""
    return msgspec.structs.replace(file, name=f"part-{sequence:020d}-{index:05d}.parquet")


def staged_name(file: DataFile) -> DataFile:
    """Return a file that keeps its staged name, for formats where commit numbers are not known."""
    return msgspec.structs.replace(file, name=file.staged)


def _decoded(data: bytes | str, kind: type[S], name: str) -> S:
    try:
        state = msgspec.json.decode(data, type=kind)
    except UNDECODABLE as error:
        raise InvalidRecordError(f"{name} is not a table manifest: {error}") from error
    if state.version != MANIFEST_VERSION:
        raise InvalidRecordError(
            f"{name} is a manifest of version {state.version}; this release reads version "
            f"{MANIFEST_VERSION}: upgrade strandline"
        )
    return msgspec.structs.replace(
        state,
        offsets=_numbered(state.offsets),
        transactions={
            txn_id: msgspec.structs.replace(batch, ranges=_numbered(batch.ranges))
            for txn_id, batch in state.transactions.items()
        },
    )


def _numbered(decoded: Mapping[PartitionId, V]) -> dict[PartitionId, V]:
    """Return decoded values by ``PartitionId``: in JSON all keys, also numbers, are text."""
    return {partition_id(str(partition)): value for partition, value in decoded.items()}


def _is_replay(last: TableState, proposal: Proposal) -> bool:
    """Return whether the proposal repeats the newest batch of its transaction.

    Raises:
        InvalidRequestError: the number is that of the last batch, with other content, or is lower.
    """
    newest = last.transactions.get(proposal.txn_id)
    if newest is None or proposal.batch > newest.batch:
        return False
    if proposal.batch < newest.batch:
        raise InvalidRequestError(
            f"batch {proposal.batch} of transaction {proposal.txn_id} comes after batch "
            f"{newest.batch} was committed: the checkpoint was restored from an old copy, or an "
            "old driver or another load runs with it; nothing was written"
        )
    if proposal.rows != newest.rows or proposal.ranges != newest.ranges:
        raise InvalidRequestError(
            f"batch {proposal.batch} of transaction {proposal.txn_id} is committed with "
            f"{newest.rows} rows of {_described(newest.ranges)}, and is now proposed with "
            f"{proposal.rows} rows of {_described(proposal.ranges)}: the checkpoint was restored "
            "from an old copy, or the query changed, or another load runs with it; nothing was "
            "written"
        )
    return True


def _check_same_schema(last: TableState, proposal: Proposal) -> None:
    # Compared as schemas: two versions of pyarrow may write one schema as different bytes.
    wanted, given = (decode_schema(data) for data in (last.arrow_schema, proposal.arrow_schema))
    is_following = proposal.follows is not None and follows(given, wanted, proposal.follows)
    if not given.equals(wanted) and not is_following:
        raise InvalidRequestError(
            f"the columns ({_columns(given)}) differ from the table's ({_columns(wanted)}); write "
            "to another directory, or select the table's columns in its order and types"
        )
    check_same_key(last, proposal.primary_key)
    if proposal.tracks_offsets != last.tracks_offsets:
        raise InvalidRequestError("the table's columns partition and offset changed their meaning")


def _check_not_repeated(partition: PartitionId, found: RangeSummary, committed: int | None) -> None:
    """Check that a range begins where the table ends, or later."""
    if committed is not None and found.start < committed:
        raise InvalidRequestError(
            f"{_batch_of(partition, found)}, but the table has everything up to {committed}: these "
            "records are committed already; start the query at "
            "strandline.spark.table.committed_offsets()"
        )


def _check_no_hole(partition: PartitionId, span: tuple[int, int], proposal: Proposal) -> None:
    """Check that the stream has no records at missing offsets.

    Args:
        partition: the partition.
        span: one of the spans of ``unexplained``.
        proposal: the proposal to commit.
    """
    found = proposal.ranges[partition]
    start, stop = span
    given = (found.rows, found.offset_sum % _WORD) if stop == found.stop else (0, 0)
    stored = proposal.stored.get(partition)
    if stored is not None and (stored.start, stored.stop) == span:
        if (stored.rows, stored.offset_sum % _WORD) == given:
            return
        problem = f"the stream has {stored.rows} records there, the batch {given[0]}:"
    else:
        problem = (
            "some missing offsets may be transaction markers, but the stream is not known: "
            "give the options server and stream of what is read; else"
        )
    where = f"{_batch_of(partition, found)} in {found.rows} rows"
    if start < found.start:
        where += f", but the table ends at {start}: {found.start - start} offsets are missing"
    else:
        where += ", and not each offset once"
    raise DataLossError(
        f"{where}; {problem} start with a new checkpoint, at "
        "strandline.spark.table.committed_offsets(); if the query leaves records out or multiplies "
        "them on purpose, set denseOffsets=false"
    )


def _batch_of(partition: PartitionId, found: RangeSummary) -> str:
    return f"partition {partition}: the batch holds offsets {found.start} to {found.stop}"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _described(ranges: Ranges) -> str:
    parts = [f"{p}:[{r.start},{r.stop})" for p, r in ranges.items()]
    return "offsets " + " ".join(parts) if parts else "no tracked offsets"
