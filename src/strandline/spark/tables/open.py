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
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.store import LocalDirectory, TableDirectory, TableStore, local_path


def open_store(options: TableOptions, schema: pa.Schema) -> TableStore:
    """Return the table that the options name, ready to be written.

    Raises:
        InvalidConfigError: the format's library is not installed, or the path is not valid for it.
        InvalidRequestError: at the path there is something else than a table of this format.
    """
    where = {"catalog": options.catalog, "storage": options.storage}
    if options.table_format == "iceberg":
        iceberg = _library("strandline.spark.tables.iceberg", "pyiceberg")
        iceberg.prepare_iceberg(
            options.path, schema=schema, is_followed=options.stream_schema, **where
        )
    store = existing_store(options.path, table_format=options.table_format, **where)
    store.check_kind(schema)
    return store


def existing_store(
    path: str,
    *,
    table_format: TableFormat = "parquet",
    catalog: Mapping[str, str] | None = None,
    storage: Mapping[str, str] | None = None,
) -> TableStore:
    """Return the table at a path for reading; creates nothing.

    Raises:
        InvalidConfigError: the format's library is not installed, or the path is not its kind.
    """
    settings = storage or {}
    if table_format == "parquet":
        return TableFiles(directory_of(path, settings))
    if table_format == "delta":
        delta = _library("strandline.spark.tables.delta", "deltalake")
        store: TableStore = delta.DeltaStore(directory_of(path, settings))
        return store
    iceberg = _library("strandline.spark.tables.iceberg", "pyiceberg")
    where = {"catalog": catalog or {}, "storage": settings}
    directory = directory_of(iceberg.location_of(path, **where), settings, data="data")
    opened: TableStore = iceberg.IcebergStore(path, directory=directory, **where)
    return opened


def is_object_url(path: str) -> bool:
    """Return whether a table's path is in an object store."""
    return "://" in path and not path.startswith("file:")


def directory_of(path: str, storage: Mapping[str, str], *, data: str = "") -> TableDirectory:
    """Return the directory of a path, ``file:`` URI or URL.

    Args:
        path: the path of the table.
        storage: settings of its object store.
        data: the folder of its data files.

    Raises:
        InvalidConfigError: the URL has another scheme, or the settings are not valid.
    """
    if is_object_url(path):
        objects = _library("strandline.spark.tables.objects", "obstore")
        made: TableDirectory = objects.ObjectDirectory(path, storage=storage, data=data)
        return made
    root = local_path(path)
    return LocalDirectory(root, root / data)


def _library(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != package:
            raise
        raise InvalidConfigError(
            f"{package} is not installed: pip install 'strandline[lake]' on the driver"
        ) from error
