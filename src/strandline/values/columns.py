"""Columns as Spark writes them (``id BIGINT, tags ARRAY<STRING>``), to Arrow's types and back.

Rules: only types that tables can keep are known; any other is an error that names it. Comments are
ignored. Must not know Spark, tables or streams.
"""

import difflib
import re
from collections.abc import Iterable

import pyarrow as pa

from strandline.errors import InvalidConfigError
from strandline.values.schema import SchemaColumn

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_NAMES = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(),
}
_SYNONYMS = {
    "byte": "tinyint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "short": "smallint",
    "timestamp_ltz": "timestamp",
}
_DECIMALS = ("decimal", "dec", "numeric")
_NESTED = ("array", "map", "struct")
_DECIMAL_DIGITS_MAX = 38
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DEPTH_MAX = 32
"""How deeply types may be nested."""
COLUMNS_MAX = 2_000
"""The largest number of columns; those within structs, arrays and maps are counted, too."""
NAMES_CHARACTERS_MAX = 64 << 10
"""The largest number of characters of all columns' names together."""


def parse_columns(text: str) -> pa.Schema:
    """Parse a list of columns.

    Raises:
        InvalidConfigError: it is none, or has a type that is not known here.
    """
    parser = _Parser(text)
    columns = parser.fields(end=None)
    if not columns:
        raise parser.wrong("no column")
    return pa.schema(columns)


def parse_type(text: str) -> pa.DataType:
    """Parse one type, such as ``array<string>``; errors as ``parse_columns``."""
    parser = _Parser(text)
    kind = parser.type()
    parser.expect_end()
    return kind


def arrow_schema(columns: Iterable[SchemaColumn]) -> pa.Schema:
    """Return the columns of a stream's schema as Arrow fields; all may be null, as in a table."""
    return pa.schema([(column.name, parse_type(column.type)) for column in columns])


def check_size(schema: pa.Schema) -> None:
    """Check that the columns can be written out and parsed again.

    An Avro schema may refer to a record by name: a few lines, and a type that is shared, can mean
    more columns than fit into memory.

    Raises:
        InvalidConfigError: there are too many columns, the names are too long, or types are nested
            too deeply.
    """
    columns = characters = 0
    # Depth first, so that it ends at a limit before it holds more than a few paths.
    waiting = [(field, 0, field.name) for field in reversed(schema)]
    while waiting:
        field, depth, column = waiting.pop()
        kind = field.type
        columns += not kind.num_fields
        characters += len(field.name)
        if columns > COLUMNS_MAX or characters > NAMES_CHARACTERS_MAX:
            raise InvalidConfigError(
                f"the schema has more than {COLUMNS_MAX:,} columns, those within columns included, "
                f"or names of more than {NAMES_CHARACTERS_MAX:,} characters together; a named type "
                f"counts wherever it is used. Leave some out, such as {column[:100]!r}"
            )
        if kind.num_fields and depth == DEPTH_MAX:
            raise InvalidConfigError(
                f"the type of column {column[:100]!r} is nested more than {DEPTH_MAX} deep; leave "
                "inner fields out"
            )
        # Arrow describes a map as a list of structs, which has no level of its own.
        inner = kind.field(0).type if pa.types.is_map(kind) else kind
        places = reversed(range(inner.num_fields))
        waiting += [(inner.field(place), depth + 1, column) for place in places]


def type_text(kind: pa.DataType) -> str:
    """Return a type as Spark writes it; ``parse_type`` is the inverse.

    Raises:
        InvalidConfigError: it has no such form.
    """
    for name, known in _NAMES.items():
        if kind == known:
            return name
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_text(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)},{type_text(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(column_text(field, ':') for field in kind)}>"
    raise InvalidConfigError(f"no column has the type {kind}")


def column_text(field: pa.Field, separator: str = " ") -> str:
    """Return a column as Spark writes it; a name is quoted if it has to be."""
    name = field.name
    if not _PLAIN_NAME.fullmatch(name):
        name = f"`{name.replace('`', '``')}`"
    return f"{name}{separator}{type_text(field.type)}{'' if field.nullable else ' not null'}"


class _Parser:
    """A recursive-descent parser of a list of columns; the text is first split into tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, bool]] = []
        """Each token, and whether it is a quoted name."""
        self._at = self._depth = place = 0
        end = len(text.rstrip())
        while place < end:
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.wrong(f"{text[place:].strip()[:20]!r}")
            name = found[1]
            token = name.replace("``", "`") if name is not None else found[0].strip()
            self._tokens.append((token, name is not None))
            place = found.end()

    def wrong(self, what: str) -> InvalidConfigError:
        """Return an error that says what was found instead of columns."""
        return InvalidConfigError(
            f"'schema' takes columns such as 'id BIGINT, tags ARRAY<STRING>', got {what} in "
            f"{self._text[:500]!r}"
        )

    def fields(self, *, end: str | None) -> list[pa.Field]:
        """Parse fields up to the sign that ends them; None: to the end of the text."""
        found: list[pa.Field] = []
        while self._peek() != end:
            if found:
                self._expect(",")
            name = self._next()
            if self._peek() == ":":
                self._next()
            kind = self.type()
            nullable = not self._skip("not", "null")
            if self._skip("comment"):
                self._next()
            found.append(pa.field(name, kind, nullable))
        return found

    def expect_end(self) -> None:
        """Check that nothing follows."""
        if self._peek() is not None:
            raise self.wrong(f"{self._peek()!r} after a type")

    def type(self) -> pa.DataType:
        """Parse a type."""
        word = self._next()
        name = _SYNONYMS.get(word.lower(), word.lower())
        if name in _NAMES:
            return _NAMES[name]
        if name in _DECIMALS:
            return self._decimal()
        if name not in _NESTED:
            known = (*_NAMES, *_SYNONYMS, *_DECIMALS, *_NESTED)
            near = difflib.get_close_matches(word.lower(), known, n=1)
            hint = f" (did you mean {near[0].upper()}?)" if near else ""
            raise self.wrong(f"the type {word!r}, which is not known without Spark{hint},")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self.wrong(f"types that are nested more than {DEPTH_MAX} deep")
        self._expect("<")
        kind = self._nested(name)
        self._expect(">")
        self._depth -= 1
        return kind

    def _nested(self, name: str) -> pa.DataType:
        if name == "array":
            return pa.list_(self.type())
        if name == "struct":
            return pa.struct(self.fields(end=">"))
        key = self.type()
        self._expect(",")
        return pa.map_(key, self.type())

    def _decimal(self) -> pa.DataType:
        if self._peek() != "(":
            return pa.decimal128(10, 0)
        self._next()
        numbers = [self._next()]
        if self._peek() == ",":
            self._next()
            numbers.append(self._next())
        self._expect(")")
        if not all(number.isdecimal() and len(number) <= 2 for number in numbers):
            raise self.wrong(f"{numbers}")
        precision, scale = (*map(int, numbers), 0)[:2]
        if not 1 <= precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise self.wrong(f"decimal({precision},{scale})")
        return pa.decimal128(precision, scale)

    def _peek(self) -> str | None:
        if self._at == len(self._tokens):
            return None
        token, is_quoted = self._tokens[self._at]
        return "`" if is_quoted else token

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise self.wrong("an early end")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise self.wrong(f"{self._peek() or 'an end'!r} instead of {sign!r}")
        self._next()

    def _skip(self, *words: str) -> bool:
        """Skip these words if they are next; return whether they were."""
        tokens = self._tokens[self._at : self._at + len(words)]
        if [token.lower() for token, _ in tokens] != list(words):
            return False
        self._at += len(words)
        return True
