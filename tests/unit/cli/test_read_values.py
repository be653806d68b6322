"""``strandline read --values``: Avro and Arrow values as people can read them."""

import io
import json
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}


def avro(row):
    """A value as a publisher writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


def arrow(rows):
    """Rows as an Arrow IPC stream."""
    table, out = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.fixture
def schema(tmp_path):
    """The file of the schema."""
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    return file


def read(url, *options, code=0, output="json"):
    """What the command prints."""
    words = ["read", "orders", "--server", url, "--columns", "offset,value", *map(str, options)]
    result = CliRunner().invoke(app, [*words, "--output", output])
    assert result.exit_code == code, result.output
    return result


def documents(result):
    """Each line of it."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_avro_values_are_shown_as_objects(strandline_url, schema):
    """A tombstone stays null; a value of another schema stays as it is, with the reason."""
    at = datetime(2026, 11, 27, tzinfo=UTC)
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        client.append("orders", avro({"id": 7, "note": "café", "at": at}))
        client.append("orders", None, key=b"k")
        client.append("orders", b"\xff")
    good, null, bad = documents(read(strandline_url, "--values", "avro", "--schema", schema))
    assert good == {
        "offset": 0,
        "value": {"id": 7, "note": "café", "at": "2026-11-27T00:00:00Z"},
    }
    assert null == {"offset": 1, "value": None}
    assert bad["value_base64"] == "/w=="
    assert bad["value_error"].startswith("not Avro of this schema")
    text = read(strandline_url, "--values", "avro", "--schema", schema, "-n", 1, output="text")
    assert '{"id":7,"note":"café","at":"2026-11-27T00:00:00Z"}' in text.stdout


def test_arrow_values_are_shown_as_rows(strandline_url):
    """Each value has its own schema; hostile bytes are an error of that value only."""
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        client.append("orders", arrow([{"id": 1, "data": b"\x00"}, {"id": 2, "data": None}]))
        client.append("orders", arrow([{"id": 3}])[:100])
    rows, cut = documents(read(strandline_url, "--values", "arrow"))
    assert rows["value"] == [{"id": 1, "data": "AA=="}, {"id": 2, "data": None}]
    assert cut["value_error"].startswith("not an Arrow IPC stream")


def test_arrow_times_with_nanoseconds_keep_them(strandline_url):
    """Also inside of other columns; the records after them are shown."""
    at = pa.scalar(1_795_737_600_000_000_001, pa.timestamp("ns", "UTC"))
    span = pa.scalar(1_000_000_001, pa.duration("ns"))
    columns = {"at": pa.array([at]), "spans": pa.array([[span]]), "n": [1]}
    out = io.BytesIO()
    with pa.ipc.new_stream(out, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        client.append("orders", out.getvalue())
        client.append("orders", arrow([{"n": 2}]))
    first, second = documents(read(strandline_url, "--values", "arrow"))
    [row] = first["value"]
    assert row["at"] == "2026-11-27T00:00:00.000000001+00:00"
    assert row["spans"] == ["P0DT0H0M1.000000001S"]
    assert second["value"] == [{"n": 2}]


def test_avro_is_read_by_the_versions_of_the_stream(strandline_url, schema):
    """Without a file: each value by its version, shown with the newest names."""
    renamed = json.loads(json.dumps(SCHEMA))
    renamed["fields"][0] |= {"name": "number", "aliases": ["id"]}
    at = datetime(2026, 11, 27, tzinfo=UTC)
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        client.schemas.set("orders", schema.read_text())
        client.schemas.set("orders", json.dumps(renamed))
        client.append("orders", avro({"id": 7, "note": None, "at": at}))
        client.append("orders", b"\xff")
    good, bad = documents(read(strandline_url, "--values", "avro"))
    assert good["value"] == {"number": 7, "note": None, "at": "2026-11-27T00:00:00Z"}
    assert bad["value_error"].startswith("it fits no version of the schema; not Avro of this")


def test_json_is_read_by_the_versions_of_the_stream(strandline_url):
    """As columns; without a schema as it is. Numbers that JSON has not are text in the output."""
    first, second = b'{"id":1,"customer":"ada","x":NaN}', b'{"id":2,"client":"bob","x":-Infinity}'
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        for value in (first, second, b'{"client":"eve"}', b"[" * 10_000):
            client.append("orders", value)
        plain = documents(read(strandline_url, "--values", "json"))
        assert [each["value"] for each in plain[:3]] == [
            {"id": 1, "customer": "ada", "x": "NaN"},
            {"id": 2, "client": "bob", "x": "-Infinity"},
            {"client": "eve"},
        ]
        assert "recursion" in plain[3]["value_error"]
        client.schemas.set("orders", "id BIGINT NOT NULL, customer STRING, x DOUBLE")
        columns = client.schemas.get("orders").columns
        named = [{"name": c.name, "type": c.type, "id": c.id} for c in columns]
        named[1]["name"] = "client"
        client.schemas.set("orders", json.dumps(named))
    one, two, three, four = documents(read(strandline_url, "--values", "json"))
    assert one["value"] == {"id": 1, "client": "ada", "x": "NaN"}
    assert two["value"] == {"id": 2, "client": "bob", "x": "-Infinity"}
    assert three["value"] == {"id": None, "client": "eve", "x": None}
    assert four["value_error"]


def test_what_does_not_fit_together_is_refused(strandline_url, schema, tmp_path):
    """Before anything is read, with what to do."""
    for options, told in (
        (("--values", "avro"), "no stream 'orders'"),
        (("--schema", schema), "add --values avro"),
        (("--values", "arrow", "--format", "raw"), "leave --values out"),
        (("--values", "avro", "--schema", tmp_path / "none"), "cannot read the schema"),
    ):
        output = "text" if "raw" in options else "json"
        assert told in read(strandline_url, *options, code=1, output=output).stderr
    with strandline.connect(strandline_url) as client:
        client.create_stream("orders")
        assert "has no schema" in read(strandline_url, "--values", "avro", code=1).stderr
        client.schemas.set("orders", "id BIGINT")
    assert "give --values json" in read(strandline_url, "--values", "avro", code=1).stderr
    schema.write_text("{}")
    failed = read(strandline_url, "--values", "avro", "--schema", schema, code=1)
    assert "not an Avro schema" in failed.stderr
