"""Decoding of record values to columns, from all formats; invalid values are separated.

Rules: whole batches are decoded at once, since a Python object per record costs ten times as much.
If a batch has an invalid value, its halves are decoded, down to single values, so that valid values
are kept. A record becomes one row; an Arrow value becomes as many rows as it has. A record without
a value (a tombstone) becomes a row of nulls. Must not know Spark, files or the broker.
"""

import contextlib
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json

from strandline import arrow_compute as pc
from strandline.errors import InvalidConfigError
from strandline.values.columns import arrow_schema, type_text
from strandline.values.frame import json_unframer
from strandline.values.json_columns import columns_of
from strandline.values.json_text import (
    check_decimals,
    check_one_value_each,
    check_ranges,
    converted,
    excerpt,
    text_type,
)
from strandline.values.schema import SchemaVersion, ValueFormat, names_by_column

logger = logging.getLogger(__name__)

RECORD_PREFIX = "_"
"""Prefix of a record's own columns once its value has become columns beside them."""
RECORD_COLUMNS = ("stream", "partition", "offset", "timestamp", "subject", "key", "headers")
"""Columns of a record that stay beside its decoded value; the first only if there are several."""
RECORD_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("subject", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)
"""The columns of a record that a load without decoding stores."""
_REASON_CHARACTERS = 200
_TWICE = re.compile(r"Column\(/v/(.*)\) was specified twice")
# ArithmeticError: a number out of range. LookupError: a truncated value, or a repeated column.
_DECODE_ERRORS = (pa.ArrowException, ArithmeticError, LookupError, OSError, TypeError, ValueError)


@dataclass(frozen=True)
class Decoded:
    """Rows decoded from values."""

    rows: pa.StructArray
    sources: list[int]
    """For each row the index of its value in the batch."""
    bad: list[tuple[int, str]]
    """Index of each invalid value, and the reason."""


ParseRows = Callable[[pa.Array], pa.StructArray]


def value_decoder(
    kind: ValueFormat,
    schema: pa.Schema,
    *,
    avro_schema: str | None = None,
    avro_writer_schema: str | None = None,
    versions: Sequence[SchemaVersion] = (),
) -> Callable[[pa.Array], Decoded]:
    """Return the function that decodes an array of values.

    Args:
        kind: any but ``raw``, which needs none.
        schema: the columns; other fields of a value are ignored.
        avro_schema: the schema of Avro values, as JSON.
        avro_writer_schema: the schema that the values were written with, if different.
        versions: the versions of the stream's schema, ascending; ``schema`` may have any name that
            a column has in one of them.

    Raises:
        InvalidConfigError: Avro without a schema.
    """
    if kind == "arrow":
        return lambda values: _decode_arrow(values, schema)
    if kind == "avro":
        parse = _avro_parser(
            schema, avro_schema=avro_schema, writer_schema=avro_writer_schema, versions=versions
        )
    elif kind == "protobuf":
        parse = _protobuf_parser(schema, versions)
    else:
        assert kind == "json", kind
        parse = _json_parser(schema, versions)

    return lambda values: _bisect(values, parse, schema)


def value_by_schema(versions: Sequence[SchemaVersion]) -> Callable[[bytes], Any]:
    """Return a function that decodes one value by a stream's schema, with the newest names.

    The function raises ValueError for a value that fits no version.

    Args:
        versions: the versions of the schema, ascending, at least one.
    """
    newest = versions[-1]
    if newest.format == "avro":
        from strandline.values.avro import versions_reader

        return versions_reader(versions)
    decode = value_decoder(newest.format, arrow_schema(newest.columns), versions=versions)

    def read(value: bytes) -> Any:
        found = decode(pa.array([value], pa.binary()))
        if found.bad:
            raise ValueError(found.bad[0][1])
        return _with_dicts(found.rows[0].as_py(), found.rows.type)

    return read


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value with dicts instead of the lists of pairs that Arrow returns for maps."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {key: _with_dicts(each, kind.item_type) for key, each in value}
    return [_with_dicts(each, kind.value_type) for each in value]


def record_columns(batch: pa.RecordBatch, sources: list[int]) -> list[tuple[str, pa.Array]]:
    """Return a record's own columns for the rows of its value, under prefixed names."""
    places = pa.array(sources, pa.int64())
    kept = [name for name in RECORD_COLUMNS if name in batch.schema.names]
    return [(f"{RECORD_PREFIX}{name}", batch.column(name).take(places)) for name in kept]


def decoded_schema(record_schema: pa.Schema, value_schema: pa.Schema) -> pa.Schema:
    """Return the schema of decoded records: the record's own columns, then the value's.

    Raises:
        InvalidConfigError: a field of the value has the name of one of the record's columns, upper
            and lower case not distinguished.
    """
    fields = [
        record_schema.field(name).with_name(f"{RECORD_PREFIX}{name}")
        for name in RECORD_COLUMNS
        if name in record_schema.names
    ]
    check_not_of_record(value_schema, record_schema.names)
    return pa.schema([field.with_nullable(True) for field in [*fields, *value_schema]])


def check_not_of_record(schema: pa.Schema, names: Iterable[str]) -> None:
    """Check that no column of values has the name of one of the record's own columns.

    Args:
        schema: the columns of values.
        names: the names of the record's columns.

    Raises:
        InvalidConfigError: a column has such a name; the message names it.
    """
    own = {f"{RECORD_PREFIX}{name}" for name in names if name in RECORD_COLUMNS}
    clash = [name for name in schema.names if name.lower() in own]
    if clash:
        raise InvalidConfigError(
            f"values have a field '{min(clash)}', which names a column of the record (case does "
            "not tell them apart); rename it"
        )


def infer_json_schema(values: pa.Array) -> pa.Schema:
    """Infer the columns of a sample of JSON values; values that are not JSON objects are ignored.

    A field that has no value in the whole sample is omitted and logged, because a column of an
    inferred type would reject its first value.

    Raises:
        InvalidConfigError: no value of the sample is a JSON object, or no column can be inferred.
    """
    empty: list[str] = []
    try:
        objects, columns = columns_of((value for value in values.to_pylist() if value), empty)
    except ValueError as error:
        raise InvalidConfigError(
            f"the stream's JSON objects do not tell their columns ({error}); give 'schema'"
        ) from error
    if not objects:
        raise InvalidConfigError(
            "the stream has no JSON object yet to infer columns from; give 'schema'"
        )
    if columns is None:
        raise InvalidConfigError(
            f"no field of the stream's JSON objects has a value yet ({', '.join(empty)}), and no "
            "column can be made of it; give 'schema'"
        )
    if empty:
        logger.warning(
            "fields left out: %s: they have no value in the first values; to have their columns, "
            "give 'schema' before the first commit",
            ", ".join(empty),
        )
    return pa.schema(list(columns))


def check_distinct_names(kind: pa.Schema | pa.DataType, path: str = "") -> None:
    """Check that no two columns, or fields of one struct, have names that differ only in case.

    Spark and Delta treat such names as one, and then cannot open the table.

    Raises:
        InvalidConfigError: two names differ only in case; the message has both.
    """
    if isinstance(kind, pa.DataType) and not pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            check_distinct_names(kind.field(i).type, path)
        return
    seen: dict[str, str] = {}
    for field in kind:
        name = f"{path}.{field.name}".removeprefix(".")
        other = seen.get(name.lower())
        seen[name.lower()] = name
        if other == name:
            raise InvalidConfigError(f"the column '{name}' is there twice; rename one")
        if other is not None:
            raise InvalidConfigError(
                f"the columns '{other}' and '{name}' differ by case alone, and Spark could not "
                "open a table of both; name one of them in 'schema', or rename one"
            )
        check_distinct_names(field.type, name)


def check_decodable(schema: pa.Schema) -> None:
    """Check that JSON can be decoded to columns of these types.

    Raises:
        InvalidConfigError: Arrow cannot read a column's type from JSON, such as a map; the message
            names the column.
    """
    with contextlib.suppress(pa.ArrowException):  # which column, is found below
        _parse_json(pa.array([b"{}"]), schema)
        return
    for field in schema:
        try:
            _parse_json(pa.array([b"{}"]), pa.schema([field]))
        except pa.ArrowNotImplementedError as error:
            raise InvalidConfigError(
                f"column '{field.name}' is {field.type}, which cannot be read from JSON; leave it "
                "out, or describe a map as a struct of the fields that are wanted"
            ) from error
        except pa.ArrowInvalid as error:
            raise InvalidConfigError(
                f"column '{field.name}' has a field that is NOT NULL; only whole columns may be"
            ) from error


def _bisect(values: pa.Array, parse: ParseRows, schema: pa.Schema) -> Decoded:
    """Decode values with ``parse``; if it rejects them, decode each half by itself."""
    rows: list[pa.StructArray] = []
    sources: list[int] = []
    bad: list[tuple[int, str]] = []
    waiting = [(0, len(values))] if len(values) else []
    while waiting:
        start, stop = waiting.pop()
        try:
            rows.append(parse(values.slice(start, stop - start)))
            sources += range(start, stop)
        except _DECODE_ERRORS as error:
            if stop - start == 1:
                bad.append((start, reason_of(error)))
                continue
            middle = (start + stop) // 2
            waiting += [(middle, stop), (start, middle)]
    return Decoded(_joined(rows, schema), sources, bad)


def reason_of(error: Exception) -> str:
    """Return the reason of a rejection as one line."""
    return " ".join(f"{error}".split())[:_REASON_CHARACTERS] or type(error).__name__


def _joined(rows: list[pa.StructArray], schema: pa.Schema) -> pa.StructArray:
    kind = pa.struct(list(schema))
    return pa.concat_arrays(rows) if rows else pa.array([], kind)


def _json_parser(schema: pa.Schema, versions: Sequence[SchemaVersion]) -> ParseRows:
    """Return a function that decodes JSON values by a stream's schema, if it has one."""
    known = names_by_column(versions)
    columns = [known.get(name, (name,)) for name in schema.names]
    newest = versions[-1].columns if versions else ()
    required = {column.name for column in newest if not column.nullable}
    fields = [
        pa.field(name, field.type)
        for names, field in zip(columns, schema, strict=True)
        for name in names
    ]
    wanted = pa.schema(fields)
    unframed, judge = json_unframer(versions), json_judge(versions)

    def parse(values: pa.Array) -> pa.StructArray:
        if versions and pc.any(pc.starts_with(values, "\0")).as_py():
            plain = [None if each is None else unframed(each) for each in values.to_pylist()]
            values = pa.array(plain, pa.binary())
        try:
            rows = _parse_json(values, wanted)
        except _DECODE_ERRORS as error:
            if len(values) > 1:
                raise  # nobody reads this reason: the values are halved
            raise ValueError(_json_reason(values, wanted, error)) from error
        if not versions:
            return rows
        if judge is not None:
            _check_valid(values, judge)
        parts = dict(zip(wanted.names, rows.flatten(), strict=True))
        found = [parts[names[0]] for names in columns]
        for place, names in enumerate(columns):
            for older in names[1:]:
                found[place] = pc.coalesce(found[place], parts[older])
            if names[0] in required:
                _check_required(values, found[place], names[0])
        kind = [field.with_nullable(True) for field in schema]
        return pa.StructArray.from_arrays(found, fields=kind, mask=rows.is_null())

    return parse


def json_judge(versions: Sequence[SchemaVersion]) -> Callable[[bytes], str | None] | None:
    """Return a function that says why a value is not valid by a stream's JSON Schema.

    None: the stream has no JSON Schema.
    """
    if not versions or not versions[-1].json_schema:
        return None
    # Imported here: its library is needed for JSON Schema alone.
    from strandline.values.json_schema import json_schema_judge

    return json_schema_judge(versions[-1].json_schema)


def _check_valid(values: pa.Array, judge: Callable[[bytes], str | None]) -> None:
    """Check that values are valid by a JSON Schema."""
    for value in values.to_pylist():
        reason = None if value is None else judge(value)
        if reason is not None:
            raise ValueError(reason)


def _json_reason(value: pa.Array, schema: pa.Schema, error: Exception) -> str:
    """Return the reason why a value cannot be decoded, with the column that Arrow seldom names."""
    fields = list(schema)
    while len(fields) > 1:
        half = fields[: len(fields) // 2]
        fields = fields[len(half) :] if _json_error(value, half) is None else half
    [text] = value.to_pylist()
    if not _is_utf8(text):
        return "the value is not UTF-8"
    if whole := _json_error(value, []):  # an error that does not depend on the columns
        if "Column(/v) changed" in f"{whole}":
            return f"the value is {excerpt(text.decode())}, not a JSON object"
        return reason_of(whole).removeprefix("JSON parse error: ").removesuffix(" in row 0")
    [field] = fields
    error = _json_error(value, fields) or error
    if twice := _TWICE.search(f"{error}"):
        return f"{twice[1].replace('/', '.')!r} is there twice in one object"
    if type(error) is ValueError:  # of this package, so its text can be shown
        return f"column {field.name!r}: {error}"
    part = excerpt(_parts_of(text).get(field.name, ""))
    return f"column {field.name!r} is {type_text(field.type)}, which cannot hold {part}"


def _json_error(value: pa.Array, fields: Sequence[pa.Field]) -> Exception | None:
    try:
        _parse_json(value, pa.schema(fields))
    except _DECODE_ERRORS as error:
        return error
    return None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parts_of(text: bytes) -> dict[str, str]:
    """Return the fields of a JSON object, each as its JSON text."""
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # NaN or Infinity, which Python and Arrow accept
        return {name: json.dumps(part) for name, part in json.loads(text).items()}
    return {name: bytes(part).decode() for name, part in parts.items()}


def _check_required(values: pa.Array, column: pa.Array, name: str) -> None:
    """Check that a required column is null in no value, except in tombstones."""
    if column.null_count > values.null_count:
        raise ValueError(f"'{name}', which the schema requires, is missing or null")


def _parse_json(values: pa.Array, schema: pa.Schema) -> pa.StructArray:
    """Decode JSON values; if one is invalid, decode none and raise an error.

    Arrow would read a value with trailing text as two fields, so each value is checked to be one
    JSON value. Each value is also wrapped in an object with a number. The numbers of the rows show
    if a value closed its object early, so a row cannot be taken for another record's.
    """
    numbers = pa.array(range(len(values))).cast(pa.string())
    # The cast rejects invalid UTF-8, which Arrow's parser accepts. A newline ends a value;
    # inside one it is white space.
    whole = values.cast(pa.string()).fill_null("null")
    flat = pc.replace_substring(whole, "\n", " ")
    texts = whole.to_pylist()
    check_one_value_each(texts)
    kind = pa.struct([field.with_nullable(True) for field in schema])
    check_decimals(texts, kind)
    wrapped = pc.binary_join_element_wise('{"i":', numbers, ',"v":', flat, "}\n", "")
    text = "".join(wrapped.to_pylist()).encode()
    read = text_type(kind)
    table = pa.json.read_json(
        io.BytesIO(text),
        pa.json.ReadOptions(block_size=len(text) + 1, use_threads=False),
        pa.json.ParseOptions(
            explicit_schema=pa.schema([("i", pa.int64()), ("v", read)]),
            unexpected_field_behavior="ignore",
        ),
    )
    if table.column("i").to_pylist() != list(range(len(values))):
        raise ValueError("not one JSON value")
    found = converted(table.column("v").combine_chunks(), kind)
    check_ranges(found)
    return found


def _avro_parser(
    schema: pa.Schema,
    *,
    avro_schema: str | None,
    writer_schema: str | None,
    versions: Sequence[SchemaVersion],
) -> ParseRows:
    # Imported here: fastavro is needed for Avro alone.
    from strandline.values.avro import value_reader, versions_reader

    kind = pa.struct(list(schema))
    if not versions:
        read, named = value_reader(avro_schema, writer_schema), kind
    else:
        names = _newest_names(schema, versions)
        read = versions_reader(versions)
        named = pa.struct([(name, field.type) for name, field in zip(names, schema, strict=True)])

    def parse(values: pa.Array) -> pa.StructArray:
        rows = pa.array(
            [None if value is None else read(value) for value in values.to_pylist()], named
        )
        return rows if named is kind else _renamed(rows, kind)

    return parse


def _protobuf_parser(schema: pa.Schema, versions: Sequence[SchemaVersion]) -> ParseRows:
    # Imported here: its library is needed for Protocol Buffers alone.
    from strandline.values.protobuf import message_rows

    if not versions:
        raise InvalidConfigError(
            "values in Protocol Buffers need the schema of their stream: set it with 'strandline "
            "stream schema set'"
        )
    return message_rows(versions, schema, _newest_names(schema, versions))


def _newest_names(schema: pa.Schema, versions: Sequence[SchemaVersion]) -> list[str]:
    """Return the names that columns have in the newest version; a schema may use older names."""
    known = names_by_column(versions)
    if foreign := [name for name in schema.names if name not in known]:
        raise InvalidConfigError(
            f"no version of the stream's schema has the column {foreign[0]!r}; add it, or give "
            "'schema'"
        )
    return [known[name][0] for name in schema.names]


def _renamed(rows: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    return pa.StructArray.from_arrays(rows.flatten(), fields=list(kind), mask=rows.is_null())


def _decode_arrow(values: pa.Array, schema: pa.Schema) -> Decoded:
    """Decode values that are Arrow IPC streams, one by one."""
    kind = pa.struct(list(schema))
    rows: list[pa.StructArray] = []
    sources: list[int] = []
    bad: list[tuple[int, str]] = []
    for place, value in enumerate(values.to_pylist()):
        try:
            found = pa.array([None], kind) if value is None else _arrow_rows(value, schema)
        except _DECODE_ERRORS as error:
            bad.append((place, reason_of(error)))
            continue
        rows.append(found)
        sources += [place] * len(found)
    return Decoded(_joined(rows, schema), sources, bad)


def _arrow_rows(value: bytes, schema: pa.Schema) -> pa.StructArray:
    with pa.ipc.open_stream(value) as reader:
        table = reader.read_all()
    table.validate(full=True)
    columns = [
        table.column(field.name).cast(field.type).combine_chunks()
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    for column in columns:
        check_ranges(column)
    return pa.StructArray.from_arrays(columns, fields=list(schema))
