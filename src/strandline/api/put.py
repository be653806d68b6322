"""DoPut: appending record batches, pipelined, with acks as metadata.

The descriptor's command is a ``PutRequest``. Each record batch may carry a ``BatchTag`` as
metadata. The broker writes one ``PutAck`` for each batch, in any order, once the batch is as
durable as requested or was rejected. A batch without a tag is numbered by its position in the call,
from 0.

Columns: ``value`` (binary) is required; ``key`` (binary), ``subject`` (string), ``headers``
(map<string, binary>) and ``message_id`` (string) are optional.

Rules: bytes and types of a batch are checked before any of its rows is used. Pure.
"""

import re
from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa

from strandline import arrow_compute as pc
from strandline.api.status import ErrorBody
from strandline.api.wire import Count, Name, PartitionNumber, WireAnswer, WireMessage
from strandline.config import Acks
from strandline.errors import InvalidRecordError
from strandline.record.schema import HEADERS_TYPE, RECORD_SCHEMA, SUBJECT_TYPE

PUT_TYPES: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "subject": SUBJECT_TYPE,
    "headers": HEADERS_TYPE,
    "message_id": pa.string(),
}
"""Columns of a put and their types, in order."""
NOT_STORED = -1
IGNORED_COLUMNS = frozenset(RECORD_SCHEMA.names) - frozenset(PUT_TYPES) | {"partition"}
"""Columns of a read that a put ignores, so that records can be copied to another stream."""
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")
"""The column for an unnamed index of pandas: row numbers, no data."""
_HEADER_FIELDS = ({"key", "value"}, {"name", "value"})
"""The fields of a header in a list of structs: Polars and Parquet use that instead of a map."""


PRODUCER_EPOCH_MAX = (1 << 15) - 1
SEQUENCE_MAX = (1 << 31) - 1
"""The largest sequence; before it is reached, a producer continues in its next epoch."""
PRODUCER_MEMORY_S = 600
"""A partition remembers a producer for at least this long after its last batch."""
NUMBERED_RECORDS_MAX = 65_535
"""The most records in a batch with a ``ProducerTag``, since it becomes one stored batch."""


class PutRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The target of a DoPut call."""

    stream: Name
    partition: PartitionNumber | None = None
    """For batches whose tag names no partition; None: each row is routed by its key or subject."""
    acks: Acks | None = None
    """A weaker level of acks than the stream's, for an earlier ack; a stronger one is rejected."""
    transactional: bool = False
    """Whether the batches belong to their producer's transaction, which has added the partition."""


class ProducerTag(WireMessage, frozen=True, array_like=True):
    """An idempotent producer's numbers for a batch; see ``types.ProducerStamp``."""

    producer_id: Count
    epoch: Annotated[int, msgspec.Meta(ge=0, le=PRODUCER_EPOCH_MAX)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]


class BatchTag(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """The metadata of one record batch."""

    sequence: Count
    """Returned with the ack."""
    partition: PartitionNumber | None = None
    after: Count | None = None
    """The unacknowledged batch before it in its partition. While that batch is rejected and may be
    sent again in this call, this one is rejected, too, so that they keep their order."""
    producer: ProducerTag | None = None
    """Deduplicates retries of the batch; requires ``partition``."""
    expected_offset: Count | None = None
    """Store the batch only at this offset; requires one record and ``partition``."""


class AckedRange(NamedTuple):
    """The offsets assigned to rows: ``records`` of them, starting at ``offset``."""

    partition: int
    offset: int
    records: int


class PutAck(WireAnswer, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one record batch."""

    sequence: int
    ranges: tuple[AckedRange, ...] = ()
    """Empty after an error, and if ``offsets`` has an offset for each row."""
    offsets: tuple[int, ...] = ()
    """The offset of each row, if rows have message ids; ``NOT_STORED`` for a row with ``error``."""
    partitions: tuple[int, ...] = ()
    """The partition of each row, if ``offsets`` is set."""
    duplicates: tuple[int, ...] = ()
    """Rows that had been stored before, under the same message id."""
    error: ErrorBody | None = None


def normalise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with its columns in the types and order of ``PUT_TYPES``.

    Raises:
        InvalidRecordError: there is no value column, an unknown column, or a wrong type.
    """
    names = batch.schema.names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRecordError(f"the batch has the column {twice[:80]!r} twice; rename one")
    if "value" not in names:
        raise InvalidRecordError(
            f"a batch needs a column 'value' of type binary or string; this one has {names[:10]}"
        )
    unknown = [name for name in names if name not in PUT_TYPES and not _is_ignored(name)]
    if unknown:
        raise InvalidRecordError(
            f"unknown column {unknown[0][:80]!r}; a batch may have: {', '.join(PUT_TYPES)}. "
            "Encode other columns into 'value', for example as JSON"
        )
    kept = [name for name in PUT_TYPES if name in names]
    arrays = [convert(batch.column(name), name) for name in kept]
    return pa.RecordBatch.from_arrays(arrays, schema=put_schema(kept))


def put_schema(names: list[str]) -> pa.Schema:
    """Return the schema of a put with these columns, in the order of ``PUT_TYPES``."""
    return pa.schema([(name, kind) for name, kind in PUT_TYPES.items() if name in names])


def convert(column: pa.Array, name: str) -> pa.Array:
    """Convert a column to the type that a put uses.

    A column of nulls is accepted with any type, since pandas cannot give it the right one.

    Raises:
        InvalidRecordError: the type does not convert, or a header has no value.
    """
    wanted = PUT_TYPES[name]
    if not column.type.equals(wanted):
        column = _converted(column, name)
    if name == "headers":
        _check_header_values(column)
    return column


def _is_ignored(name: str) -> bool:
    return name in IGNORED_COLUMNS or _PANDAS_INDEX.fullmatch(name) is not None


def _converted(column: pa.Array, name: str) -> pa.Array:
    wanted = PUT_TYPES[name]
    if column.null_count == len(column):
        return pa.nulls(len(column), wanted)
    rejection = InvalidRecordError(
        f"column {name!r} is {column.type}, not {wanted}; cast it, or encode it into 'value'"
    )
    try:
        if name == "headers":
            return _as_map(column, rejection).cast(wanted)
        if not _is_bytes_or_text(column.type):
            raise rejection
        plain = pa.string() if wanted == SUBJECT_TYPE else wanted
        if pa.types.is_dictionary(column.type):
            # Arrow cannot look up views (which Polars sends) in a dictionary, so use plain values.
            values = column.dictionary.cast(plain)
            column = pa.DictionaryArray.from_arrays(column.indices, values)
        column = column.cast(plain)
        return column.dictionary_encode() if wanted == SUBJECT_TYPE else column
    except pa.ArrowException as error:
        raise rejection from error


def _as_map(column: pa.Array, rejection: InvalidRecordError) -> pa.Array:
    """Return headers as a map; they may also be a list of structs.

    Raises:
        InvalidRecordError: ``rejection``, if the column is neither, or an entry is null.
    """
    if pa.types.is_map(column.type):
        return column
    is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    entry = column.type.value_type if is_list else None
    if entry is None or not pa.types.is_struct(entry):
        raise rejection
    fields = [field.name for field in entry]
    if len(fields) != len(set(fields)) or set(fields) not in _HEADER_FIELDS:
        raise rejection
    entries = column.flatten()
    if entries.null_count:
        raise InvalidRecordError("a header in column 'headers' is null; leave it out")
    lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths)
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    at = fields.index("value")
    names, values = entries.field(1 - at), entries.field(at)
    return pa.MapArray.from_arrays(starts, names, values, mask=column.is_null())


def _check_header_values(headers: pa.Array) -> None:
    """Reject headers without a value.

    Raises:
        InvalidRecordError: a header has no value; the message names it.
    """
    if headers.null_count == len(headers) or not headers.items.null_count:
        return
    for pairs in headers.to_pylist():
        for name, value in pairs or ():
            if value is None:
                raise InvalidRecordError(
                    f"header {name!r} has no value (null); leave it out, or give it an empty one"
                )


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    """Return whether a type's values are bytes or text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_null,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)
