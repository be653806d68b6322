"""Opens the store of a table by its format: plain Parquet, Delta Lake or Iceberg.

Rules: deltalake and pyiceberg are imported only on demand. On the driver an Iceberg table is
created if it does not exist, because tasks write into its directory. Must not know what may be
committed.
"""

import importlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from strandline.errors import InvalidConfigError
from strandline.spark.options import TableFormat, TableOptions
from strandline.spark.table_files import TableFiles
from strandline.spark.table_store import TableStore


def open_store(options: TableOptions, schema: pa.Schema) -> TableStore:
    """Return the table that the options name, ready to be written.

    Raises:
        InvalidConfigError: the format's library is not installed, or the path is not its kind.
        InvalidRequestError: the path has something else than a table of this kind.
    """
    if options.table_format == "iceberg":
        iceberg = _library("strandline.spark.table_iceberg", "pyiceberg")
        root = iceberg.prepare_iceberg(options.path, catalog=options.catalog, schema=schema)
        store: TableStore = iceberg.IcebergStore(options.path, root=root, catalog=options.catalog)
        return store
    store = existing_store(options.path, table_format=options.table_format)
    store.refuse_other_kind(schema)
    return store


def existing_store(
    path: str,
    *,
    table_format: TableFormat = "parquet",
    catalog: Mapping[str, str] | None = None,
) -> TableStore:
    """Return the table at a path for reading; creates nothing.

    Raises:
        InvalidConfigError: the format's library is not installed, or the path is not its kind.
    """
    if table_format == "parquet":
        return TableFiles(path)
    if table_format == "delta":
        delta = _library("strandline.spark.table_delta", "deltalake")
        store: TableStore = delta.DeltaStore(path)
        return store
    iceberg = _library("strandline.spark.table_iceberg", "pyiceberg")
    opened: TableStore = iceberg.existing_iceberg(path, catalog=catalog or {})
    return opened


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise InvalidConfigError(
            f"{package} is not installed: pip install 'strandline[lake]' on the driver"
        ) from error
