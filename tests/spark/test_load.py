"""Loads of streams into tables: each record once, bad ones set apart."""

import io
import json
import os
import shutil

import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from strandline.errors import InvalidConfigError, InvalidRequestError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.run import run_pipeline
from strandline.spark.table import read_table
from strandline.spark.tables.iceberg import open_catalog
from strandline.values.columns import parse_columns

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class LoadPipeline:
    """A load of one stream and its table."""

    def __init__(self, log, directory, table_format, **more):
        self.log = log
        self.directory = directory
        self.format = table_format
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        self.stream = log.new_stream(partitions=2)
        self.into = "lake.orders" if table_format == "iceberg" else str(directory / "orders")
        self.config = {
            "kind": "load",
            "server": log.server,
            "streams": [self.stream],
            "into": self.into,
            "format": table_format,
            "catalog": self.catalog if table_format == "iceberg" else {},
            "checkpoint": str(directory / "checkpoint"),
            **more,
        }

    def append(self, numbers, *, bad=()):
        """Append JSON orders, numbered; some are no JSON."""
        for partition in (0, 1):
            mine = [n for n in numbers if n % 2 == partition]
            values = [b"oops %d" % n if n in bad else b'{"id": %d}' % n for n in mine]
            self.log.client.append_batch(
                self.stream, pa.table({"value": pa.array(values, pa.binary())}), partition=partition
            )

    def run(self, spark):
        """Run the load to its end."""
        run_pipeline(spark, decode_pipeline(self.config))

    def table(self):
        """Return what a reader of the format finds."""
        if self.format == "delta":
            return DeltaTable(self.into).to_pyarrow_table()
        if self.format == "iceberg":
            return open_catalog(self.catalog).load_table(self.into).scan().to_arrow()
        return read_table(self.into).to_table()

    def rows(self):
        """The table as (partition, offset, id), in order."""
        columns = self.table().select(["_partition", "_offset", "id"]).columns
        return sorted(zip(*(column.to_pylist() for column in columns), strict=True))

    def expected(self):
        """Return the table that the log implies."""
        return [
            (partition, offset, json.loads(value)["id"])
            for partition, offset, value in self.log.records(self.stream)
            if not value.startswith(b"oops")
        ]


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_a_load_takes_each_record_once(spark, log, tmp_path, table_format):
    """Run after run only what is new is added, bad values go to the dead-letter stream with the
    reason and their source, and a lost checkpoint changes nothing; another stream of the name is
    refused.
    """
    letters = log.new_stream(partitions=1)
    load = LoadPipeline(log, tmp_path, table_format, values="json", dead_letters=letters)
    load.append(range(100), bad={7, 8})
    load.run(spark)
    load.append(range(100, 150), bad={101})
    load.config["checkpoint"] = str(tmp_path / "another")
    load.run(spark)
    load.run(spark)
    assert load.rows() == load.expected()
    assert len(load.rows()) == 147
    found = log.client.read(letters).read_all().to_pylist()
    assert sorted(row["value"] for row in found) == [b"oops 101", b"oops 7", b"oops 8"]
    [headers] = [dict(row["headers"]) for row in found if row["value"] == b"oops 8"]
    assert headers["Strandline-Source-Stream"] == load.stream.encode()
    assert (headers["Strandline-Source-Partition"], headers["Strandline-Source-Offset"]) == (
        b"0",
        b"4",
    )
    assert b"JSON" in headers["Strandline-Error"]
    log.client.delete_stream(load.stream)
    log.client.create_stream(load.stream, partitions=2)
    load.append(range(400))
    load.config["checkpoint"] = str(tmp_path / "a-third")
    with pytest.raises(InvalidRequestError, match="write to another table"):
        load.run(spark)


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_columns_that_were_changed_after_the_first_commit_are_rejected(
    spark, log, tmp_path, table_format
):
    """A new column in the file would not come into the table: the load says so, instead of going on
    without it, and with the old schema it goes on.
    """
    load = LoadPipeline(
        log, tmp_path, table_format, values="json", schema="id BIGINT, at TIMESTAMP"
    )
    load.append(range(4))
    load.run(spark)
    load.append(range(4, 8))
    load.config["schema"] = "id BIGINT, at TIMESTAMP, customer STRING"
    with pytest.raises(InvalidConfigError, match=r"fixed by its first commit.*another table"):
        load.run(spark)
    load.config["schema"] = "at TIMESTAMP, id BIGINT"
    load.run(spark)
    assert load.rows() == load.expected()


AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def avro_value(numbers):
    """A plain datum of ``AVRO``."""
    datum = io.BytesIO()
    fastavro.schemaless_writer(datum, fastavro.parse_schema(AVRO), {"id": numbers[0]})
    return datum.getvalue()


def arrow_value(numbers):
    """An IPC stream with a row for each number."""
    table = pa.table({"id": pa.array(numbers, pa.int64())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("values", "encode", "more"),
    [
        ("avro", avro_value, {"schema": json.dumps(AVRO)}),
        ("arrow", arrow_value, {}),
    ],
)
def test_values_of_other_formats_become_columns(spark, log, tmp_path, values, encode, more):
    """Plain Avro of a schema, and Arrow, whose first value tells the columns; of what is neither
    the dead-letter stream has the reason.
    """
    letters = log.new_stream(partitions=1)
    load = LoadPipeline(log, tmp_path, "parquet", values=values, dead_letters=letters, **more)
    rows = pa.array([encode([7]), b"neither", encode([8])], pa.binary())
    log.client.append_batch(load.stream, pa.table({"value": rows}), partition=1)
    load.run(spark)
    assert load.rows() == [(1, 0, 7), (1, 2, 8)]
    [letter] = log.client.read(letters).read_all().to_pylist()
    assert letter["value"] == b"neither"
    assert dict(letter["headers"])["Strandline-Error"]


def test_files_are_rolled_by_size(spark, log, tmp_path):
    """A large batch becomes several files of about the size asked for."""
    load = LoadPipeline(log, tmp_path, "parquet", file_bytes=200_000)
    values = pa.array([os.urandom(1000) for _ in range(1000)], pa.binary())
    log.client.append_batch(load.stream, pa.table({"value": values}), partition=0)
    load.run(spark)
    sizes = [path.stat().st_size for path in (tmp_path / "orders").glob("part-*.parquet")]
    assert 3 <= len(sizes) <= 8
    assert max(sizes) < 600_000
    assert read_table(load.into).count_rows() == 1000


def test_a_load_whose_table_was_deleted_is_rejected(spark, log, tmp_path):
    """Its checkpoint would skip the deleted table's records; a new one loads everything."""
    load = LoadPipeline(log, tmp_path, "delta", schema="id BIGINT", values="json")
    load.append(range(4))
    load.run(spark)
    shutil.rmtree(load.into)
    load.append(range(4, 8))
    with pytest.raises(InvalidRequestError, match=r"table was deleted.*new checkpoint"):
        load.run(spark)
    load.config["checkpoint"] += "-2"
    load.run(spark)
    assert load.rows() == load.expected()


def test_a_load_decodes_by_the_schema_of_its_stream(spark, log, tmp_path):
    """On Spark as in one process: each task knows the newest version, and misfits are letters."""
    letters = log.new_stream(partitions=1)
    load = LoadPipeline(log, tmp_path, "delta", values="json", dead_letters=letters)
    log.client.schemas.set(load.stream, "id INT NOT NULL, note STRING")
    load.append(range(10), bad={3})
    load.run(spark)
    columns = [
        {"name": "id", "type": "bigint", "nullable": False, "id": 1},
        {"name": "remark", "type": "string", "id": 2},
    ]
    log.client.schemas.set(load.stream, json.dumps(columns))
    load.append(range(10, 20))
    log.client.append(load.stream, b'{"id": 20, "remark": "new"}', partition=0)
    log.client.append(load.stream, b'{"remark": "none"}', partition=0)
    load.run(spark)
    found = {row["id"]: row["note"] for row in load.table().to_pylist()}
    assert found == dict.fromkeys((n for n in range(20) if n != 3), None) | {20: "new"}
    values = log.client.read(letters).read_all().column("value").to_pylist()
    assert sorted(values) == [b"oops 3", b'{"remark": "none"}']


@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_either_engine_continues_the_other(spark, log, tmp_path, table_format):
    """Local, Spark, local and Spark over one table and one checkpoint: each record once, and a
    Spark checkpoint that the local engine has overtaken is left.
    """
    letters = log.new_stream(partitions=1)
    columns = "id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"
    load = LoadPipeline(
        log, tmp_path, table_format, values="json", schema=columns, dead_letters=letters
    )
    local = load.config | {"engine": "local"}
    for start in range(0, 80, 20):
        load.append(range(start, start + 20), bad={start + 3})
        if start % 40 == 0:
            run_local(decode_pipeline(local))
        else:
            load.run(spark)
            load.run(spark)
        assert load.rows() == load.expected()
    assert len(load.rows()) == 76
    found = log.client.read(letters).read_all().column("value").to_pylist()
    assert sorted(found) == sorted(b"oops %d" % n for n in range(3, 80, 20))
    parsed = from_arrow_schema(parse_columns(columns))
    assert parsed == StructType.fromDDL(columns), "as Spark parses it"


@pytest.mark.parametrize("table_format", ["parquet", "delta", "iceberg"])
def test_several_streams_become_one_table_by_either_engine(spark, log, tmp_path, table_format):
    """Spark, local and Spark again; one more stream joins the list under the same checkpoint; a
    gap between batches of each stream is explained by its own.
    """
    letters = log.new_stream(partitions=1)
    load = LoadPipeline(log, tmp_path, table_format, values="json", schema="id BIGINT")
    load.config |= {"dead_letters": letters, "streams": [load.stream, log.new_stream()]}
    expected = []
    for round_, engine in enumerate(["spark", "local", "spark"]):
        if round_ == 2:
            load.config["streams"] = [*load.config["streams"], log.new_stream()]
        for stream in load.config["streams"]:
            with log.client.transaction(f"t-{stream}") as transaction:
                transaction.append(stream, b'{"id": 999}', partition=0)
                transaction.abort()
            load.stream = stream
            numbers = range(20 * round_, 20 * round_ + 20)
            load.append(numbers, bad={numbers[4]})
            expected += [(stream, n) for n in numbers if n != numbers[4]]
        config = decode_pipeline(load.config | {"engine": engine})
        run_local(config) if engine == "local" else run_pipeline(spark, config)
        found = load.table().select(["_stream", "id"]).columns
        assert sorted(zip(*(each.to_pylist() for each in found), strict=True)) == sorted(expected)
    headers = log.client.read(letters).read_all().column("headers").to_pylist()
    sources = sorted(dict(each)["Strandline-Source-Stream"].decode() for each in headers)
    assert sources == sorted([*load.config["streams"][:2] * 3, load.stream])


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_compacted_stream_is_kept_by_either_engine(spark, log, tmp_path, table_format):
    """Spark, local and Spark again over one table: the newest row of each key, deletes deleted."""
    load = LoadPipeline(log, tmp_path, table_format, values="json", schema="id BIGINT, n BIGINT")
    load.config |= {"mode": "upsert", "primary_key": ["id"]}
    model = {}
    for round_, engine in enumerate(["spark", "local", "spark"]):
        for number in range(60 * round_, 60 * round_ + 60):
            key = number * 7 % 25
            value = None if number % 5 == 4 else b'{"id": %d, "n": %d}' % (key, number)
            log.client.append(load.stream, value, key=b"%d" % key, partition=key % 2)
            model.pop(key, None)
            if value is not None:
                model[key] = number
        config = decode_pipeline(load.config | {"engine": engine})
        run_local(config) if engine == "local" else run_pipeline(spark, config)
        rows = load.table().select(["id", "n"]).to_pylist()
        assert {row["id"]: row["n"] for row in rows} == model
        assert len(rows) == len(model)


def test_streams_of_different_schemas_become_one_table_by_either_engine(spark, log, tmp_path):
    """Spark, local and Spark again: the columns of all, and those of a new version."""
    load = LoadPipeline(log, tmp_path, "delta", values="json")
    other = log.new_stream(partitions=1)
    load.config["streams"] = [load.stream, other]
    log.client.schemas.set(load.stream, "id INT, customer STRING")
    log.client.schemas.set(other, "id BIGINT, state STRING")
    for round_, engine in enumerate(["spark", "local", "spark"]):
        if engine == "local":
            log.client.schemas.set(other, "id BIGINT, state STRING, tax INT")
        log.client.append(load.stream, b'{"id":%d,"customer":"c"}' % round_, partition=0)
        log.client.append(other, b'{"id":%d,"state":"s","tax":7}' % (1 << 40), partition=0)
        config = decode_pipeline(load.config | {"engine": engine})
        run_local(config) if engine == "local" else run_pipeline(spark, config)
    rows = load.table().select(["id", "customer", "state", "tax"]).to_pylist()
    found = sorted((row["id"], row["customer"], row["state"], row["tax"] or 0) for row in rows)
    wide = [(1 << 40, None, "s", tax) for tax in (0, 7, 7)]
    assert found == [*((n, "c", None, 0) for n in range(3)), *wide]


def test_debezium_s_events_are_decoded_by_the_schema_of_the_stream(spark, log, tmp_path):
    """By either engine, one continuing the other."""
    load = LoadPipeline(log, tmp_path, "delta", values="json", mode="upsert", primary_key=["id"])
    load.config["envelope"] = "debezium"
    row = "STRUCT<id: INT, name: STRING>"
    log.client.schemas.set(load.stream, f"before {row}, after {row}, op STRING")
    for engine, name in (("spark", "a"), ("local", "b"), ("spark", "c")):
        event = {"op": "u", "after": {"id": 1, "name": name}}
        log.client.append(load.stream, json.dumps(event).encode(), key=b"1", partition=0)
        config = decode_pipeline(load.config | {"engine": engine})
        run_local(config) if engine == "local" else run_pipeline(spark, config)
        assert load.table().select(["id", "name"]).to_pylist() == [{"id": 1, "name": name}]
