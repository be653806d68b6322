"""DoPut: appending record batches, pipelined, with acks as metadata.

The descriptor's command is a ``PutRequest``. Each record batch may carry a ``BatchTag`` as
metadata; for each the broker writes one ``PutAck`` once the batch is as safe as was asked, or was
refused, in any order. A batch without a tag has the number of its place in the call, from 0.

Columns: ``value`` (binary) is required; ``key`` (binary), ``subject`` (string), ``headers``
(map<string, binary>) and ``message_id`` (string) are optional.

Rules: bytes and types of a batch are checked before any of its rows is used. Pure.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import msgspec
import pyarrow as pa

from strandline.config import Acks
from strandline.errors import InvalidRecordError
from strandline.protocol.status import ErrorBody
from strandline.protocol.wire import Answer, Count, Message, Name, PartitionNumber
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
"""Columns of a read that a put leaves to the broker, so that what was read can be put elsewhere."""


PRODUCER_EPOCH_MAX = (1 << 15) - 1
SEQUENCE_MAX = (1 << 31) - 1
"""A producer goes on in its next epoch before it needs a larger one."""
PRODUCER_MEMORY_S = 600
"""A partition knows a producer for at least so long after its last batch."""
NUMBERED_RECORDS_MAX = 65_535
"""Records in a batch with a ``ProducerTag``: it is stored as one."""


class PutRequest(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Where a DoPut call appends."""

    stream: Name
    partition: PartitionNumber | None = None
    """For batches whose tag names none; None: each row goes where its key or subject says."""
    acks: Acks | None = None
    """Less than the stream's promise, to be told sooner; more is refused."""
    transactional: bool = False
    """The batches belong to the transaction of their producer, which was let into the partition."""


class ProducerTag(Message, frozen=True, array_like=True):
    """The numbers an idempotent producer gave to a batch; as ``types.ProducerStamp``."""

    producer_id: Count
    epoch: Annotated[int, msgspec.Meta(ge=0, le=PRODUCER_EPOCH_MAX)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX)]


class BatchTag(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata of one record batch."""

    sequence: Count
    """Comes back with the ack."""
    partition: PartitionNumber | None = None
    producer: ProducerTag | None = None
    """Makes the batch stored once, however often it is sent; it names a partition then."""
    expected_offset: Count | None = None
    """Stored only if this is the next offset; a batch of one record that names a partition."""


class AckedRange(NamedTuple):
    """Where rows went: to ``records`` offsets from ``offset``."""

    partition: int
    offset: int
    records: int


class PutAck(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one record batch."""

    sequence: int
    ranges: tuple[AckedRange, ...] = ()
    """Empty after an error, and when ``offsets`` says it row by row."""
    offsets: tuple[int, ...] = ()
    """The offset of each row, if it has message ids; ``NOT_STORED`` where ``error`` holds."""
    partitions: tuple[int, ...] = ()
    """The partition of each row, with ``offsets``."""
    duplicates: tuple[int, ...] = ()
    """Rows that were stored before, under the same message id."""
    error: ErrorBody | None = None


def normalise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with exactly the columns it has of ``PUT_TYPES``, in their types and order.

    Raises:
        InvalidRecordError: no value column, an unknown column, or a type that does not convert.
    """
    names = batch.schema.names
    if len(set(names)) != len(names):
        raise InvalidRecordError("a column name appears twice in the batch")
    if "value" not in names:
        raise InvalidRecordError(
            f"a batch needs a column 'value' of type binary or string; this one has {names[:10]}"
        )
    unknown = [name for name in names if name not in PUT_TYPES and name not in IGNORED_COLUMNS]
    if unknown:
        raise InvalidRecordError(
            f"unknown column {unknown[0][:80]!r}; a batch may have: {', '.join(PUT_TYPES)}. "
            "Encode other columns into 'value', for example as JSON"
        )
    kept = [name for name in PUT_TYPES if name in names]
    arrays = [convert(batch.column(name), name) for name in kept]
    return pa.RecordBatch.from_arrays(arrays, schema=put_schema(kept))


def put_schema(names: list[str]) -> pa.Schema:
    """The schema of a put with these columns, in the order of ``PUT_TYPES``."""
    return pa.schema([(name, kind) for name, kind in PUT_TYPES.items() if name in names])


def convert(column: pa.Array, name: str) -> pa.Array:
    """A column in the type a put gives it.

    Raises:
        InvalidRecordError: the type does not convert.
    """
    wanted = PUT_TYPES[name]
    if column.type.equals(wanted):
        return column
    refusal = InvalidRecordError(f"column {name!r} is {column.type}, not {wanted}")
    if not _is_convertible(column.type, name):
        raise refusal
    try:
        if wanted != SUBJECT_TYPE:
            return column.cast(wanted)
        return column.cast(pa.string()).dictionary_encode()
    except pa.ArrowException as error:
        raise refusal from error


def _is_convertible(kind: pa.DataType, name: str) -> bool:
    """Whether values of a type mean the same as bytes, text or headers."""
    if name == "headers":
        return bool(pa.types.is_null(kind) or pa.types.is_map(kind))
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
