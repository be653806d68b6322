"""Conversion of the client's record batches to what Spark's Arrow reader accepts.

Rules: Spark checks only the first batch and fails obscurely on a later one that differs, so every
batch is cast to the target schema. Batches have 0.5-2 MiB (measured: smaller ones cost Spark up to
half its speed, larger ones gain nothing). Big batches are sliced, and copied only where small ones
precede them. Must not know the broker or pyspark: the target schema is an argument.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

SMALLEST_BYTES = 512 << 10
"""Minimum size of all batches but the last."""
TARGET_BYTES = 1 << 20
"""Small batches are combined until they reach this size."""
LARGEST_BYTES = 2 << 20
"""Larger batches are sliced."""
_NONE: Mapping[str, object] = MappingProxyType({})


def to_spark_batches(
    batches: Iterable[pa.RecordBatch], target: pa.Schema, *, constants: Mapping[str, object]
) -> Iterator[pa.RecordBatch]:
    """Combine, slice and cast record batches.

    Args:
        batches: have the columns that ``target`` names, and perhaps some others.
        target: Spark's Arrow schema: names, order, types and nullability.
        constants: columns with one value for all rows, such as the stream and the partition.
    """
    yield from map(SparkCast(target, constants=constants), sized_batches(batches))


def sized_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same records in batches of 0.5-2 MiB, except the last one."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        batch_bytes = _size(batch)
        if waiting_bytes >= SMALLEST_BYTES and waiting_bytes + batch_bytes > LARGEST_BYTES:
            yield _joined(waiting)
            waiting, waiting_bytes = [], 0
        if batch_bytes >= SMALLEST_BYTES and not waiting:
            yield from _sliced(batch, batch_bytes)
            continue
        waiting.append(batch)
        waiting_bytes += batch_bytes
        if waiting_bytes >= TARGET_BYTES:
            yield from _sliced(_joined(waiting), waiting_bytes)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield from _sliced(_joined(waiting), waiting_bytes)


class SparkCast:
    """Casts batches to exactly one schema; caches the necessary casts.

    Args:
        target: Spark's Arrow schema.
        constants: values of columns that batches lack.
    """

    def __init__(self, target: pa.Schema, *, constants: Mapping[str, object] = _NONE) -> None:
        self._target = target
        self._fields = [(field.name, field.type) for field in target]
        self._constants = constants
        self._repeated: dict[str, tuple[object, pa.Array]] = {}

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Cast a batch that has the target's columns, in any order and in castable types."""
        columns = [self._column(batch, name, kind) for name, kind in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _column(self, batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
        if name in self._constants:
            return self._repeat(name, self._constants[name], batch.num_rows, kind=kind)
        column = batch.column(name)
        if name == "headers" and pa.types.is_map(column.type):
            column = first_of_each_header(column)
        if column.type == kind:
            return column
        if isinstance(column, pa.DictionaryArray) and _is_constant(column):
            return self._repeat(name, column.dictionary[0].as_py(), len(column), kind=kind)
        # Spark keeps microseconds; cutting the nanoseconds off is what `safe=False` allows.
        return column.cast(kind, safe=not pa.types.is_timestamp(kind))

    def _repeat(self, name: str, value: object, rows: int, *, kind: pa.DataType) -> pa.Array:
        """Return an array that repeats a value; one array serves many batches."""
        known, array = self._repeated.get(name, (None, ()))
        if known != value or len(array) < rows:
            array = pa.repeat(pa.scalar(value, kind), rows)
            self._repeated[name] = value, array
        return array.slice(0, rows)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without views and 64-bit offsets, which files of other writers may have.

    Arrow stores the writer's types in a file, and cannot filter columns of views.
    """
    return pa.schema([field.with_type(_plain_type(field.type)) for field in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_string_view(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_binary_view(kind) or types.is_large_binary(kind):
        return pa.binary()
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def first_of_each_header(headers: pa.MapArray) -> pa.MapArray:
    """Remove repeated keys from maps, since a Spark map has none.

    The first value stays, which is what a NATS client's ``get`` returns.
    """
    if not _repeats(headers):
        return headers
    kept: list[list[tuple[str, bytes]] | None] = []
    for entries in headers.to_pylist():
        first: dict[str, bytes] = {}
        for key, value in entries or ():
            first.setdefault(key, value)
        kept.append(None if entries is None else list(first.items()))
    return pa.array(kept, type=headers.type)


def _size(batch: pa.RecordBatch) -> int:
    """Return the size of a batch: of its buffers, unless it may be a slice of larger ones."""
    size: int = batch.get_total_buffer_size()  # ``nbytes`` takes forty times as long
    return size if size <= LARGEST_BYTES else batch.nbytes


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _sliced(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    pieces = min(batch.num_rows, -(-batch_bytes // LARGEST_BYTES))
    if pieces <= 1:
        yield batch
        return
    edges = [batch.num_rows * i // pieces for i in range(pieces + 1)]
    for start, stop in pairwise(edges):
        yield batch.slice(start, stop - start)


def _is_constant(column: pa.DictionaryArray) -> bool:
    """Return whether all rows have the same value."""
    return len(column.dictionary) == 1 and not column.null_count


def _repeats(headers: pa.MapArray) -> bool:
    """Return whether any map has a repeated key."""
    if headers.null_count == len(headers):
        return False
    # Compute functions on a map array abort the process in some pyarrow versions; its keys, taken
    # as a list array over the same buffers, do the same work safely.
    keys = pa.ListArray.from_arrays(headers.offsets, headers.keys)
    table = pa.table({"row": pc.list_parent_indices(keys), "key": keys.flatten()})
    return bool(table.group_by(["row", "key"]).aggregate([]).num_rows < table.num_rows)
