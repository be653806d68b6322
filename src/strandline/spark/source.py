"""``format("strandline")``: a stream of the log as a Spark data source and sink.

Rules: light to import, because Spark imports it to look up sources; readers and writers are
imported on demand. No ``pushFilters``: on Spark 4.3 a DataFrame that is used twice would silently
keep the first use's filters. A schema given by the user selects the columns to read. Must not know
how records are fetched.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from strandline.errors import InvalidConfigError, StrandlineError
from strandline.spark.options import ReadOptions, origin_metadata
from strandline.spark.releases import check_spark_version

if TYPE_CHECKING:
    from strandline.spark.batch_reader import StreamSliceReader
    from strandline.spark.stream_reader import RefusedStreamReader, StreamFollowReader
    from strandline.spark.writer import BatchAppendWriter, StreamAppendWriter

COLUMNS: dict[str, DataType] = {
    "stream": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "subject": StringType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": MapType(StringType(), BinaryType()),
}
NULLABLE = ("key", "value", "headers")
"""Columns that may be null."""


class StrandlineSource(DataSource):
    """Reads records of a stream, and appends rows to one; ``docs/spark.md`` lists the options."""

    def __init__(self, options: dict[str, str]) -> None:
        check_spark_version()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "strandline"

    def schema(self) -> StructType:
        """Return the columns of a record; the metadata of ``offset`` names the stream.

        Spark calls this when the read is loaded.

        Raises:
            InvalidConfigError: an option is invalid.
        """
        from strandline.spark.options import parse_read_options

        options = parse_read_options(self.options, streaming=None)
        origin = origin_metadata(options)
        return StructType(
            [
                StructField(field.name, field.dataType, field.nullable, origin)
                if field.name in ("offset", "_offset")
                else field
                for field in fields_of(options)
            ]
        )

    def reader(self, schema: StructType) -> "StreamSliceReader":
        """Return a batch reader.

        Raises:
            InvalidConfigError: an option is invalid, or records lack a requested column.
        """
        from strandline.spark.batch_reader import StreamSliceReader
        from strandline.spark.options import parse_read_options

        options = parse_read_options(self.options, streaming=False)
        check_columns(schema, options)
        return StreamSliceReader(options, schema)

    def streamReader(self, schema: StructType) -> "StreamFollowReader | RefusedStreamReader":  # noqa: N802 -- Spark's name
        """Return a streaming reader; its methods raise the error of an invalid option or column.

        An error that is raised here would be lost: Spark 4.3 fails with an ``UnboundLocalError``.
        """
        from strandline.spark.options import parse_read_options
        from strandline.spark.stream_reader import RefusedStreamReader, StreamFollowReader

        try:
            options = parse_read_options(self.options, streaming=True)
            check_columns(schema, options)
            return StreamFollowReader(options, schema)
        except StrandlineError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchAppendWriter":  # noqa: FBT001 -- Spark's signature
        """Return a batch writer.

        Raises:
            InvalidConfigError: an option or column is invalid, or the mode is overwrite.
        """
        from strandline.spark.options import parse_write_options
        from strandline.spark.writer import BatchAppendWriter

        reject_overwrite(overwrite=overwrite)
        return BatchAppendWriter(parse_write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamAppendWriter":  # noqa: N802, FBT001 -- Spark's signature
        """Return a streaming writer.

        Raises:
            InvalidConfigError: an option or column is invalid, or the output mode is complete.
        """
        from strandline.spark.options import parse_write_options
        from strandline.spark.writer import StreamAppendWriter

        reject_overwrite(overwrite=overwrite)
        return StreamAppendWriter(parse_write_options(self.options), schema)


def columns_of(options: ReadOptions) -> dict[str, DataType]:
    """Return the columns of a read for which the user names none; ``stream`` only with several.

    A sink writes rows to the stream in this column, so a read of one stream must not have it.
    """
    several = options.stream is None
    return {name: kind for name, kind in COLUMNS.items() if several or name != "stream"}


def fields_of(options: ReadOptions) -> list[StructField]:
    """Return all columns, also decoded ones, of a read for which the user names none.

    Raises:
        InvalidConfigError: the columns of decoded values are not known.
    """
    if options.value_format == "raw":
        return [StructField(name, kind) for name, kind in columns_of(options).items()]
    from strandline.spark.value_source import decoded_columns

    return decoded_columns(options, columns_of(options))


def check_columns(schema: StructType, options: ReadOptions) -> None:
    """Check that a schema has only a read's columns, each at most once, with their nullability.

    Raises:
        InvalidConfigError: naming the column and its type.
    """
    if options.value_format != "raw":
        from strandline.spark.value_source import check_decoded_columns

        check_decoded_columns(schema, fields_of(options))
        return
    names = schema.fieldNames()
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise InvalidConfigError(
                f"records have no column '{field.name}'; they have: {', '.join(COLUMNS)}"
            )
        if field.dataType.simpleString() != kind.simpleString():
            raise InvalidConfigError(
                f"column '{field.name}' is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast it after loading"
            )
        if not field.nullable and field.name in NULLABLE:
            raise InvalidConfigError(
                f"column '{field.name}' may be null, but the schema says NOT NULL, which Spark "
                "relies on; leave NOT NULL out"
            )
        if names.count(field.name) > 1:
            raise InvalidConfigError(f"column '{field.name}' is asked for twice; name it once")


def reject_overwrite(*, overwrite: bool) -> None:
    """Raise an error for the mode overwrite: streams are only appended to.

    Raises:
        InvalidConfigError: ``overwrite`` is true.
    """
    if overwrite:
        raise InvalidConfigError(
            "only appending is possible: use .mode('append'), or outputMode('append') with a "
            "watermark instead of 'complete'"
        )
