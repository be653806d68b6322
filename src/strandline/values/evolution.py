"""The rules for a new version of a stream's schema: new columns, wider types, new names.

Rules: the newest version has to read every value that an earlier one described. So a column may be
added if it may be null, get a wider type, become nullable, and be renamed by its id (columns of
JSON) or its aliases (Avro). The limits of a JSON Schema may be left out or become wider. Any other
change is rejected, and the message names the column. Pure: the broker checks once, when a version
is added, and the metadata only counts versions.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from strandline.config import misfit_text
from strandline.errors import UNDECODABLE, InvalidConfigError
from strandline.values.columns import (
    DEPTH_MAX,
    check_size,
    parse_columns,
    parse_type,
    type_text,
)
from strandline.values.decode import (
    RECORD_COLUMNS,
    check_decodable,
    check_distinct_names,
    check_not_of_record,
)
from strandline.values.json_text import excerpt, is_deeper
from strandline.values.schema import SchemaColumn, SchemaFormat, SchemaVersion, names_by_column
from strandline.values.shape import ShapeField, ValueShape, element

_ORDERS = (
    ("tinyint", "smallint", "int", "bigint"),
    ("int", "long"),  # of Avro
    ("int32", "int64"),  # of Protocol Buffers
    ("sint32", "sint64"),
    ("float", "double"),
)
"""Chains of types, from narrow to wide."""
_PROTOBUF = re.compile(r"^\s*((syntax|edition)\s*=|message\s+\w+\s*\{)", re.MULTILINE)
_JSON_SCHEMA = ("$schema", "properties", "$ref", "anyOf", "oneOf", "allOf")
_LEVELS_MAX = 250
"""How deeply a document may be nested: the library of JSON Schema refuses 255 levels."""
_LOOSER_IF_LESS = {"exclusiveMinimum", "minItems", "minLength", "minProperties", "minimum"}
_LOOSER_IF_MORE = {"exclusiveMaximum", "maxItems", "maxLength", "maxProperties", "maximum"}

T = TypeVar("T")


class _Given(NamedTuple):
    """A schema as a user gave it."""

    format: SchemaFormat
    shape: ValueShape
    """A struct of the columns."""
    types: Sequence[str]
    ids: Sequence[int | None]
    """The id that the user gave each column; None: no id was given."""
    avro: str = ""
    json_schema: str = ""
    protobuf: str = ""
    message: str = ""


class _GivenColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    type: str
    nullable: bool = True
    id: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] | None = None


def next_version(
    earlier: Sequence[SchemaVersion],
    text: str,
    *,
    kind: SchemaFormat | None = None,
    message: str | None = None,
    registry_id: int | None = None,
    now_ns: int = 0,
) -> SchemaVersion:
    """Return the version that a text adds, or the newest version if the text is equal to it.

    Args:
        earlier: the versions that the stream has, ascending.
        text: columns as Spark writes them, or as JSON, a JSON Schema, an Avro schema, or a
            ``FileDescriptorSet`` in Base64.
        kind: the format of the text; None: it is recognized by the text, except ``protobuf``.
        message: for ``protobuf``, the full name of the values' message; None: the only message.
        registry_id: the id of the schema in a schema registry.
        now_ns: Unix time.

    Raises:
        InvalidConfigError: the text is not a schema, or the schema cannot read earlier values.
    """
    given = _parse_protobuf(text, message) if kind == "protobuf" else _parse(text, kind)
    if message is not None and kind != "protobuf":
        raise InvalidConfigError(
            f"the message {message!r} is named for values in Protocol Buffers, and these are "
            f"{given.format} values; leave it out"
        )
    last = earlier[-1] if earlier else None
    if last is not None and last.format != given.format:
        raise InvalidConfigError(
            f"the stream's values are {last.format} since version 1, and this is a schema of "
            f"{given.format} values; create another stream for them"
        )
    if registry_id is not None and not (given.avro or given.json_schema or given.protobuf):
        raise InvalidConfigError(
            "a registry's id is for Avro, JSON Schema and Protocol Buffers, whose values begin "
            "with it; leave it out"
        )
    columns = _numbered(given, earlier)
    for each in reversed(earlier):  # the newest first: users know its names, which errors have
        _check_compatible(each, given, columns)
    number = 1 if last is None else last.version + 1
    found = SchemaVersion(
        version=number,
        format=given.format,
        columns=columns,
        avro=given.avro,
        json_schema=given.json_schema,
        protobuf=given.protobuf,
        message=given.message,
        registry_id=registry_id,
        created_ns=now_ns,
    )
    if last is not None and _says_the_same(last, found):
        return last
    if registry_id is not None and registry_id in {each.registry_id for each in earlier}:
        raise InvalidConfigError(
            f"another version has the registry's id {registry_id} already; give that of this schema"
        )
    return found


def _says_the_same(last: SchemaVersion, new: SchemaVersion) -> bool:
    if new.registry_id not in (None, last.registry_id):
        return False
    marks = {"version": 0, "registry_id": None, "created_ns": 0, "protobuf": ""}
    if msgspec.structs.replace(last, **marks) != msgspec.structs.replace(new, **marks):
        return False
    if last.protobuf == new.protobuf:
        return True
    # Imported here: its library is needed for Protocol Buffers alone.
    from strandline.values.protobuf import without_paths

    return without_paths(last.protobuf) == without_paths(new.protobuf)


def _numbered(given: _Given, earlier: Sequence[SchemaVersion]) -> tuple[SchemaColumn, ...]:
    """Return the columns with ids: the id of an earlier column of the name, or else a new id."""
    known = {column.name: column.id for each in earlier for column in each.columns}
    newest = {column.id: column.name for column in earlier[-1].columns} if earlier else {}
    used: dict[int, str] = {}
    free = max(newest, default=0) + 1
    columns = []
    for each, kind, wanted in zip(given.shape.fields, given.types, given.ids, strict=True):
        is_numbered = given.format == "protobuf"
        if wanted is not None and earlier and wanted not in newest and not is_numbered:
            raise InvalidConfigError(
                f"column {each.name!r} has the id {wanted}, which no column has; leave the id of "
                "a new column out"
            )
        number = wanted
        if number is None:
            renamed = (known[alias] for alias in sorted(each.aliases) if alias in known)
            number = known.get(each.name) or next(renamed, None)
        if number is None:
            number, free = free, free + 1
        if known.get(each.name, number) != number:
            if is_numbered and newest[known[each.name]] == each.name:
                raise InvalidConfigError(
                    f"field {each.name!r} has the number {number} and had {known[each.name]}, by "
                    "which earlier values know it; give it back"
                )
            raise InvalidConfigError(
                f"{each.name!r} was the name of another column, now {newest[known[each.name]]!r}; "
                "give the column a name that none had"
            )
        if number in used:
            raise InvalidConfigError(
                f"{used[number]!r} and {each.name!r} are the same column, with the id {number}; "
                "leave the id of one out"
            )
        used[number] = each.name
        free = max(free, number + 1)
        columns.append(
            SchemaColumn(id=number, name=each.name, type=kind, nullable=each.shape.nullable)
        )
    _check_aliases(given, columns, earlier)
    return tuple(columns)


def _check_aliases(
    given: _Given, columns: Sequence[SchemaColumn], earlier: Sequence[SchemaVersion]
) -> None:
    """Check that an Avro field has all its earlier names as aliases, needed to read old values."""
    if given.format != "avro":
        return
    names = {
        column.id: names_by_column(earlier)[column.name]
        for each in earlier
        for column in each.columns
    }
    for each, column in zip(given.shape.fields, columns, strict=True):
        missing = {*names.get(column.id, ())} - {each.name} - each.aliases
        if missing:
            raise InvalidConfigError(
                f"column {each.name!r} was {', '.join(sorted(missing))!r} in earlier versions; "
                'name that in its "aliases"'
            )


def _check_compatible(
    before: SchemaVersion, given: _Given, columns: Sequence[SchemaColumn]
) -> None:
    """Check that values of an earlier version can be read with the new one."""
    old_shape = _parse_stored(before).shape
    _check_name(old_shape, given.shape, "values")
    _check_limits(old_shape, given.shape, "values")
    new = {column.id: each for column, each in zip(columns, given.shape.fields, strict=True)}
    for column, old in zip(before.columns, old_shape.fields, strict=True):
        found = new.pop(column.id, None)
        if found is None:
            raise InvalidConfigError(
                f"column {column.name!r} is missing, and columns cannot be removed; "
                + _how_to_rename(given, column)
            )
        _compare(old.shape, found.shape, found.name)
    for added in new.values():
        _check_optional(added, added.name)


def _how_to_rename(given: _Given, column: SchemaColumn) -> str:
    if given.protobuf:
        return f"if it is renamed, the field keeps its number, {column.id}"
    if given.json_schema:
        return "a JSON Schema renames none: keep the property, and add another one"
    if given.avro:
        return f'if it is renamed, give the field "aliases": ["{column.name}"]'
    return (
        f"if it is renamed, give the new one its id, {column.id}, in columns as JSON, as "
        "'strandline stream schema show --output json' prints them"
    )


def _compare(old: ValueShape, new: ValueShape, path: str) -> None:
    """Check that values of the old type can be read as the new type."""
    if old.nullable and not new.nullable:
        raise InvalidConfigError(
            f"column {path!r} may be null in earlier values, so it cannot become required; let it "
            "be null"
        )
    if old.kind != new.kind and not is_wider(old.kind, new.kind):
        raise InvalidConfigError(
            f"column {path!r} is {old.kind} and cannot become {new.kind}: a type may only become "
            "wider (tinyint, smallint, int, bigint; float, double; more digits of a decimal)"
        )
    _check_name(old, new, f"column {path!r}")
    _check_limits(old, new, f"column {path!r}")
    if lost := old.symbols - new.symbols:
        raise InvalidConfigError(
            f"the enum of {path!r} lacks {', '.join(sorted(lost))}, which earlier values have; "
            "keep what it had"
        )
    fields = {each.name: each for each in new.fields}
    for each in old.fields:
        below = f"{path}.{each.name}"
        if each.name not in fields:
            raise InvalidConfigError(
                f"{below!r} is missing: fields within a column cannot be removed or renamed"
            )
        found = fields.pop(each.name)
        if found.number != each.number:
            raise InvalidConfigError(
                f"{below!r} has the number {found.number} and had {each.number}, by which earlier "
                "values know it; give it back"
            )
        _compare(each.shape, found.shape, below)
    for added in fields.values():
        _check_optional(added, f"{path}.{added.name}")


def _check_limits(old: ValueShape, new: ValueShape, what: str) -> None:
    """Check that a JSON Schema has no limit that is new or stricter than before."""
    for word, limit in new.limits.items():
        if word not in old.limits or not _is_looser(word, old.limits[word], limit):
            raise InvalidConfigError(
                f"{what}: {word!r} is {json.dumps(limit)}, which values of earlier versions need "
                "not meet: a limit may only be left out, or become wider"
            )


def _is_looser(word: str, old: Any, new: Any) -> bool:
    """Return whether a limit allows all values that it allowed before."""
    if word == "enum":
        # Compared as text, since Python's True equals 1.
        return {json.dumps(each) for each in old} <= {json.dumps(each) for each in new}
    if word == "required":
        return {*new} <= {*old}
    if type(old) is bool or type(new) is bool:  # such as exclusiveMinimum in draft 4
        return old is new
    if word in _LOOSER_IF_LESS:
        return bool(new <= old)
    return bool(new >= old) if word in _LOOSER_IF_MORE else bool(new == old)


def _check_optional(added: ShapeField, path: str) -> None:
    if not added.shape.nullable:
        raise InvalidConfigError(
            f"{path!r} is new and required, but earlier values do not have it: let it be null"
        )
    if not added.may_be_missing:
        raise InvalidConfigError(
            f'{path!r} is new: give it "default": null, and put "null" first in its type, so that '
            "earlier values can be read"
        )


def _check_name(old: ValueShape, new: ValueShape, what: str) -> None:
    """Check that Avro can match an old named type with the new one, by name or alias."""
    short = old.name.rpartition(".")[2]
    if new.name.rpartition(".")[2] != short and not {old.name, short} & new.aliases:
        raise InvalidConfigError(
            f"the Avro type of {what} was called {old.name!r}; keep its name, or give it as an "
            "alias"
        )


def is_wider(old: str, new: str) -> bool:
    """Return whether a type, as a schema writes it, may become another one by widening."""
    for order in _ORDERS:
        if old in order and new in order:
            return order.index(old) < order.index(new)
    if not (old.startswith("decimal(") and new.startswith("decimal(")):
        return False
    (before, size), (after, new_size) = (each.split(")", 1) for each in (old, new))
    narrow, wide = parse_type(f"{before})"), parse_type(f"{after})")
    same = (narrow.scale, size) == (wide.scale, new_size)
    return bool(same and narrow.precision < wide.precision)


def _parse_stored(version: SchemaVersion) -> _Given:
    """Parse a version that is stored."""
    if version.format == "avro":
        return _parse_avro(version.avro)
    if version.format == "protobuf":
        return _parse_protobuf(version.protobuf, version.message)
    if version.json_schema:
        return _parse_json_schema(json.loads(version.json_schema))
    return _json_columns(
        _GivenColumn(name=each.name, type=each.type, nullable=each.nullable, id=each.id)
        for each in version.columns
    )


def _parse(text: str, kind: SchemaFormat | None) -> _Given:
    """Parse what a user gave.

    Raises:
        InvalidConfigError: the text is in none of the known forms, or not of the requested format.
    """
    text = text.removeprefix("\ufeff").strip()
    if not text:
        raise InvalidConfigError(
            "the schema is empty; give columns such as 'id BIGINT, name STRING', or an Avro schema"
        )
    document = _document_of(text)
    if _PROTOBUF.search(text):
        raise InvalidConfigError(
            "a .proto file is compiled first: 'strandline stream schema set' does it, or 'protoc "
            "--include_imports --descriptor_set_out=FILE'; give what that writes, with the format "
            "protobuf"
        )
    if is_json_schema(document):
        if kind == "avro":
            raise InvalidConfigError("this is a JSON Schema: its format is json, not avro")
        return _parse_json_schema(document)
    if isinstance(document, dict) and document.get("type") == "struct":
        document = _spark_columns(document)
    is_avro = isinstance(document, dict) and "columns" not in document
    if kind == "avro" and not is_avro:
        raise InvalidConfigError(
            f"an Avro schema of values is a JSON object of type record, got {excerpt(text)!r}"
        )
    if is_avro:
        if kind == "json":
            raise InvalidConfigError("this is an Avro schema: its format is avro, not json")
        return _parse_avro(text)
    if document is None:
        columns = parse_columns(text)
        given: Iterable[_GivenColumn] = [
            _GivenColumn(name=each.name, type=type_text(each.type), nullable=each.nullable)
            for each in columns
        ]
    else:
        if isinstance(document, dict) and document.get("json_schema"):
            raise InvalidConfigError(
                "these are the columns of a JSON Schema, which asks for more: set a JSON Schema, "
                "or leave 'json_schema' out to ask for columns alone from now on"
            )
        listed = document["columns"] if isinstance(document, dict) else document
        try:
            given = msgspec.convert(listed, list[_GivenColumn])
        except UNDECODABLE as error:
            raise InvalidConfigError(
                'columns as JSON are a list such as [{"name": "id", "type": "bigint", "nullable": '
                f'false, "id": 1}}]: {misfit_text(error, listed, name="the list")}'
            ) from error
    return _json_columns(given)


def _spark_columns(document: dict[str, Any]) -> list[Any]:
    """Return the columns of a schema that Spark's ``schema.json()`` wrote."""
    try:
        return [
            {"name": each["name"], "type": _spark_type(each["type"]), "nullable": each["nullable"]}
            for each in document["fields"]
        ]
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidConfigError(
            "this is no schema as Spark's schema.json() has it: "
            f"{f'a field lacks {error}' if isinstance(error, KeyError) else error}"
        ) from error


def _spark_type(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_spark_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_spark_type(kind['keyType'])},{_spark_type(kind['valueType'])}>"
    fields = (
        f"`{each['name'].replace('`', '``')}`:{_spark_type(each['type'])}"
        f"{'' if each['nullable'] else ' not null'}"
        for each in kind["fields"]
    )
    return f"struct<{','.join(fields)}>"


def _document_of(text: str) -> Any:
    """Decode a text that looks like JSON; None: it is a list of columns as Spark writes them."""
    if text[:1] not in ("{", "["):
        return None
    try:
        found = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=lambda number: _checked_number(number, float),
            parse_int=lambda number: _checked_number(number, int),
            parse_constant=_refuse_constant,
        )
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError as error:
        raise _too_deep() from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise InvalidConfigError(
            f"the schema has {half!a}, half of a character that JSON writes as two \\u escapes; "
            "write both, or the character"
        ) from error
    except ValueError as error:
        raise InvalidConfigError(f"the schema is not JSON: {error}") from error
    if is_deeper(found, _LEVELS_MAX):
        raise _too_deep()
    return found


def _too_deep() -> InvalidConfigError:
    return InvalidConfigError(
        f"the schema is nested too deeply: a column takes {DEPTH_MAX} levels; leave inner fields "
        "out"
    )


def _checked_number(text: str, kind: Callable[[str], T]) -> T:
    if math.isinf(float(text)):
        raise InvalidConfigError(
            f"the schema has the number {excerpt(text)}, which is too large; the largest is 1.8e308"
        )
    return kind(text)


def _refuse_constant(word: str) -> None:
    raise InvalidConfigError(f"the schema is not JSON: it has {word}, which JSON does not know")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidConfigError(f"the schema has an object with {name!r} twice; leave one out")
        found[name] = value
    return found


def is_json_schema(document: Any) -> bool:
    """Return whether a document has the keywords of a JSON Schema."""
    return isinstance(document, dict) and (
        document.get("type") == "object" or any(word in document for word in _JSON_SCHEMA)
    )


def given_versions(kind: str, text: str | None) -> tuple[SchemaVersion, ...]:
    """Return a JSON Schema that a user gave instead of a stream's, as the only version.

    Empty for any other schema: its columns are all that it says.

    Raises:
        InvalidConfigError: the JSON Schema cannot become columns.
    """
    if kind != "json" or not text or not is_json_schema(_document_of(text.strip())):
        return ()
    return (next_version((), text),)


def _parse_json_schema(document: dict[str, Any]) -> _Given:
    """Return the columns of a JSON Schema."""
    # Imported here: its library is needed for JSON Schema alone.
    from strandline.values.json_schema import columns_of_json_schema

    schema, shape = columns_of_json_schema(document)
    types = _checked_types(schema)
    try:
        compact = json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise InvalidConfigError(f"the JSON Schema is not JSON: {error}") from error
    return _Given("json", shape, types, [None] * len(types), json_schema=compact)


def _json_columns(given: Iterable[_GivenColumn]) -> _Given:
    """Return columns of JSON values.

    Raises:
        InvalidConfigError: there are no columns, two have one name or id, or JSON lacks a type.
    """
    columns = list(given)
    if not columns:
        raise InvalidConfigError("the schema has no column; name one, such as 'id BIGINT'")
    schema = pa.schema([(each.name, parse_type(each.type)) for each in columns])
    check_size(schema)
    check_distinct_names(schema)
    check_not_of_record(schema, RECORD_COLUMNS)
    check_decodable(schema)
    fields = tuple(
        ShapeField(each.name, _shape_of(kind.type, nullable=each.nullable))
        for each, kind in zip(columns, schema, strict=True)
    )
    types = [type_text(each.type) for each in schema]
    return _Given("json", ValueShape("struct", fields=fields), types, [each.id for each in columns])


def _shape_of(kind: pa.DataType, *, nullable: bool) -> ValueShape:
    """Return the shape of a column's type."""
    if pa.types.is_struct(kind):
        fields = tuple(
            ShapeField(each.name, _shape_of(each.type, nullable=each.nullable)) for each in kind
        )
        return ValueShape("struct", nullable, fields)
    if pa.types.is_list(kind):
        return ValueShape("array", nullable, (element(_shape_of(kind.value_type, nullable=True)),))
    return ValueShape(type_text(kind), nullable)


def _parse_protobuf(text: str, message: str | None) -> _Given:
    """Return the columns of a message."""
    # Imported here: its library is needed for Protocol Buffers alone.
    from strandline.values.protobuf import columns_of_message

    found = columns_of_message(text, message)
    return _Given(
        "protobuf",
        found.shape,
        _checked_types(found.schema),
        found.numbers,
        protobuf=found.descriptors,
        message=found.message,
    )


def _parse_avro(text: str) -> _Given:
    """Return the columns of an Avro schema."""
    # Imported here: fastavro is needed for Avro alone.
    from strandline.values.avro import arrow_schema_of, parsed_schema

    schema = arrow_schema_of(text)
    check_distinct_names(schema)
    check_not_of_record(schema, RECORD_COLUMNS)
    shape = _AvroShapes().of(parsed_schema(text))
    types = [_type_of(each) for each in schema]
    compact = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    return _Given("avro", shape, types, [None] * len(types), compact)


def _checked_types(schema: pa.Schema) -> list[str]:
    """Check columns that were made from a schema, and return their types.

    Raises:
        InvalidConfigError: no stream can have these columns.
    """
    check_size(schema)
    check_distinct_names(schema)
    check_not_of_record(schema, RECORD_COLUMNS)
    return [_type_of(each) for each in schema]


def _type_of(column: pa.Field) -> str:
    try:
        text = type_text(column.type)
        parse_type(text)  # a load parses it, and rejects a decimal of more places than digits
    except InvalidConfigError as error:
        raise InvalidConfigError(f"column {column.name!r}: {error.message}") from error
    return text


@dataclass
class _AvroShapes:
    """Converts an Avro schema, as parsed by fastavro, to shapes.

    fastavro gives full names, and the definition of a named type only at its first use.
    """

    named: dict[str, Any] = field(default_factory=dict)

    def of(self, schema: Any, *, nullable: bool = False) -> ValueShape:
        """Return the shape of a type."""
        if isinstance(schema, list):
            [other] = [each for each in schema if each != "null"]
            return self.of(other, nullable="null" in schema)
        if isinstance(schema, str):
            if schema in self.named:
                return self.of(self.named[schema], nullable=nullable)
            return ValueShape(schema, nullable)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.of(kind, nullable=nullable)
        if "name" in schema:
            self.named[schema["name"]] = schema
        found = self._described(schema, kind)
        return replace(
            found,
            nullable=nullable,
            name=schema.get("name", ""),
            aliases=frozenset(schema.get("aliases", ())),
        )

    def _described(self, schema: Any, kind: str) -> ValueShape:
        if kind == "record":
            fields = tuple(self._field(each) for each in schema["fields"])
            return ValueShape("struct", fields=fields)
        if kind == "array":
            return ValueShape("array", fields=(element(self.of(schema["items"])),))
        if kind == "map":
            return ValueShape("map", fields=(element(self.of(schema["values"])),))
        if kind == "enum":
            return ValueShape("enum", symbols=frozenset(schema["symbols"]))
        if "logicalType" in schema:
            kind = _logical(schema, kind)
        elif kind == "fixed":
            kind = f"fixed({schema['size']})"
        return ValueShape(kind)

    def _field(self, each: Any) -> ShapeField:
        return ShapeField(
            each["name"],
            self.of(each["type"]),
            frozenset(each.get("aliases", ())),
            "default" in each and each["default"] is None,
        )


def _logical(schema: Any, kind: str) -> str:
    if schema["logicalType"] == "decimal":
        size = f" in {schema['size']} bytes" if kind == "fixed" else ""
        return f"decimal({schema['precision']},{schema.get('scale', 0)}){size}"
    return f"{kind} {schema['logicalType']}"
