"""``format("strandline-table")``: the exactly-once table as a Spark sink and source.

Rules: light to import, because Spark imports it to look sources up, whichever source a job uses;
readers and writers are imported when asked for. Must not know files or manifests.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from strandline.spark.releases import check_spark_version
from strandline.spark.source import reject_overwrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.spark.tables.io import BatchTableWriter, StreamTableWriter, TableReader


class StrandlineTable(DataSource):
    """Commits rows once into a directory of Parquet files, and reads what is committed."""

    def __init__(self, options: dict[str, str]) -> None:
        check_spark_version()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "strandline-table"

    def schema(self) -> StructType:
        """Return the table's columns.

        Raises:
            InvalidRequestError: there is no table, or nothing is committed yet.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        from strandline.spark.options import parse_table_options
        from strandline.spark.table import committed_schema

        options = parse_table_options(self.options)
        return from_arrow_schema(committed_schema(options.path, storage=options.storage))

    def reader(self, schema: StructType) -> "TableReader":
        """Return a batch reader of the committed rows."""
        from strandline.spark.options import parse_table_options
        from strandline.spark.tables.io import TableReader

        return TableReader(parse_table_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchTableWriter":  # noqa: FBT001 -- Spark's signature
        """Return a batch writer, which commits under ``txnId`` and ``batchId``, or a random id."""
        from strandline.spark.options import parse_table_options
        from strandline.spark.tables.io import BatchTableWriter

        reject_overwrite(overwrite=overwrite)
        return BatchTableWriter(parse_table_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamTableWriter":  # noqa: N802, FBT001 -- Spark's signature
        """Return a streaming writer that commits each micro-batch."""
        from strandline.spark.options import parse_table_options
        from strandline.spark.tables.io import StreamTableWriter

        reject_overwrite(overwrite=overwrite)
        return StreamTableWriter(parse_table_options(self.options), schema)


def load_table(
    spark: "SparkSession", path: str, *, storage: Mapping[str, str] | None = None
) -> "DataFrame":
    """Read the committed rows with Spark's Parquet reader, several times faster.

    A table in an object store is read by this format, since Spark's reader needs Hadoop's jars.

    Args:
        spark: the session.
        path: the table's directory or URL.
        storage: settings of the object store.

    Raises:
        InvalidRequestError: there is no table, or nothing is committed yet.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from strandline.spark.table import committed_files, committed_schema
    from strandline.spark.tables.open import is_object_url

    if is_object_url(path):
        reader = spark.read.format(StrandlineTable.name())
        return reader.option("storage", json.dumps(dict(storage or {}))).load(path)
    schema = from_arrow_schema(committed_schema(path))
    files = committed_files(path)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*files)
