"""Columns as Spark writes them (``id BIGINT, tags ARRAY<STRING>``), parsed without Java.

Rules: the types that tables keep; anything else is an error that names it. Where Spark runs, Spark
parses. Must not know tables or streams.
"""

import re
from collections.abc import Callable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from strandline.errors import InvalidConfigError

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_SIMPLE: dict[str, Callable[[], DataType]] = {
    "bigint": LongType,
    "binary": BinaryType,
    "boolean": BooleanType,
    "byte": ByteType,
    "date": DateType,
    "double": DoubleType,
    "float": FloatType,
    "int": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "real": FloatType,
    "short": ShortType,
    "smallint": ShortType,
    "string": StringType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
    "tinyint": ByteType,
}
_DECIMALS = ("decimal", "dec", "numeric")


def parse_ddl(text: str) -> StructType:
    """Parse a list of columns.

    Raises:
        InvalidConfigError: it is none, or has a type that is not known here.
    """
    parser = _Parser(text)
    columns = parser.fields(end=None)
    if not columns.fields:
        raise parser.wrong("no column")
    return columns


class _Parser:
    """A recursive descent over the words and signs of a list of columns."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, bool]] = []
        """Each with whether it is a quoted name."""
        self._at = place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self.wrong(f"{text[place:].strip()[:20]!r}")
            name = found[1]
            token = name.replace("``", "`") if name is not None else found[0].strip()
            self._tokens.append((token, name is not None))
            place = found.end()

    def wrong(self, what: str) -> InvalidConfigError:
        """Return the error to raise."""
        return InvalidConfigError(
            f"'schema' takes columns such as 'id BIGINT, tags ARRAY<STRING>', got {what} in "
            f"{self._text!r}"
        )

    def fields(self, *, end: str | None) -> StructType:
        """Parse fields up to the sign that ends them; None: to the end of the text."""
        found: list[StructField] = []
        while self._peek() != end:
            if found:
                self._expect(",")
            name = self._next()
            if self._peek() == ":":
                self._next()
            kind = self._type()
            nullable = not self._skip("not", "null")
            comment = self._next()[1:-1] if self._skip("comment") else None
            metadata = None if comment is None else {"comment": comment}
            found.append(StructField(name, kind, nullable, metadata))
        return StructType(found)

    def _type(self) -> DataType:
        word = self._next()
        name = word.lower()
        if name in _SIMPLE:
            return _SIMPLE[name]()
        if name in _DECIMALS:
            return self._decimal()
        if name == "array":
            self._expect("<")
            item = self._type()
            self._expect(">")
            return ArrayType(item)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return MapType(key, value)
        if name == "struct":
            self._expect("<")
            inner = self.fields(end=">")
            self._expect(">")
            return inner
        raise self.wrong(f"the type {word!r}, which is not known without Spark,")

    def _decimal(self) -> DecimalType:
        if self._peek() != "(":
            return DecimalType()
        self._next()
        numbers = [self._next()]
        if self._peek() == ",":
            self._next()
            numbers.append(self._next())
        self._expect(")")
        if not all(number.isdecimal() for number in numbers):
            raise self.wrong(f"{numbers}")
        return DecimalType(*map(int, numbers))

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
        """Pass these words; return whether they are next."""
        tokens = self._tokens[self._at : self._at + len(words)]
        if [token.lower() for token, _ in tokens] != list(words):
            return False
        self._at += len(words)
        return True
