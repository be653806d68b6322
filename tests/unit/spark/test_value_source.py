"""``valueFormat``: values decoded inside the source, by options or by the stream's schema."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import strandline
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.options import parse_read_options
from strandline.spark.source import StrandlineSource
from strandline.values.columns import parse_columns
from tests.kit.proto import compiled, message_class

ONE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "customer", "type": "string"}],
}
TWO = json.loads(json.dumps(ONE))
TWO["fields"] = [
    {"name": "client", "type": "string", "aliases": ["customer"]},
    {"name": "id", "type": "long"},
    {"name": "price", "type": ["null", "double"], "default": None},
]


def avro(schema, **row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


@pytest.fixture
def client(strandline_url):
    """A client, and the stream ``orders`` of one partition."""
    with strandline.connect(strandline_url.flight) as made:
        made.create_stream("orders")
        yield made


@pytest.fixture
def read(strandline_url):
    """Reads a stream through the source; returns its rows."""

    def rows(*, columns=None, stream="orders", **options):
        source = StrandlineSource({"server": strandline_url.flight, "stream": stream, **options})
        schema = source.schema()
        if columns is not None:
            schema = StructType([field for field in schema if field.name in columns])
        reader = source.reader(schema)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        return pa.Table.from_batches(batches, reader.target).to_pylist()

    return rows


def test_avro_is_decoded_by_the_versions_of_the_stream(client, read):
    """Values of each version, framed or not, have the columns of the newest."""
    client.schemas.set("orders", json.dumps(ONE), registry_id=1)
    client.append("orders", avro(ONE, id=1, customer="ada"), key=b"k")
    client.schemas.set("orders", json.dumps(TWO))
    client.append("orders", b"\0\0\0\0\1" + avro(ONE, id=2, customer="bob"))
    client.append("orders", avro(TWO, id=3, client="eve", price=1.5))
    client.append("orders", None)
    rows = read(valueFormat="avro")
    assert [(row["id"], row["client"], row["price"]) for row in rows] == [
        (1, "ada", None),
        (2, "bob", None),
        (3, "eve", 1.5),
        (None, None, None),
    ]
    assert list(rows[0]) == [
        "_partition",
        "_offset",
        "_timestamp",
        "_subject",
        "_key",
        "_headers",
        "client",
        "id",
        "price",
    ]
    assert (rows[0]["_key"], rows[3]["_offset"]) == (b"k", 3)
    assert read(valueFormat="avro", columns=("id", "_offset")) == [
        {"_offset": n, "id": value} for n, value in enumerate((1, 2, 3, None))
    ]


def test_a_read_that_was_loaded_knows_later_versions(client, strandline_url):
    """Its columns stay; a column that was renamed since is found under its new name."""
    client.schemas.set("orders", "id INT, customer STRING")
    source = StrandlineSource(
        {"server": strandline_url.flight, "stream": "orders", "valueFormat": "json"}
    )
    reader = source.reader(source.schema())
    named = [
        {"name": "id", "type": "bigint", "id": 1},
        {"name": "client", "type": "string", "id": 2},
    ]
    client.schemas.set("orders", json.dumps(named))
    client.append("orders", b'{"id":1,"client":"ada"}')
    [batch] = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert batch.select(["id", "customer"]).to_pylist() == [{"id": 1, "customer": "ada"}]


def test_what_fits_no_version_fails_or_becomes_a_null_or_nothing(client, read):
    """As the mode says, in Spark's words; the records around it keep their order."""
    client.schemas.set("orders", "id BIGINT NOT NULL, note STRING")
    for value in (b'{"id":1}', b'{"note":"x"}', b"no", b'{"id":2}'):
        client.append("orders", value)
    with pytest.raises(InvalidRecordError, match=r"orders/0, offset 1 is not json: 'id', which"):
        read(valueFormat="json")
    assert [r["id"] for r in read(valueFormat="json", mode="dropmalformed")] == [1, 2]
    rows = read(valueFormat="json", mode="PERMISSIVE")
    assert [(row["_offset"], row["id"]) for row in rows] == [(0, 1), (1, None), (2, None), (3, 2)]
    reasons = [row["_error"] for row in rows]
    assert (reasons[0], reasons[3]) == (None, None)
    assert reasons[1] == "'id', which the schema requires, is missing or null"
    assert "not one JSON value" in reasons[2]
    only = read(valueFormat="json", mode="PERMISSIVE", columns=("_offset", "_error"))
    assert [row["_offset"] for row in only] == [0, 1, 2, 3]


def test_an_option_gives_the_columns(client, read):
    """Without a schema of the stream, and instead of it; also for Arrow, with rows by value."""
    client.append("orders", b'{"id":1}')
    assert [row["id"] for row in read(valueFormat="json", schema="id BIGINT")] == [1]
    client.schemas.set("orders", json.dumps(ONE))
    assert [row["id"] for row in read(valueFormat="json", schema="id BIGINT")] == [1]
    client.create_stream("tables")
    table, out = pa.table({"n": [1, 2]}), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    client.append("tables", out.getvalue())
    rows = read(stream="tables", valueFormat="arrow", schema="n BIGINT")
    assert [(row["_offset"], row["n"]) for row in rows] == [(0, 1), (0, 2)]
    client.create_stream("old")
    client.append("old", avro(ONE, id=5, customer="ada"))
    rows = read(
        stream="old", valueFormat="avro", schema=json.dumps(TWO), writerSchema=json.dumps(ONE)
    )
    assert [(row["id"], row["client"]) for row in rows] == [(5, "ada")]


def test_an_option_may_be_a_json_schema(client, read):
    """Whose limits are judged; its versions need no broker."""
    properties = {"id": {"type": "integer", "maximum": 5}, "at": {"type": ["null", "string"]}}
    schema = json.dumps({"type": "object", "properties": properties})
    for value in (b'{"id":1,"at":"x"}', b'{"id":6}', None):
        client.append("orders", value)
    rows = read(valueFormat="json", schema=schema, mode="PERMISSIVE")
    assert [(row["id"], row["at"]) for row in rows] == [(1, "x"), (None, None), (None, None)]
    assert rows[1]["_error"] == "column 'id' is 6, but it is greater than the maximum of 5"
    kind = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    with pytest.raises(InvalidConfigError, match="column 'a': 'oneOf'"):
        read(valueFormat="json", schema=json.dumps({"properties": {"a": kind}}))


def test_messages_are_decoded_by_the_schema_of_their_stream(client, read):
    """Also those within, and what is wrong is named; an option cannot give their columns."""
    with pytest.raises(InvalidConfigError, match=r"has no schema: set it with .* FILE'$"):
        read(valueFormat="protobuf")
    text = 'syntax = "proto3"; message Order { int32 id = 1; P p = 2; } message P { bool x = 1; }'
    client.schemas.set("orders", compiled(text), format="protobuf", message="Order")
    order = message_class(text, "Order")
    client.append("orders", order(id=7, p={"x": True}).SerializeToString())
    client.append("orders", b"\xff")
    rows = read(valueFormat="protobuf", mode="PERMISSIVE")
    assert [(row["id"], row["p"]) for row in rows] == [(7, {"x": True}), (None, None)]
    assert rows[1]["_error"].startswith("Error parsing message")
    assert read(valueFormat="protobuf", mode="DROPMALFORMED", columns=["p"]) == [{"p": {"x": True}}]
    with pytest.raises(InvalidConfigError, match="leave option 'schema' out"):
        read(valueFormat="protobuf", schema="id INT")


def test_several_streams_share_the_columns_of_the_option(client, read):
    """Each row says its stream."""
    client.create_stream("paid")
    for name in ("orders", "paid"):
        client.append(name, b'{"id":1}')
    rows = read(stream="orders,paid", valueFormat="json", schema="id INT")
    assert sorted((row["_stream"], row["id"]) for row in rows) == [("orders", 1), ("paid", 1)]
    with pytest.raises(InvalidConfigError, match="give 'schema'"):
        read(stream="orders,paid", valueFormat="json")


def test_columns_that_are_not_known_are_refused(client, read):
    """When the read is loaded."""
    with pytest.raises(InvalidConfigError, match="stream 'orders' has no schema"):
        read(valueFormat="json")
    with pytest.raises(InvalidConfigError, match="'_offset' is there twice"):
        read(valueFormat="json", schema="id INT, _offset INT")
    client.schemas.set("orders", json.dumps(ONE))
    with pytest.raises(InvalidConfigError, match=r"is of avro values.*as json: write avro"):
        read(valueFormat="json")
    with pytest.raises(InvalidConfigError, match="cannot be read from JSON"):
        read(valueFormat="json", schema="m MAP<STRING, INT>")


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("id STRING", "'id' is int, not string"),
        ("x INT", "no column 'x'"),
        ("id INT NOT NULL", "may"),
    ],
)
def test_a_schema_of_the_user_s_own_has_the_read_s_columns(client, strandline_url, columns, told):
    """With their types, and nullable."""

    client.schemas.set("orders", json.dumps(ONE))
    source = StrandlineSource(
        {"server": strandline_url.flight, "stream": "orders", "valueFormat": "avro"}
    )
    schema = from_arrow_schema(parse_columns(columns))
    with pytest.raises(InvalidConfigError, match=told):
        source.reader(schema)
    with pytest.raises(InvalidConfigError, match=told):
        source.streamReader(schema).initialOffset()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schema": "id INT"}, "option 'schema' is for decoded values"),
        ({"mode": "PERMISSIVE"}, "option 'mode' is for decoded values"),
        ({"valueFormat": "xml"}, "'valueFormat' must be one of raw, json, avro, arrow"),
        ({"valueFormat": "json", "mode": "odd"}, "'mode' must be one of FAILFAST"),
        ({"valueFormat": "json", "writerSchema": "{}"}, "'writerSchema' is for Avro"),
        ({"valueFormat": "avro", "writerSchema": "{}"}, "'writerSchema' is for Avro"),
        ({"valueFormat": "arrow"}, "'schema' is missing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, told):
    """By name."""
    given = {"server": "localhost:1", "stream": "orders", **options}
    with pytest.raises(InvalidConfigError, match=told):
        parse_read_options(given, streaming=False)
