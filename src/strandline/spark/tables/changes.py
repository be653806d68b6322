"""Changes of rows by their primary key, decoded from the records of a compacted or CDC stream.

Rules: a record with a value sets a row, a record without (a tombstone) deletes the row of its key,
and an event in Debezium's envelope does one of the two, by its ``op``. The key of a deleted row is
in the event or in the record's key: a JSON object with the columns of the primary key, or just the
value if it has one column. Whole batches are decoded at once. Must not know Spark, files or the
broker.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import UNDECODABLE, InvalidConfigError
from strandline.values.columns import arrow_schema, type_text
from strandline.values.decode import (
    RECORD_COLUMNS,
    RECORD_PREFIX,
    Decoded,
    record_columns,
    value_decoder,
)
from strandline.values.schema import SchemaColumn, SchemaVersion

_PLACE = ("stream", "partition", "offset")
_IN_KEYS = ("key", "subject", "stream")
"""A record's own columns that may be in a primary key: several records may have the same value."""
_KEPT = ("c", "r", "u")
"""Debezium's operations that set a row: created, read in a snapshot, updated."""
_DELETED = "d"
_NO_KEY = "it deletes a row, and no key says which"
_REASON_CHARACTERS = 200

Bad = list[tuple[int, str]]
"""Index of each record that is not a valid change, and the reason."""


class Changes(NamedTuple):
    """Rows to keep, and keys of rows to delete."""

    rows: pa.RecordBatch
    """The rows, with the columns of the table."""
    deletes: pa.RecordBatch
    """The keys, with the columns of ``delete_schema``."""


class _Keys(NamedTuple):
    """Primary keys, and the index of the record of each."""

    columns: dict[str, pa.Array]
    sources: list[int]


def delete_schema(schema: pa.Schema, primary_key: Sequence[str]) -> pa.Schema:
    """Return the columns of deletes: the primary key, and the place of the record."""
    names = dict.fromkeys([*primary_key, *place_columns(schema)])
    return pa.schema([schema.field(name) for name in names])


def place_columns(schema: pa.Schema) -> list[str]:
    """Return the columns of a table that give the order of its records: partition and offset."""
    prefix = RECORD_PREFIX if f"{RECORD_PREFIX}offset" in schema.names else ""
    return [f"{prefix}{name}" for name in _PLACE if f"{prefix}{name}" in schema.names]


def check_primary_key(schema: pa.Schema, primary_key: Sequence[str]) -> None:
    """Check that these columns can identify a row.

    Raises:
        InvalidConfigError: a column is not in the table, differs for each record, or has a type
            without exact equality.
    """
    prefix = RECORD_PREFIX if f"{RECORD_PREFIX}offset" in schema.names else ""
    own = {f"{prefix}{name}" for name in (*RECORD_COLUMNS, *(() if prefix else ("value",)))}
    allowed = [f"{prefix}{name}" for name in _IN_KEYS]
    for name in primary_key:
        if name not in schema.names:
            raise InvalidConfigError(
                f"'primaryKey' names '{name}', but the table has: {', '.join(schema.names)}"
            )
        if name in own and name not in allowed:
            raise InvalidConfigError(
                f"column '{name}' of a record cannot be a primary key: of these columns only "
                f"{', '.join(allowed)} can, and those of values"
            )
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidConfigError(
                f"column '{name}' is {kind}, which cannot be a primary key; name another"
            )


def envelope_schema(columns: pa.Schema, *, has_wrapper: bool) -> pa.Schema:
    """Return the fields of Debezium's events.

    Args:
        columns: the columns of the rows.
        has_wrapper: whether an event may be the ``payload`` beside its ``schema``.
    """
    row = pa.struct([field.with_nullable(True) for field in columns])
    event = [pa.field("before", row), pa.field("after", row), pa.field("op", pa.string())]
    return pa.schema([*event, pa.field("payload", pa.struct(event))] if has_wrapper else event)


def row_versions(versions: Sequence[SchemaVersion]) -> list[SchemaVersion]:
    """Return the versions of the rows in Debezium's events, by those of the events' schema.

    Raises:
        InvalidConfigError: a version is of other values.
    """
    ids: dict[str, int] = {}
    return [
        msgspec.structs.replace(
            version,
            columns=tuple(
                SchemaColumn(
                    id=ids.setdefault(field.name, len(ids) + 1),
                    name=field.name,
                    type=type_text(field.type),
                )
                for field in _row_of(version)
            ),
            json_schema="",  # of events, not of rows
        )
        for version in versions
    ]


def _row_of(version: SchemaVersion) -> pa.StructType:
    columns = {field.name: field.type for field in arrow_schema(version.columns)}
    payload = columns.get("payload")
    if payload is not None and pa.types.is_struct(payload):
        columns = {field.name: field.type for field in payload}
    row = columns.get("after", pa.null())
    if "op" not in columns or not pa.types.is_struct(row):
        raise InvalidConfigError(
            f"version {version.version} of the stream's schema is not of Debezium's events: it has "
            "no struct 'after' beside 'op'; set their schema, or give the columns of the rows by "
            "'schema'"
        )
    return row


def rows_of_events(values: Iterable[bytes | None]) -> list[bytes]:
    """Return the rows in Debezium's JSON events, to infer columns from them."""
    found = []
    for value in values:
        try:
            event = json.loads(value or b"null")
        except ValueError:
            continue  # becomes a dead letter
        event = (event.get("payload") or event) if isinstance(event, dict) else {}
        found += [json.dumps(row).encode() for row in [event.get("after")] if row]
    return found


class ChangeDecoder:
    """Decodes records to changes.

    Args:
        schema: the schema of the table.
        primary_key: the columns of the primary key.
        decode: decodes values, to ``envelope_schema`` if they are Debezium's events; None: values
            are not decoded.
        is_debezium: whether values are Debezium's events.
        versions: the versions of the stream's schema; columns in a key may have any name in them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        decode: Callable[[pa.Array], Decoded] | None,
        is_debezium: bool = False,
        versions: Sequence[SchemaVersion] = (),
    ) -> None:
        self._schema = schema
        self._primary_key = list(primary_key)
        self._decode = decode
        self._is_debezium = is_debezium
        # A JSON Schema is of values, and a key has not all that it requires.
        self._versions = [msgspec.structs.replace(each, json_schema="") for each in versions]
        self._deletes = delete_schema(schema, primary_key)
        own = {f"{RECORD_PREFIX}{name}" for name in RECORD_COLUMNS}
        self._in_values = [schema.field(name) for name in primary_key if name not in own]

    def __call__(self, batch: pa.RecordBatch) -> tuple[Changes, Bad]:
        """Return the changes of a batch, and the records that are not valid changes."""
        bad: Bad = []
        # Rows that a query computed have no column ``value``, and delete nothing.
        has_value = "value" in batch.schema.names
        is_gone = batch.column("value").is_null() if has_value else _repeat(False, batch.num_rows)
        places = pa.array(range(batch.num_rows), pa.int64())
        kept, gone = places.filter(pc.invert(is_gone)), places.filter(is_gone).to_pylist()
        if self._decode is None:
            rows = self._whole(batch.take(kept), kept.to_pylist(), bad)
            deleted = batch.select(self._deletes.names).take(pa.array(gone, pa.int64()))
            return Changes(rows, self._whole(deleted, gone, bad)), bad
        decoded = self._decode(batch.column("value").take(kept))
        bad += [(kept[place].as_py(), reason) for place, reason in decoded.bad]
        sources = kept.take(pa.array(decoded.sources, pa.int64())).to_pylist()
        values, keys = decoded.rows, list[_Keys]()
        if self._is_debezium:
            values, sources, keys, more = self._of_events(values, sources, bad)
            gone += more
        columns = [column for _, column in record_columns(batch, sources)] + values.flatten()
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        keys.append(self._of_records(batch, gone, bad))
        deletes = [self._whole(self._deleted(batch, each), each.sources, bad) for each in keys]
        return Changes(self._whole(rows, sources, bad), pa.concat_batches(deletes)), bad

    def _of_events(
        self, events: pa.StructArray, sources: list[int], bad: Bad
    ) -> tuple[pa.StructArray, list[int], list[_Keys], list[int]]:
        """Return the rows of events with their records, and the deletes.

        A delete is a key in an event, or a record whose own key is to be deleted.
        """
        before, after, op = _unwrapped(events)
        places = pa.array(sources, pa.int64())
        is_kept = pc.and_(pc.is_in(op, pa.array(_KEPT)), after.is_valid())
        is_delete = pc.equal(op, _DELETED).fill_null(False)
        for place in pc.indices_nonzero(pc.invert(pc.or_(is_kept, is_delete))).to_pylist():
            reason = f"no event of a row: its op is {op[place]}, and its row {after[place]}"
            bad.append((sources[place], reason[:_REASON_CHARACTERS]))
        old, new = _columns(before), _columns(after)
        names = [field.name for field in self._in_values]
        is_known = _all([old[name].is_valid() for name in names], len(op))
        # An update that changes the key also has to delete the row of the old key.
        other = [pc.not_equal(old[name], new[name]).fill_null(False) for name in names]
        is_moved = pc.and_(is_kept, reduce(pc.or_, other, _repeat(False, len(op))))
        in_event = pc.and_(is_known, pc.or_(is_delete, is_moved))
        if not names:
            in_event = _repeat(False, len(op))
        in_record = pc.and_(is_delete, pc.invert(in_event))
        columns = {name: old[name].filter(in_event) for name in names}
        return (
            after.filter(is_kept),
            places.filter(is_kept).to_pylist(),
            [_Keys(columns, places.filter(in_event).to_pylist())],
            places.filter(in_record).to_pylist(),
        )

    def _of_records(self, batch: pa.RecordBatch, gone: list[int], bad: Bad) -> _Keys:
        """Return the primary keys that the records' own keys contain."""
        if not self._in_values or not gone:
            return _Keys({field.name: pa.nulls(0, field.type) for field in self._in_values}, gone)
        keys: list[bytes | None] = [None] * len(gone)
        if "key" in batch.schema.names:
            keys = batch.column("key").take(pa.array(gone)).to_pylist()
        bad += [(place, _NO_KEY) for place, key in zip(gone, keys, strict=True) if key is None]
        given = [(place, key) for place, key in zip(gone, keys, strict=True) if key is not None]
        decode = value_decoder("json", pa.schema(self._in_values), versions=self._versions)
        decoded = decode(pa.array([self._as_object(key) for _, key in given], pa.binary()))
        bad += [(given[place][0], f"its key: {reason}") for place, reason in decoded.bad]
        return _Keys(_columns(decoded.rows), [given[place][0] for place in decoded.sources])

    def _as_object(self, key: bytes) -> bytes:
        """Return a record's key as a JSON object; the key of one column may be just the value."""
        if len(self._in_values) > 1 or key.lstrip().startswith(b"{"):
            return _payload(key)
        [field] = self._in_values
        name = json.dumps(field.name).encode()
        is_text = not (pa.types.is_integer(field.type) or pa.types.is_boolean(field.type))
        if is_text and not key.startswith(b'"'):
            # Bytes that are not UTF-8 become lone surrogates, which JSON does not allow, so such a
            # key is rejected as bad.
            key = json.dumps(key.decode("utf-8", "surrogateescape")).encode()
        return b"{%b:%b}" % (name, key)

    def _deleted(self, batch: pa.RecordBatch, keys: _Keys) -> pa.RecordBatch:
        found = dict(record_columns(batch, keys.sources)) | keys.columns
        arrays = [found[name] for name in self._deletes.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._deletes)

    def _whole(self, rows: pa.RecordBatch, sources: list[int], bad: Bad) -> pa.RecordBatch:
        """Return the rows that have a complete primary key; note the records of others as bad."""
        has_key = _all([rows.column(name).is_valid() for name in self._primary_key], rows.num_rows)
        without = {sources[place] for place in pc.indices_nonzero(pc.invert(has_key)).to_pylist()}
        if not without:
            return rows
        key = ", ".join(self._primary_key)
        bad += [
            (place, f"a column of its primary key ({key}) is null") for place in sorted(without)
        ]
        return rows.filter(pa.array([place not in without for place in sources]))


def _payload(key: bytes) -> bytes:
    """Return a key without its ``schema``: the ``payload``, if that is a JSON object."""
    if b"payload" not in key:
        return key
    try:
        payload = msgspec.json.decode(key, type=dict[str, msgspec.Raw]).get("payload")
    except UNDECODABLE:
        return key  # decoding it will fail, with a reason
    return bytes(payload) if payload and bytes(payload).startswith(b"{") else key


def _unwrapped(events: pa.StructArray) -> tuple[pa.StructArray, pa.StructArray, pa.Array]:
    """Return ``before``, ``after`` and ``op`` of events; they may be in a ``payload``."""
    # Flattened columns are null where their parent is.
    before, after, op, *payload = events.flatten()
    if not payload:
        return before, after, op
    is_inner = payload[0].is_valid()
    choice = pc.if_else(is_inner, 1, 0)
    places = pc.add(pa.array(range(len(events)), pa.int64()), pc.multiply(choice, len(events)))
    return tuple(
        pa.concat_arrays(pair).take(places)
        for pair in zip((before, after, op), payload[0].flatten(), strict=True)
    )


def _columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    return {field.name: column for field, column in zip(rows.type, rows.flatten(), strict=True)}


def _all(tests: Sequence[pa.BooleanArray], count: int) -> pa.BooleanArray:
    return reduce(pc.and_, tests, _repeat(True, count))


def _repeat(value: bool, count: int) -> pa.BooleanArray:  # noqa: FBT001 - the value itself
    return pa.repeat(pa.scalar(value), count)
