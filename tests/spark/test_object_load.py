"""Spark loads into an object store, without any jar."""

import json

import pyarrow as pa
import pytest

from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.run import run_pipeline
from strandline.spark.tables.open import existing_store
from strandline.spark.tables.source import load_table
from tests.kit.object_stores import BUCKET, KEY, SECRET, ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_spark_loads_into_an_object_store_once(spark, log, tmp_path, table_format):
    """With a lost answer of a commit, a lost checkpoint, and the other engine in between."""
    for name, value in (("key", KEY), ("secret", SECRET)):
        (tmp_path / name).write_text(value)
    stream = log.new_stream(partitions=2)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/warehouse",
    }
    with ObjectStore() as s3:
        storage = {
            "endpoint": s3.endpoint,
            "access_key_id": f"file:{tmp_path}/key",
            "secret_access_key": f"file:{tmp_path}/secret",
        }
        config = {
            "kind": "load",
            "server": log.server,
            "streams": [stream],
            "into": "lake.t" if table_format == "iceberg" else f"s3://{BUCKET}/t",
            "format": table_format,
            "storage": storage,
            "catalog": catalog if table_format == "iceberg" else {},
            "values": "json",
            "schema": "id BIGINT",
            "checkpoint": str(tmp_path / "checkpoint"),
        }
        for number in range(4):
            for partition in (0, 1):
                ids = range(100 * number + 50 * partition, 100 * number + 50 * partition + 50)
                values = pa.array([b'{"id": %d}' % n for n in ids], pa.binary())
                table = pa.table({"value": values})
                log.client.append_batch(stream, table, partition=partition)
            if number == 1:
                commit = "PUT .*(/commits/0|/_delta_log/0|metadata.json).*"
                s3.fail("lose", commit, count=1)
            if number == 2:
                run_local(decode_pipeline(config | {"engine": "local"}))
                continue
            if number == 3:
                config["checkpoint"] = str(tmp_path / "another")
            run_pipeline(spark, decode_pipeline(config))
        assert len(s3.heal()) == 1, "no answer was lost"
        store = existing_store(
            config["into"], table_format=table_format, catalog=config["catalog"], storage=storage
        )
        ids = [n for b in store.scan(store.load()) for n in b.column("id").to_pylist()]
        assert sorted(ids) == list(range(400))
        if table_format == "parquet":
            by_format = spark.read.format("strandline-table").option("storage", json.dumps(storage))
            for found in (
                by_format.load(config["into"]),
                load_table(spark, config["into"], storage=storage),
            ):
                assert sorted(row.id for row in found.select("id").collect()) == list(range(400))
