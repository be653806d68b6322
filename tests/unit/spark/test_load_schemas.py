"""Loads by the schema of their stream: every version, without a word in the pipeline's file."""

import io
import json

import fastavro
import polars as pl
import pytest

import strandline
from strandline.errors import InvalidConfigError, InvalidRecordError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from tests.kit.local_loads import FORMATS
from tests.kit.proto import compiled, message_class

ONE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "customer", "type": "string"}],
}
TWO = json.loads(json.dumps(ONE))
TWO["fields"][1] = {"name": "client", "type": "string", "aliases": ["customer"]}
TWO["fields"].append({"name": "price", "type": ["null", "double"], "default": None})


def avro(schema, **row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def renamed(client, **names):
    """Set the newest version again with other names."""
    columns = [
        {"id": c.id, "name": names.get(c.name, c.name), "type": c.type, "nullable": c.nullable}
        for c in client.schemas.get("orders").columns
    ]
    client.schemas.set("orders", json.dumps(columns))


def loaded(load, *names):
    """The rows in the order of their offsets, as values of these columns."""
    rows = sorted(load.rows(), key=lambda row: row["_offset"])
    return [tuple(row[name] for name in names) for row in rows]


def reasons(load):
    """Why values became dead letters."""
    headers = load.client.read("bad", columns=["headers"]).read_all().column("headers")
    return [dict(each.as_py())["Strandline-Error"].decode() for each in headers]


@pytest.mark.parametrize("table_format", FORMATS)
def test_json_is_loaded_by_every_version_of_the_schema(load, table_format):
    """A renamed column stays the same one; what fits no version, or no column, is a dead letter."""
    load.use(table_format)
    load.config["dead_letters"] = "bad"
    load.client.schemas.set("orders", "id INT NOT NULL, customer STRING")
    for value in (b'{"id":1,"customer":"ada","more":0}', b'{"customer":"nobody"}'):
        load.client.append("orders", value)
    load.run()
    renamed(load.client, customer="client")
    load.client.schemas.set("orders", "id BIGINT NOT NULL, client STRING, price DOUBLE")
    for value in (
        b'{"id":2,"client":"bob","price":1.5}',
        b'{"id":3,"customer":"eve"}',
        b'{"id":1099511627776,"client":"zoe"}',
    ):
        load.client.append("orders", value)
    load.run()
    name = "client" if table_format == "iceberg" else "customer"
    rows = [(0, 1, "ada"), (2, 2, "bob"), (3, 3, "eve"), (4, 1 << 40, "zoe")]
    # Delta Lake keeps its narrow column.
    assert loaded(load, "_offset", "id", name) == rows[: 3 if table_format == "delta" else 4]
    found = reasons(load)
    assert found[0] == "'id', which the schema requires, is missing or null"
    wide = ["column 'id' is int, which cannot hold 1099511627776"]
    assert found[1:] == (wide if table_format == "delta" else [])


def test_json_is_loaded_by_a_json_schema(load):
    """A new property becomes a column; what is not valid is a dead letter with the keyword."""
    load.config["dead_letters"] = "bad"
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}},
        "required": ["id"],
    }
    load.client.schemas.set("orders", json.dumps(schema), registry_id=7)
    for value in (b'{"id":1,"more":0}', b'{"id":0}', b'\0\0\0\0\7{"id":2}', None):
        load.client.append("orders", value)
    load.run()
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    schema["properties"]["place"] = place
    load.client.schemas.set("orders", json.dumps(schema))
    for value in (b'{"id":3,"place":{"city":"Rome"}}', b'{"id":4,"place":{}}'):
        load.client.append("orders", value)
    load.run()
    rows = [(0, 1, None), (2, 2, None), (3, None, None), (4, 3, {"city": "Rome"})]
    assert loaded(load, "_offset", "id", "place") == rows
    assert reasons(load) == [
        "column 'id' is 0, but it is less than the minimum of 1",
        """column 'place' is {}, but "city" is a required property""",
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_messages_are_loaded_by_their_descriptors(load, table_format):
    """A field that was renamed is known by its number; a frame is taken off; bytes are refused."""
    load.use(table_format)
    load.config |= {"values": "protobuf", "dead_letters": "bad"}
    texts = [
        'syntax = "proto3"; message Order { int32 id = 1; map<string, uint64> n = 2; }',
        """syntax = "proto3"; message P { repeated string tags = 1; }
        message Order { int32 key = 1; map<string, uint64> n = 2; P p = 4; }""",
    ]
    with pytest.raises(InvalidConfigError, match="has no schema, by which values in Protocol"):
        load.run()
    load.client.schemas.set(
        "orders", compiled(texts[0]), format="protobuf", message="Order", registry_id=7
    )
    one, two = (message_class(text, "Order") for text in texts)
    value = one(id=1, n={"a": (1 << 64) - 1}).SerializeToString()
    for each in (value, b"\0\0\0\0\7\0" + value, b"\xff", None):
        load.client.append("orders", each)
    load.run()
    load.client.schemas.set("orders", compiled(texts[1]), format="protobuf", message="Order")
    load.client.append("orders", two(key=3, p={"tags": ["x"]}).SerializeToString())
    load.run()
    name = "key" if table_format == "iceberg" else "id"
    rows = loaded(load, "_offset", name, "p")
    assert rows == [(0, 1, None), (1, 1, None), (3, None, None), (4, 3, {"tags": ["x"]})]
    assert [each[:21] for each in reasons(load)] == ["Error parsing message"]
    load.config["schema"] = "id INT"
    with pytest.raises(InvalidConfigError, match="by the schema of their stream: leave 'schema'"):
        load.run()


def test_avro_is_loaded_by_every_version_of_the_schema(load):
    """Framed or not; what fits none is a dead letter that says so."""
    load.config |= {"values": "avro", "dead_letters": "bad"}
    load.client.schemas.set("orders", json.dumps(ONE), registry_id=3)
    load.client.append("orders", avro(ONE, id=1, customer="ada"))
    load.run()
    load.client.schemas.set("orders", json.dumps(TWO))
    load.client.append("orders", avro(TWO, id=2, client="bob", price=1.5))
    load.client.append("orders", b"\0\0\0\0\3" + avro(ONE, id=3, customer="eve"))
    load.client.append("orders", b"\0\0\0\0\4" + avro(ONE, id=4, customer="eve"))
    load.client.append("orders", None)
    load.run()
    assert loaded(load, "id", "customer") == [(1, "ada"), (2, "bob"), (3, "eve"), (None, None)]
    [headers] = (
        load.client.read("bad", columns=["headers"]).read_all().column("headers").to_pylist()
    )
    reason = dict(headers)["Strandline-Error"].decode()
    assert reason.startswith("no version has the registry's id 4 of its frame, and it fits no")


def test_rows_are_replaced_by_a_key_that_was_renamed(load):
    """The primary key names the table's column, whatever the stream calls it by now."""
    load.use("delta")
    load.config |= {"mode": "upsert", "primary_key": ["number"]}
    load.client.schemas.set("orders", "number INT NOT NULL, customer STRING")
    load.client.append("orders", b'{"number":1,"customer":"ada"}')
    load.client.append("orders", b'{"number":2,"customer":"bob"}')
    load.run()
    renamed(load.client, number="id")
    load.client.append("orders", b'{"id":2,"customer":"eve"}')
    load.run()
    assert loaded(load, "number", "customer") == [(1, "ada"), (2, "eve")]


def test_rows_are_deleted_by_a_key_that_was_renamed(load):
    """A tombstone's key has the column's name of any version, too."""
    load.use("delta")
    load.config |= {"mode": "upsert", "primary_key": ["number"]}
    load.client.schemas.set("orders", "number INT NOT NULL, customer STRING NOT NULL")
    for number in range(5):
        load.client.append("orders", b'{"number":%d,"customer":"ada"}' % number)
    load.run()
    renamed(load.client, number="id")
    for key in (b'{"id":0}', b'{"number":1}', b"2", b'{"schema":{},"payload":{"id":3}}'):
        load.client.append("orders", None, key=key)
    load.run()
    assert loaded(load, "number") == [(4,)]


def test_without_dead_letters_a_misfit_ends_the_load(load):
    """With the record and the reason."""
    load.client.schemas.set("orders", "id INT NOT NULL")
    load.client.append("orders", b"{}")
    with pytest.raises(InvalidRecordError, match="offset 0 is not json: 'id', which the schema"):
        load.run()


def test_a_running_load_knows_a_version_that_is_set_meanwhile(load):
    """Each batch looks for it before it decodes."""
    load.client.schemas.set("orders", "id INT, customer STRING")
    load.client.append("orders", b'{"id":1,"customer":"ada"}')
    load.client.append("orders", b'{"id":2,"client":"bob"}')
    lines = []

    def report(line):
        if not lines:
            renamed(load.client, customer="client")
        lines.append(line)

    run_local(decode_pipeline(load.config | {"batch_bytes_max": 1}), report=report)
    assert len(lines) == 2
    assert loaded(load, "id", "customer") == [(1, "ada"), (2, "bob")]


def test_a_file_s_schema_comes_before_the_stream_s(load):
    """So that a load may take a part of the columns, or its values for something else."""
    load.client.schemas.set("orders", "id INT NOT NULL, customer STRING")
    load.client.append("orders", b'{"customer":"ada"}')
    load.run(schema="customer STRING")
    assert loaded(load, "_offset", "customer") == [(0, "ada")]
    assert "id" not in load.rows()[0]


def test_what_the_stream_s_schema_cannot_decode_is_refused_at_the_start(load):
    """Values of another format, and Avro of which no schema is known."""
    load.client.append("orders", avro(ONE, id=1, customer="ada"))
    with pytest.raises(InvalidConfigError, match="give 'schema', or set that of the stream"):
        load.run(values="avro")
    load.client.schemas.set("orders", json.dumps(ONE))
    with pytest.raises(InvalidConfigError, match=r"is of avro values.*as json: write avro"):
        load.run()
    load.run(values="avro")
    load.client.schemas.delete("orders")
    other = {"type": "record", "name": "O", "fields": [{"name": "number", "type": "int"}]}
    load.client.schemas.set("orders", json.dumps(other))
    with pytest.raises(InvalidConfigError, match=r"no version of .* has the column 'id'"):
        load.run(values="avro")


def test_the_table_and_the_tail_are_one_relation(load):
    """``strandline.table`` decodes the tail by the newest version, to the table's columns."""
    load.config["values"] = "avro"
    load.client.schemas.set("orders", json.dumps(ONE))
    load.client.append("orders", avro(ONE, id=1, customer="ada"))
    load.run()
    load.client.schemas.set("orders", json.dumps(TWO))
    load.client.append("orders", avro(TWO, id=2, client="bob", price=None))
    table = load.config["into"].replace("{stream}", "orders")
    found = strandline.table("orders", table=table, server=load.config["server"], values="avro")
    assert pl.DataFrame(found).select("id", "customer").rows() == [(1, "ada"), (2, "bob")]
