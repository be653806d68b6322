"""Schemas of a registry at a stream: fetched with their ids, by which framed values name them."""

import io
import json

import fastavro
import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.cli.schema_registry import CREDENTIALS, SchemaRegistry
from strandline.errors import InvalidConfigError, UnavailableError
from tests.kit.schema_registry import schema_registry

ONE = {"type": "record", "name": "Pay", "fields": [{"name": "id", "type": "int"}]}
TWO = json.loads(json.dumps(ONE))
TWO["fields"].append({"name": "note", "type": ["null", "string"], "default": None})


def avro(schema, number, **row):
    """A value as Confluent's serializer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


@pytest.fixture
def registry(monkeypatch):
    """A registry, which no proxy of the machine hides."""
    monkeypatch.setenv("no_proxy", "*")
    with schema_registry() as found:
        yield found


@pytest.fixture
def call(strandline_url, registry):
    """Imports the schema of a stream from the registry."""

    def run(name, *words, code=0):
        words = ["stream", "schema", "import", name, "--registry", registry.url, *words]
        result = CliRunner().invoke(app, [*words, "--server", strandline_url.flight])
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def client(strandline_url):
    with strandline.connect(strandline_url.flight) as found:
        found.create_stream("payments")
        yield found


def test_all_versions_of_a_subject_are_imported_once(client, registry, call, strandline_url):
    """In their order, with their ids; later only new ones; framed values are read by each."""
    ids = [registry.add("payments-value", each) for each in (ONE, TWO)]
    done = call("payments").stdout.splitlines()
    assert done == [
        f"the schema of payments is at version {n}, version {n} of subject payments-value, id {n}"
        for n in ids
    ]
    assert call("payments").stdout == (
        "the schema of payments has all versions of subject payments-value\n"
    )
    three = {**TWO, "fields": [*TWO["fields"], {"name": "x", "type": ["null", "int"]}]}
    three["fields"][-1]["default"] = None
    ids.append(registry.add("payments-value", three))
    assert json.loads(call("payments", "-o", "json").stdout)["registry_id"] == 3
    client.append("payments", avro(ONE, 1, id=1))
    client.append("payments", avro(TWO, 2, id=2, note="a"))
    client.append("payments", avro(TWO, 9, id=2, note="a"))
    words = ["read", "payments", "--values", "avro", "-o", "json", "-s", strandline_url.flight]
    lines = [json.loads(line) for line in CliRunner().invoke(app, words).stdout.splitlines()]
    assert [each["value"] for each in lines[:2]] == [
        {"id": 1, "note": None, "x": None},
        {"id": 2, "note": "a", "x": None},
    ]
    assert "no version has the registry's id 9" in lines[2]["value_error"]


def test_json_schemas_and_messages_are_imported(client, registry, call):
    """A message with the files that it imports, which the registry keeps as subjects."""
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    registry.add("orders", schema, "JSON")
    client.create_stream("orders")
    call("orders", "--subject", "orders")
    assert json.loads(client.schemas.get("orders").json_schema) == schema
    place = 'syntax = "proto3"; package shop; message Place { string city = 1; }'
    click = """syntax = "proto3"; package shop; import "shop/place.proto";
    import "google/protobuf/timestamp.proto";
    message Other { int32 a = 1; }
    message Click { google.protobuf.Timestamp at = 1; Place place = 2; }"""
    registry.add("place", place, "PROTOBUF")
    number = registry.add("clicks-value", click, "PROTOBUF", [("shop/place.proto", "place", 1)])
    client.create_stream("clicks")
    assert "name the message that values are" in call("clicks", code=1).stderr
    call("clicks", "--message", "shop.Click")
    found = client.schemas.get("clicks")
    assert (found.registry_id, found.message) == (number, "shop.Click")
    assert "has all versions" in call("clicks", "--message", "shop.Click").stdout
    refused = call("clicks", "--message", "shop.None", code=1).stderr
    assert "with the message 'shop.Click', not with 'shop.None'; leave --message out" in refused
    refused = call("orders", "--subject", "orders", "--message", "shop.None", code=1).stderr
    assert "without a message of Protocol Buffers, not with 'shop.None'" in refused
    client.create_stream("more")
    refused = call("more", "--subject", "orders", "--message", "shop.None", code=1).stderr
    assert "'shop.None' is named for values in Protocol Buffers, and these are json" in refused
    assert [each.type for each in found.columns] == ["timestamp", "struct<city:string>"]


def test_what_cannot_be_imported_is_refused_by_its_version(client, registry, call):
    """And what came before it stays."""
    registry.add("payments-value", ONE)
    registry.add("payments-value", {**ONE, "fields": [{"name": "n", "type": "int"}]})
    refused = call("payments", code=1).stderr
    assert "version 2 of subject payments-value: column 'id' is missing" in refused
    assert [each.version for each in client.schemas.list("payments")] == [1]
    client.create_stream("others")
    registry.add("others-value", ONE, references=[("a", "payments-value", 1)])
    assert "refers to 'a'" in call("others", code=1).stderr
    registry.add("strange", ONE, "THRIFT")
    refused = call("others", "--subject", "strange", code=1).stderr
    assert "a schema of the type 'THRIFT'; AVRO, JSON, PROTOBUF can be imported" in refused
    registry.add("bad", 'syntax = "proto3";', "PROTOBUF", [("../../x.proto", "others-value", 1)])
    assert "names a file '../../x.proto'" in call("others", "--subject", "bad", code=1).stderr
    refused = call("others", "--subject", "none", code=1).stderr
    assert "has no /subjects/none/versions; name another subject with --subject" in refused
    registry.subjects["empty"] = []
    refused = call("others", "--subject", "empty", code=1).stderr
    assert "subject 'empty' has no versions; name another one with --subject" in refused


def test_a_registry_that_is_away_is_asked_again(client, registry, call):
    """After refusals of a moment and lost answers; nothing is imported twice."""
    registry.add("payments-value", ONE)
    registry.faults = [503, None, 200, 429]
    call("payments")
    assert len(registry.asked) == 5
    assert len(client.schemas.list("payments")) == 1


def test_a_registry_that_stays_away_is_unavailable(registry):
    """Which is said after the deadline, and can be retried."""
    registry.faults = [503] * 100
    with pytest.raises(UnavailableError, match=r"answers HTTP Error 503: .*; try again later"):
        [*SchemaRegistry(registry.url, deadline_s=0.5).versions("a")]
    assert 2 <= len(registry.asked) < 100
    registry.faults = [None] * 100
    with pytest.raises(UnavailableError, match=r"does not answer: .*; try again later"):
        [*SchemaRegistry(registry.url, deadline_s=0.5).versions("a")]


def test_credentials_are_of_the_environment_and_shown_to_nobody(registry, monkeypatch):
    """Not in a URL, not to where a redirect leads, and in no message."""
    registry.credentials = "ada:s3cret"
    with pytest.raises(InvalidConfigError, match=f"user:password into the .* {CREDENTIALS}"):
        [*SchemaRegistry(registry.url).versions("a")]
    monkeypatch.setenv(CREDENTIALS, "ada:s3cret")
    registry.add("a", ONE)
    assert [each.id for each in SchemaRegistry(registry.url).versions("a")] == [1]
    registry.asked.clear()
    registry.faults = [302]
    with pytest.raises(InvalidConfigError, match="with the status 302") as refused:
        [*SchemaRegistry(registry.url).versions("a")]
    assert "s3cret" not in f"{refused.value}"
    assert [path for path, _ in registry.asked] == ["/subjects/a/versions"]
    for url in ("http://ada:s3cret@127.0.0.1", "file:///etc/passwd", "127.0.0.1:8081", ""):
        with pytest.raises(InvalidConfigError) as refused:
            SchemaRegistry(url)
        assert "s3cret" not in f"{refused.value}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"{}",
        b'["a"]',
        b"[" * 100_000,
        b"\xff",
        b" " * (1 << 21),
        b"[1,1,",
    ],
)
def test_an_answer_of_something_else_is_refused(registry, answer):
    """Bounded, and with what was asked."""
    registry.add("a", ONE)
    registry.faults = [answer]
    with pytest.raises(InvalidConfigError, match="/subjects/a/versions"):
        [*SchemaRegistry(registry.url).versions("a")]
    registry.faults = [b"[1]", answer]
    with pytest.raises(InvalidConfigError, match="/subjects/a/versions/1"):
        [*SchemaRegistry(registry.url).versions("a")]
