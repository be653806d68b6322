"""Tables that follow their stream's schema, by Spark and by the local engine in turn."""

import json

import pytest

from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.load import start_load
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.run import run_pipeline
from strandline.spark.tables.open import existing_store
from strandline.spark.tables.source import load_table
from tests.kit.local_loads import FORMATS, sql_catalog

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_running_query_follows_the_schema(spark, log, tmp_path, table_format):
    """New columns, a wider type and a new name come with a batch, without a new start; the local
    engine goes on, and Spark's own reader of Parquet reads files of all versions.
    """
    stream = log.new_stream(partitions=1)
    config = {
        "kind": "load",
        "server": log.server,
        "streams": [stream],
        "into": "lake.orders" if table_format == "iceberg" else str(tmp_path / "orders"),
        "format": table_format,
        "catalog": sql_catalog(tmp_path) if table_format == "iceberg" else {},
        "values": "json",
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    schemas, is_wide = log.client.schemas, table_format != "delta"
    schemas.set(stream, "id INT, customer STRING")
    [query] = start_load(spark, decode_pipeline(config | {"trigger": "continuous"}))
    try:
        log.client.append(stream, b'{"id": 0, "customer": "ada"}')
        query.processAllAvailable()
        schemas.set(stream, "id INT, customer STRING, price DOUBLE, at DATE")
        log.client.append(stream, b'{"id": 1, "customer": "bob", "price": 1.5}')
        query.processAllAvailable()
        newest = [
            {"id": c.id, "name": {"customer": "client"}.get(c.name, c.name), "type": c.type}
            for c in schemas.get(stream).columns
        ]
        newest[0]["type"] = "bigint"
        schemas.set(stream, json.dumps(newest))
        last = 1 << 40 if is_wide else 2
        log.client.append(stream, b'{"id": %d, "client": "eve", "price": 2.5}' % last)
        query.processAllAvailable()
    finally:
        query.stop()
    schemas.set(stream, json.dumps([*newest, {"name": "note", "type": "string"}]))
    log.client.append(stream, b'{"id": 4, "client": "zoe", "note": "local"}')
    run_local(decode_pipeline(config | {"engine": "local"}))
    log.client.append(stream, b'{"id": 5, "client": "kim", "note": "spark"}')
    run_pipeline(spark, decode_pipeline(config))
    name = "client" if table_format == "iceberg" else "customer"
    expected = [
        (0, "ada", None, None),
        (1, "bob", 1.5, None),
        (last, "eve", 2.5, None),
        (4, "zoe", None, "local"),
        (5, "kim", None, "spark"),
    ]
    assert rows(config, name) == expected
    if table_format == "parquet":
        table = load_table(spark, config["into"])
        by_reader = spark.read.format("strandline-table").load(config["into"])
        for found in (table, by_reader):
            chosen = found.orderBy("_offset").select("id", name, "price", "note").collect()
            assert [tuple(row) for row in chosen] == expected


def rows(config, name):
    """The table in the order of offsets, as our readers find it."""
    store = existing_store(
        config["into"], table_format=config["format"], catalog=config["catalog"], storage={}
    )
    found = [row for batch in store.scan(store.load()) for row in batch.to_pylist()]
    found.sort(key=lambda row: row["_offset"])
    return [(row["id"], row[name], row["price"], row["note"]) for row in found]
