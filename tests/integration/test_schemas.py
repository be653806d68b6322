"""Schemas of streams at real brokers: set, listed, refused, kept, replicated and backed up."""

import asyncio
import base64
import contextlib
import json

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotAllowedError,
    StrandlineError,
    UnknownStreamError,
)
from strandline.process.ports import free_ports
from strandline.testing import Server
from tests.kit.clusters import three_brokers
from tests.kit.waiting import until

ADMIN = "an-administrator-in-tests-and-nowhere-else"
COLUMNS = "id BIGINT NOT NULL, customer STRING"
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "at": {"type": "string", "format": "date-time"},
    },
    "required": ["id"],
}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


def run(url, *words, code=0, text=None):
    """Run a command of ``strandline stream schema``."""
    call = [*words, "--server", url.flight]
    result = CliRunner().invoke(app, ["stream", "schema", *call], input=text)
    assert result.exit_code == code, result.output
    return result


def test_a_schema_is_set_shown_and_renamed_from_what_is_shown(strandline_url, tmp_path):
    """What ``show`` prints as JSON is edited and set again: a rename by id."""
    with strandline.connect(strandline_url.flight) as client:
        client.create_stream("orders")
    assert "no schema yet; set one with" in run(strandline_url, "list", "orders").stdout
    refused = run(strandline_url, "show", "orders", code=1)
    assert "stream 'orders' has no schema; set one with" in refused.stderr
    done = run(strandline_url, "set", "orders", "-", text=COLUMNS)
    assert done.stdout == "the schema of orders is at version 1: 2 columns of json values\n"
    shown = run(strandline_url, "show", "orders").stdout.splitlines()
    assert shown == [
        "schema of orders, version 1, json values",
        "ID  COLUMN    TYPE    NULLABLE",
        " 1  id        bigint  no",
        " 2  customer  string  yes",
    ]
    told = CliRunner().invoke(app, ["stream", "info", "orders", "-s", strandline_url.flight]).stdout
    assert "schema: version 1 of json values; see 'strandline stream schema show orders'" in told
    document = run(strandline_url, "show", "orders", "--output", "json").stdout
    edited = tmp_path / "columns.json"
    edited.write_text(document.replace("customer", "client"))
    run(strandline_url, "set", "orders", str(edited))
    second = json.loads(run(strandline_url, "set", "orders", str(edited), "-o", "json").stdout)
    assert (second["version"], second["columns"][1]["name"]) == (2, "client")
    rows = [row.split()[:3] for row in run(strandline_url, "list", "orders").stdout.splitlines()]
    assert rows == [["VERSION", "FORMAT", "COLUMNS"], ["1", "json", "2"], ["2", "json", "2"]]
    refused = run(strandline_url, "set", "orders", "-", text="id BIGINT", code=1)
    assert "column 'client' is missing, and columns cannot be removed" in refused.stderr
    refused = run(strandline_url, "set", "orders", str(tmp_path / "none"), code=1)
    assert "cannot read the schema" in refused.stderr
    assert "Errno" not in refused.stderr
    run(strandline_url, "delete", "orders", "--yes")
    refused = run(strandline_url, "delete", "orders", "--yes", code=1)
    assert "stream 'orders' has no schema to delete" in refused.stderr
    refused = run(strandline_url, "set", "orders", "-", text="", code=1)
    assert "the schema has 0 characters" in refused.stderr
    run(strandline_url, "set", "orders", "-", text=json.dumps(AVRO))
    shown = json.loads(run(strandline_url, "show", "orders", "-o", "json").stdout)
    assert (shown["version"], shown["format"], json.loads(shown["avro"])) == (1, "avro", AVRO)


def test_a_json_schema_is_set_and_read_by(strandline_url, tmp_path):
    """By the command line, which shows its columns, refuses what has none, and decodes values."""
    with strandline.connect(strandline_url.flight) as client:
        client.create_stream("orders")
        file = tmp_path / "order.schema.json"
        file.write_text(json.dumps(JSON_SCHEMA))
        done = run(strandline_url, "set", "orders", str(file))
        assert done.stdout == "the schema of orders is at version 1: 2 columns of json values\n"
        shown = json.loads(run(strandline_url, "show", "orders", "-o", "json").stdout)
        assert json.loads(shown["json_schema"]) == JSON_SCHEMA
        file.write_text(json.dumps({**JSON_SCHEMA, "patternProperties": {"^x": True}}))
        refused = run(strandline_url, "set", "orders", str(file), code=1)
        assert "values: 'patternProperties' gives values more than one meaning" in refused.stderr
        for value in (b'{"id":1,"at":"2026-01-31T12:00:00Z"}', b'{"id":0}'):
            client.append("orders", value)
    words = ["read", "orders", "--values", "json", "-o", "json", "-s", strandline_url.flight]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    good, bad = (json.loads(line) for line in lines)
    assert good["value"] == {"id": 1, "at": "2026-01-31T12:00:00Z"}
    assert bad["value_error"] == "column 'id' is 0, but it is less than the minimum of 1"


def test_a_proto_file_is_compiled_set_and_read_by(strandline_url, tmp_path):
    """With its imports; by another version under its numbers; compiled descriptors are as good."""
    (tmp_path / "shop").mkdir()
    place, file = tmp_path / "shop" / "place.proto", tmp_path / "shop" / "order.proto"
    place.write_text('syntax = "proto3"; package shop; message Place { string city = 1; }')
    text = """syntax = "proto3"; package shop;
    import "shop/place.proto";
    import "google/protobuf/timestamp.proto";
    message Other { int32 x = 1; }
    message Order { int64 id = 1; Place place = 2; google.protobuf.Timestamp at = 3; }"""
    file.write_text(text)
    words = ["--message", "shop.Order", "--include", str(tmp_path)]
    with strandline.connect(strandline_url.flight) as client:
        client.create_stream("orders")
        refused = run(strandline_url, "set", "orders", str(file), code=1)
        assert "shop/place.proto: File not found" in refused.stderr
        refused = run(strandline_url, "set", "orders", str(file), *words[2:], code=1)
        assert "name the message that values are: shop/order.proto has shop.Other, shop.Order" in (
            refused.stderr
        )
        done = run(strandline_url, "set", "orders", str(file), *words, "--registry-id", "7")
        assert done.stdout == "the schema of orders is at version 1: 3 columns of protobuf values\n"
        client.append("orders", b"\x08\x05\x12\x06\x0a\x04Rome\x1a\x02\x08\x01")
        client.append("orders", b"\0\0\0\0\7\2\2\x08\x06")
        client.append("orders", b"\xff")
        file.write_text(text.replace("int64 id", "int64 number").replace("Place place = 2;", ""))
        refused = run(strandline_url, "set", "orders", str(file), *words, code=1)
        assert "column 'place' is missing" in refused.stderr
        file.write_text(text.replace("int64 id", "int64 number"))
        run(strandline_url, "set", "orders", str(file), *words)
        shown = client.schemas.get("orders")
        assert (shown.version, shown.columns[0].name, shown.message) == (2, "number", "shop.Order")
        descriptors = tmp_path / "order.desc"
        descriptors.write_bytes(base64.b64decode(shown.protobuf))
        again = ["set", "orders", str(descriptors), "--message", "shop.Order", "-o", "json"]
        assert json.loads(run(strandline_url, *again).stdout)["version"] == 2
        descriptors.write_text(shown.protobuf)
        assert json.loads(run(strandline_url, *again).stdout)["version"] == 2
        made = client.schemas.set(
            "orders", base64.b64decode(shown.protobuf), format="protobuf", message="shop.Order"
        )
        assert made.version == 2
    words = ["read", "orders", "--values", "protobuf", "-o", "json", "-s", strandline_url.flight]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    first, framed, bad = (json.loads(line) for line in lines)
    assert first["value"] == {
        "number": 5,
        "place": {"city": "Rome"},
        "at": "1970-01-01T00:00:01Z",
    }
    assert framed["value"] == {"number": 6, "place": None, "at": None}
    assert bad["value_error"].startswith("Error parsing message with type 'shop.Order'")


def test_a_proto_file_needs_a_compiler(strandline_url, tmp_path, monkeypatch):
    """Which is an extra; the message says what else there is."""
    file = tmp_path / "order.proto"
    file.write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused = run(strandline_url, "set", "orders", str(file), code=1)
    assert "pip install 'strandline[protobuf]', or compile it with 'protoc" in refused.stderr


def test_a_client_sets_lists_and_gets(strandline_url):
    """Synchronously and not; errors name what is wrong."""
    with strandline.connect(strandline_url.flight) as client:
        client.create_stream("paid")
        first = client.schemas.set("paid", json.dumps(AVRO), registry_id=7)
        assert client.schemas.list("paid") == [first]
        assert client.schemas.get("paid", 1) == first
        assert client.schemas.set("paid", json.dumps(AVRO).encode()) == first
        assert (first.stream, first.registry_id, first.created_ns > 0) == ("paid", 7, True)
        for action, kind, told in (
            (lambda: client.schemas.get("paid", 2), InvalidRequestError, "versions 1 to 1, not 2"),
            (lambda: client.schemas.set("paid", COLUMNS), InvalidConfigError, "values are avro"),
            (lambda: client.schemas.set("none", COLUMNS), UnknownStreamError, "no stream 'none'"),
            (lambda: client.schemas.list("none"), UnknownStreamError, "no stream 'none'"),
            (lambda: client.schemas.set("paid", "x" * 70_000), InvalidConfigError, "1 to 65,536"),
            (lambda: client.schemas.set("paid", ""), InvalidConfigError, "has 0 characters"),
            (lambda: client.schemas.set("paid", b"\xff"), InvalidConfigError, "no text in UTF-8"),
            (lambda: client.schemas.set("paid", 5), InvalidConfigError, "no text in UTF-8"),
            (lambda: client.schemas.set("paid", "\ud800 INT"), InvalidConfigError, "UTF-8"),
            (lambda: client.schemas.get("paid", "1"), InvalidRequestError, "got '1'"),
            (lambda: client.schemas.get("paid", True), InvalidRequestError, "got True"),
        ):
            with pytest.raises(kind, match=told):
                action()

    async def asked():
        async with await strandline.connect_async(strandline_url.flight) as client:
            return await client.schemas.list("paid")

    assert asyncio.run(asked()) == [first]


def test_schemas_survive_a_restart_and_end_with_their_stream(tmp_path):
    """They are in the metadata of the broker."""
    with Server(data_dir=tmp_path) as url, strandline.connect(url.flight) as client:
        client.create_stream("orders")
        client.schemas.set("orders", COLUMNS)
        before = [*client.schemas.list("orders"), client.schemas.set("orders", COLUMNS + ", n INT")]
    with Server(data_dir=tmp_path) as url, strandline.connect(url.flight) as client:
        assert client.schemas.list("orders") == before
        client.delete_stream("orders")
        client.create_stream("orders")
        assert client.schemas.list("orders") == []


def allowed_to(client):
    """The steps that a principal may take."""
    steps = {
        "set": lambda: client.schemas.set("orders", COLUMNS),
        "list": lambda: client.schemas.list("orders"),
        "delete": lambda: client.schemas.delete("orders"),
    }
    allowed = []
    for name, step in steps.items():
        with contextlib.suppress(NotAllowedError):
            step()
            allowed.append(name)
    return allowed


def test_readers_see_a_schema_and_administrators_set_it():
    """A publisher does neither."""
    with Server(auth={"enabled": True, "admin_token": ADMIN}) as url:
        with strandline.connect(url.flight, token=ADMIN) as admin:
            admin.create_stream("orders")
            tokens = {}
            for name in ("read", "publish", "admin"):
                admin.access.grant(name, name, "stream", "orders")
                tokens[name] = admin.access.create_token(name)
        found = {}
        for name, token in tokens.items():
            with strandline.connect(url.flight, token=token) as client:
                found[name] = allowed_to(client)
    assert found == {"read": ["list"], "publish": [], "admin": ["set", "list", "delete"]}


@pytest.mark.slow
def test_every_broker_lists_a_version_at_once(tmp_path):
    """A value may be published by it next, and be read through whichever broker."""
    with three_brokers(tmp_path, ports=free_ports(3)) as servers:
        first, *others = (strandline.connect(server.flight) for server in servers.values())
        with first, contextlib.ExitStack() as closing:
            clients = [closing.enter_context(client) for client in others]
            until(lambda: first.create_stream("orders", replicas=3), retried=(StrandlineError,))
            for number in range(1, 30):
                columns = ", ".join(f"c{n} INT" for n in range(number))
                done = first.schemas.set("orders", columns)
                for client in clients:
                    assert client.schemas.list("orders")[-1] == done
