"""Makes columns out of the values of records: JSON, Avro and Arrow, with the bad ones set apart.

Rules: whole batches are decoded at once, since a Python object for each record costs ten times as
much; a batch with a bad record is halved until the bad one stands alone, so good neighbours never
suffer. A record becomes one row, an Arrow record as many as it has; a record without a value (a
tombstone) becomes a row of nulls. Must not know Spark, files or the broker.
"""

import io
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from strandline.errors import InvalidConfigError
from strandline.spark.json_columns import columns_of
from strandline.spark.json_text import converted, refuse_other_than_one_value, text_type
from strandline.spark.options import ValueFormat

logger = logging.getLogger(__name__)

RECORD_PREFIX = "_"
"""Before the names of a record's own columns, once its value has become columns beside them."""
RECORD_COLUMNS = ("partition", "offset", "timestamp", "subject", "key", "headers")
"""Columns of a record that stay beside its decoded value."""
_REASON_CHARACTERS = 200
# Out of range (ArithmeticError), cut short or with a column twice (LookupError), and the like.
_REFUSALS = (pa.ArrowException, ArithmeticError, LookupError, OSError, TypeError, ValueError)


@dataclass(frozen=True)
class Decoded:
    """Rows made of values."""

    rows: pa.StructArray
    sources: list[int]
    """For each row the place of its value in the batch."""
    bad: list[tuple[int, str]]
    """Places of values that are none, and why."""


ParseRows = Callable[[pa.Array], pa.StructArray]


def value_decoder(
    kind: ValueFormat,
    schema: pa.Schema,
    *,
    avro_schema: str | None = None,
    avro_writer_schema: str | None = None,
) -> Callable[[pa.Array], Decoded]:
    """The function that decodes an array of values.

    Args:
        kind: not ``raw``, which needs none.
        schema: the columns wanted; fields of a value that it does not name are left out.
        avro_schema: the schema of Avro values, as JSON.
        avro_writer_schema: the one that they were written with, if that is another version.

    Raises:
        InvalidConfigError: Avro without a schema.
    """
    if kind == "arrow":
        return lambda values: _decode_arrow(values, schema)
    if kind == "avro":
        parse = _avro_parser(schema, avro_schema, avro_writer_schema)
    else:
        assert kind == "json", kind

        def parse(values: pa.Array) -> pa.StructArray:
            return _parse_json(values, schema)

    return lambda values: _bisect(values, parse, schema)


def record_columns(batch: pa.RecordBatch, sources: list[int]) -> list[tuple[str, pa.Array]]:
    """A record's own columns for the rows made of its value, under their prefixed names."""
    places = pa.array(sources, pa.int64())
    kept = [name for name in RECORD_COLUMNS if name in batch.schema.names]
    return [(f"{RECORD_PREFIX}{name}", batch.column(name).take(places)) for name in kept]


def decoded_schema(record_schema: pa.Schema, value_schema: pa.Schema) -> pa.Schema:
    """The schema of a table of decoded records: the record's own columns, then the value's.

    Raises:
        InvalidConfigError: a field of the value has the name of one of the record's columns, in
            whatever case.
    """
    fields = [
        record_schema.field(name).with_name(f"{RECORD_PREFIX}{name}")
        for name in RECORD_COLUMNS
        if name in record_schema.names
    ]
    own = {field.name for field in fields}
    clash = [name for name in value_schema.names if name.lower() in own]
    if clash:
        raise InvalidConfigError(
            f"values have a field '{min(clash)}', which names a column of the record (case does "
            "not tell them apart); rename it"
        )
    return pa.schema([field.with_nullable(True) for field in [*fields, *value_schema]])


def infer_json_schema(values: pa.Array) -> pa.Schema:
    """The fields that a sample of JSON values has; values that are not JSON objects are ignored.

    A field without a value in all of them is left out, and named in the log: a column of it would
    refuse the first value that comes.

    Raises:
        InvalidConfigError: no value of the sample is a JSON object, or they tell no columns.
    """
    empty: list[str] = []
    try:
        objects, told = columns_of((value for value in values.to_pylist() if value), empty)
    except ValueError as error:
        raise InvalidConfigError(
            f"the stream's JSON objects do not tell their columns ({error}); give 'schema'"
        ) from error
    if not objects:
        raise InvalidConfigError(
            "the stream has no JSON object yet to infer columns from; give 'schema'"
        )
    if told is None:
        raise InvalidConfigError(
            f"no field of the stream's JSON objects has a value yet ({', '.join(empty)}), and no "
            "column can be made of it; give 'schema'"
        )
    if empty:
        logger.warning(
            "no column is made of %s: the first values have nothing there; give 'schema' before "
            "the first commit to have it",
            ", ".join(empty),
        )
    return pa.schema(list(told))


def refuse_case_twins(kind: pa.Schema | pa.DataType, path: str = "") -> None:
    """Check that no two columns, or fields of one struct, differ by case alone.

    Spark and Delta take them for one, and then cannot open the table.

    Raises:
        InvalidConfigError: naming both.
    """
    if isinstance(kind, pa.DataType) and not pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            refuse_case_twins(kind.field(i).type, path)
        return
    seen: dict[str, str] = {}
    for field in kind:
        name = f"{path}.{field.name}".removeprefix(".")
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidConfigError(
                f"the columns '{other}' and '{name}' differ by case alone, and Spark could not "
                "open a table of both; name one of them in 'schema', or rename one"
            )
        refuse_case_twins(field.type, name)


def refuse_unreadable(schema: pa.Schema) -> None:
    """Check that JSON can become columns of these types.

    Raises:
        InvalidConfigError: naming a column of a type that Arrow does not read from JSON, as a map.
    """
    for field in schema:
        try:
            _parse_json(pa.array([b"{}"]), pa.schema([field]))
        except pa.ArrowNotImplementedError as error:
            raise InvalidConfigError(
                f"column '{field.name}' is {field.type}, which cannot be read from JSON; leave it "
                "out, or describe a map as a struct of the fields that are wanted"
            ) from error


def _bisect(values: pa.Array, parse: ParseRows, schema: pa.Schema) -> Decoded:
    """Decode what ``parse`` takes whole, and halve what it refuses."""
    rows: list[pa.StructArray] = []
    sources: list[int] = []
    bad: list[tuple[int, str]] = []
    waiting = [(0, len(values))] if len(values) else []
    while waiting:
        start, stop = waiting.pop()
        try:
            rows.append(parse(values.slice(start, stop - start)))
            sources += range(start, stop)
        except _REFUSALS as error:
            if stop - start == 1:
                bad.append((start, reason_of(error)))
                continue
            middle = (start + stop) // 2
            waiting += [(middle, stop), (start, middle)]
    return Decoded(_joined(rows, schema), sources, bad)


def reason_of(error: Exception) -> str:
    """One line that says why a value was refused."""
    return " ".join(f"{error}".split())[:_REASON_CHARACTERS] or type(error).__name__


def _joined(rows: list[pa.StructArray], schema: pa.Schema) -> pa.StructArray:
    kind = pa.struct(list(schema))
    return pa.concat_arrays(rows) if rows else pa.array([], kind)


def _parse_json(values: pa.Array, schema: pa.Schema) -> pa.StructArray:
    """Rows of JSON values, all of them or an error.

    Arrow would take a value with more behind it for two fields, so all are checked to be one. Each
    is wrapped in an object of its own that numbers it. A value that closes the wrapping and opens
    another, or none at all, shows in the numbers, so a row always is its record's.
    """
    numbers = pa.array(range(len(values))).cast(pa.string())
    # The cast refuses what is not UTF-8, which Arrow's parser would let through. Between lines a
    # newline is what ends a value; inside one it is mere space.
    flat = pc.replace_substring(values.cast(pa.string()).fill_null("null"), "\n", " ")
    texts = flat.to_pylist()
    refuse_other_than_one_value("\n".join(texts).encode(), texts)
    wrapped = pc.binary_join_element_wise('{"i":', numbers, ',"v":', flat, "}\n", "")
    text = "".join(wrapped.to_pylist()).encode()
    kind = pa.struct([field.with_nullable(True) for field in schema])
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
    return converted(table.column("v").combine_chunks(), kind)


def _avro_parser(
    schema: pa.Schema, avro_schema: str | None, writer_schema: str | None
) -> ParseRows:
    # Imported here: fastavro, which comes with the extra 'lake', is needed for Avro alone.
    from strandline.spark.avro import value_reader

    read, kind = value_reader(avro_schema, writer_schema), pa.struct(list(schema))

    def parse(values: pa.Array) -> pa.StructArray:
        rows = [None if value is None else read(value) for value in values.to_pylist()]
        return pa.array(rows, kind)

    return parse


def _decode_arrow(values: pa.Array, schema: pa.Schema) -> Decoded:
    """Rows of values that are Arrow IPC streams: each stands alone, so none is halved."""
    kind = pa.struct(list(schema))
    rows: list[pa.StructArray] = []
    sources: list[int] = []
    bad: list[tuple[int, str]] = []
    for place, value in enumerate(values.to_pylist()):
        try:
            found = pa.array([None], kind) if value is None else _arrow_rows(value, schema)
        except _REFUSALS as error:
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
    return pa.StructArray.from_arrays(columns, fields=list(schema))
