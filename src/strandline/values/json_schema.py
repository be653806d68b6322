"""JSON Schema: its objects as Arrow columns, and the check of values.

Rules: a schema in which each property has one type becomes columns; several types, or fields
without names, are rejected by keyword. The library jsonschema-rs checks values, by all keywords and
all drafts, whatever the columns could hold. It opens no file and asks no server: a reference must
lead to a place in the same document. Matching a pattern takes time that is linear in the text. Must
not know streams.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs
import msgspec
import pyarrow as pa

from strandline.errors import InvalidConfigError
from strandline.values.columns import COLUMNS_MAX, DEPTH_MAX, type_text
from strandline.values.json_text import excerpt
from strandline.values.shape import ShapeField, ValueShape, element

Judge = Callable[[bytes], str | None]
"""A function that returns why a value is not valid; None: it is valid."""

NOT_NULL: Final = "not null"
"""The entry among a shape's limits that means that null is not allowed."""
_LIMITS = (
    "additionalProperties",
    "dependentRequired",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "pattern",
    "required",
    "unevaluatedProperties",
    "uniqueItems",
)
"""Keywords that only the library checks; the types of columns do not depend on them."""
_REFUSED = (
    "$dynamicRef",
    "$recursiveRef",
    "additionalItems",
    "allOf",
    "anyOf",
    "contains",
    "dependencies",
    "dependentSchemas",
    "else",
    "if",
    "not",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
)
"""Keywords that give a value more than one meaning, or fields without names."""
_SUBJECTS = {*_LIMITS, *_REFUSED, "const", "items", "properties", "type"}
"""Keywords that are rejected beside a reference: drafts differ in which of the two they ignore."""
_OPEN = ("additionalProperties", "unevaluatedProperties")
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_FORMATS: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "date-time": pa.timestamp("us", tz="UTC"),
}
_OF_PYTHON = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
_DRAFTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
)
_Kind = jsonschema_rs.ValidationErrorKind
_ROOT = "values"
_NULL = {"type": "null"}
_NO_NULL = 'it is not of type "null"'
_PARTS_MAX = 4 * COLUMNS_MAX
_DEPTH_MAX = 4 * DEPTH_MAX
"""The deepest recursion: each level of a column may take several steps, as along a reference."""


class JsonColumns(NamedTuple):
    """The columns of a JSON Schema."""

    schema: pa.Schema
    shape: ValueShape
    """The shape of a struct of these columns."""


class _SubschemaColumn(NamedTuple):
    """A subschema as a column or a part of one."""

    kind: pa.DataType
    shape: ValueShape


def columns_of_json_schema(document: dict[str, Any]) -> JsonColumns:
    """Return the columns of a JSON Schema of objects.

    Raises:
        InvalidConfigError: the document is not a JSON Schema, or a part of it cannot become one
            column; the message names the part.
    """
    _validator(document)
    kind, shape = _SchemaWalk(document).part(document, _ROOT, ())
    if not pa.types.is_struct(kind):
        raise InvalidConfigError(
            f'the JSON Schema of values must have the "type" "object", got {type_text(kind)}'
        )
    return JsonColumns(pa.schema(list(kind)), shape)


def json_schema_judge(text: str) -> Judge:
    """Return a function that checks values by a JSON Schema.

    Args:
        text: a schema that has columns.
    """
    validate, decode = _validator(json.loads(text)).validate, msgspec.json.Decoder().decode

    def judge(value: bytes) -> str | None:
        try:
            validate(decode(value))
        except jsonschema_rs.ValidationError as error:
            return _reason(error)
        except RecursionError:
            return "JSON that is nested too deeply"
        except ValueError as error:  # also of msgspec: NaN, Infinity and 1e400 are no JSON for it
            return f"not JSON as JSON Schema has it: {error}"
        return None

    return judge


def _reason(error: jsonschema_rs.ValidationError) -> str:
    """Return an error of the library in one line; a large value is shortened."""
    error = _innermost(error)
    path = _path_text(error.instance_path)
    found = excerpt(json.dumps(error.instance, ensure_ascii=False))
    where = f"column {path!r}" if path else "the value"
    return f"{where} is {found}, but {error.message}"


def _innermost(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Return the error of the choice that fits best, instead of "none of the choices fits"."""
    while branches := getattr(error.kind, "context", None):
        firsts = [branch[0] for branch in branches if branch]
        error = max(firsts, key=lambda each: (len(each.instance_path), each.message != _NO_NULL))
    return error


def _path_text(path: Sequence[str | int]) -> str:
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)[1:]


@contextmanager
def _translated(document: dict[str, Any]) -> Iterator[None]:
    """Translate the library's errors about a schema to an InvalidConfigError."""
    try:
        yield
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, _Kind.Referencing):
            for path, target in _references(document, ""):
                _resolve(document, target, path or _ROOT)
        raise InvalidConfigError(f"this is not a JSON Schema: {_schema_reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfigError(f"this is not a JSON Schema: {error}") from error


def _schema_reason(error: jsonschema_rs.ValidationError) -> str:
    """Return which keyword of a schema is wrong, its value, and what it takes."""
    path, found = _path_text(error.instance_path), json.dumps(error.instance, ensure_ascii=False)
    inner = _innermost(error)
    what = inner.message
    if isinstance(inner.kind, _Kind.Enum):
        what = f"it must be one of {', '.join(map(str, inner.kind.options))}"
    elif isinstance(error.kind, _Kind.Format) and path.endswith("pattern"):
        what = "it is not a regular expression without lookaround and backreferences"
    return f"{path or 'it'} is {excerpt(found)}, but {what}"


def _references(part: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the references in a document, each with its place."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield path, part["$ref"]
        for name, each in part.items():
            yield from _references(each, f"{path}.{name}".removeprefix("."))
    elif isinstance(part, list):
        for place, each in enumerate(part):
            yield from _references(each, f"{path}[{place}]")


def _resolve(document: Any, target: Any, where: str) -> Any:
    """Return the place in the document that a reference leads to; ``where`` is its own.

    Raises:
        InvalidConfigError: it leads to another document, or nowhere.
    """
    if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
        raise InvalidConfigError(
            f"{where}: the reference {target!r} leads to another document or to an anchor, "
            'and only those to a place in this one, "#/…", are followed; put the schema there, '
            'under "$defs"'
        )
    found: Any = document
    for step in target.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        elif isinstance(found, dict) and name in found:
            found = found[name]
        else:
            raise InvalidConfigError(
                f"{where}: the reference {target!r} leads nowhere; put a schema there, or "
                "correct it"
            )
    return found


def _validator(document: dict[str, Any]) -> jsonschema_rs.Validator:
    draft = document.get("$schema")
    if isinstance(draft, str) and draft.rstrip("#") not in _DRAFTS:
        raise InvalidConfigError(
            f'"$schema" is {draft!r}, which is no draft known here (4, 6, 7, 2019-09 and 2020-12 '
            f"are); write {_DRAFTS[0]}, or leave it out"
        )
    with _translated(document):
        return jsonschema_rs.validator_for(
            document,
            mask="it",
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(),
            validate_formats=False,  # only an annotation since draft 2019-09
        )


class _SchemaWalk:
    """A walk over a JSON Schema from its root, along references.

    Args:
        document: the whole schema.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._count = self._depth = 0

    def part(self, schema: Any, path: str, within: tuple[str, ...]) -> _SubschemaColumn:
        """Return a subschema as a column.

        Args:
            schema: the subschema.
            path: the path of the column, for messages.
            within: the references that led here; following one of them again would never end.
        """
        self._depth += 1
        self._check(schema, path)
        if "$ref" in schema:
            _check_alone(schema, "$ref", path)
            target = schema["$ref"]
            if target in within:
                raise InvalidConfigError(
                    f"{_named(path)}: {target!r} holds itself, and no column is as deep; leave the "
                    "property out"
                )
            place = _resolve(self._document, target, _named(path))
            found = self.part(place, path, (*within, target))
        elif (word := _only_choice(schema)) is not None:
            _check_alone(schema, word, path)
            [choice] = (each for each in schema[word] if each != _NULL)
            found = self.part(choice, path, within)
            found = _with_null(found) if _NULL in schema[word] else found
        else:
            found = self._typed(schema, path, within)
        self._depth -= 1
        return found

    def _check(self, schema: Any, path: str) -> None:
        # Each use of a reference is counted, since each becomes columns.
        self._count += 1
        if self._depth > _DEPTH_MAX:
            raise InvalidConfigError(
                f"{_named(path)} is nested more than {DEPTH_MAX} deep; leave inner properties out"
            )
        if self._count > _PARTS_MAX:
            raise InvalidConfigError(
                f"the JSON Schema has more than {COLUMNS_MAX:,} columns, those within columns and "
                f"each use of a reference included; leave some out, such as {path[:200]!r}"
            )
        if not isinstance(schema, dict):
            allowed = "no value" if schema is False else "values of any type"
            raise InvalidConfigError(
                f"{_named(path)}: the schema {json.dumps(schema)} allows {allowed}, so that no "
                "column can be made of it; give it a type, or leave the property out"
            )
        if "$id" in schema and schema is not self._document:
            raise InvalidConfigError(
                f'{_named(path)}: an inner "$id" changes what references mean; leave it out'
            )

    def _typed(
        self, schema: dict[str, Any], path: str, within: tuple[str, ...]
    ) -> _SubschemaColumn:
        for word in _REFUSED:
            if word in schema:
                raise InvalidConfigError(
                    f"{_named(path)}: {word!r} gives values more than one meaning, and a column "
                    "has one; leave it out, or the whole property"
                )
        limits = _limits_of(schema, path)
        word, may_be_null = _type_of(schema, path)
        if not may_be_null:
            limits[NOT_NULL] = True
        if word == "object":
            return self._object(schema, path, within, limits=limits)
        if word == "array":
            items = schema.get("items")
            if not isinstance(items, dict):
                raise InvalidConfigError(
                    f'{_named(path)}: an array needs "items", one schema for all of them; add it, '
                    "or leave the property out"
                )
            part = self.part(items, f"{path}.items", within)
            shape = ValueShape("array", may_be_null, (element(part.shape),), limits=limits)
            return _SubschemaColumn(pa.list_(part.kind), shape)
        kind = _TYPES[word]
        if word == "string":
            kind = _FORMATS.get(str(schema.get("format")), kind)
            if schema.get("contentEncoding") == "base64":
                kind = pa.binary()
        return _SubschemaColumn(kind, ValueShape(type_text(kind), may_be_null, limits=limits))

    def _object(
        self, schema: dict[str, Any], path: str, within: tuple[str, ...], *, limits: dict[str, Any]
    ) -> _SubschemaColumn:
        properties = schema.get("properties")
        if not properties or "" in properties:
            raise InvalidConfigError(
                f'{_named(path)}: an object without "properties", or with one without a name, has '
                "no columns; name them, or leave the object out"
            )
        required = {*schema.get("required", ())}
        if unknown := sorted(required - {*properties}):
            raise InvalidConfigError(
                f'{_named(path)}: {unknown[0]!r} is "required" and not among "properties"; add it '
                "there"
            )
        kinds, fields = [], []
        for name, each in properties.items():
            below = name if path == _ROOT else f"{path}.{name}"
            kind, shape = self.part(each, below, within)
            kinds.append(pa.field(name, kind))
            optional = name not in required or shape.nullable
            fields.append(ShapeField(name, replace(shape, nullable=optional)))
        nullable = NOT_NULL not in limits
        shape = ValueShape("struct", nullable, tuple(fields), limits=limits)
        return _SubschemaColumn(pa.struct(kinds), shape)


def _named(path: str) -> str:
    return path if path == _ROOT else f"column {path[:200]!r}"


def _check_alone(schema: dict[str, Any], word: str, path: str) -> None:
    """Check that beside a keyword there are only annotations."""
    for other in schema:
        if other in _SUBJECTS and other != word:
            raise InvalidConfigError(
                f"{_named(path)}: {other!r} beside {word!r} has no meaning that all drafts share; "
                "put it where the reference leads"
            )


def _only_choice(schema: dict[str, Any]) -> str | None:
    """Return the keyword of a choice that has one schema, perhaps beside null; None: no such."""
    for word in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            others = [each for each in choices if each != _NULL]
            if len(others) == 1 and (word != "allOf" or len(choices) == 1):
                return word
    return None


def _with_null(part: _SubschemaColumn) -> _SubschemaColumn:
    limits = {word: each for word, each in part.shape.limits.items() if word != NOT_NULL}
    return _SubschemaColumn(part.kind, replace(part.shape, nullable=True, limits=limits))


def _type_of(schema: dict[str, Any], path: str) -> tuple[str, bool]:
    """Return the one type of values, and whether null is allowed, too."""
    values = _values_of(schema)
    words = schema.get("type")
    if words is None and values is not None:
        words = [_OF_PYTHON[type(each)] for each in values]
    elif words is None:
        words = [word for word in ("properties", "items") if word in schema]
        words = ["object" if word == "properties" else "array" for word in words]
    found = {words} if isinstance(words, str) else {*words}
    others = found - {"null"}
    if "number" in others:
        others.discard("integer")
    if len(others) != 1:
        told = " or ".join(sorted(others)) or "nothing"
        raise InvalidConfigError(
            f'{_named(path)}: its "type" is {told}, and a column has one; give it one (beside '
            '"null", if it may be null), or leave the property out'
        )
    return others.pop(), "null" in found and (values is None or None in values)


def _values_of(schema: dict[str, Any]) -> list[Any] | None:
    """Return the only values that a schema allows, if it lists them."""
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def _limits_of(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the limits of a schema beyond its type; null as a value is no limit."""
    limits = {word: schema[word] for word in _LIMITS if word in schema}
    if not limits.get("required", True):
        del limits["required"]  # an empty list requires nothing
    for word in _OPEN:
        if isinstance(limits.get(word), dict) and limits[word]:
            raise InvalidConfigError(
                f"{_named(path)}: {word!r} with a schema describes fields without names, which "
                "have no column; leave it out, or set it to false"
            )
        if limits.get(word, False) is not False:  # true limits nothing
            del limits[word]
    if (values := _values_of(schema)) is not None:
        limits["enum"] = [each for each in values if each is not None]
    return limits
