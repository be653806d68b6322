"""Wrong uses of commands and YAML files: each answer says what was given and what to do."""

import json
import re
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

import strandline
from strandline.cli.app import app
from strandline.testing import Server

pytestmark = pytest.mark.timeout(120)


class Refusal(NamedTuple):
    """A wrong use, and what its answer has."""

    words: str
    """The command; ``{directory}`` has the files of ``FILES``."""
    given: str
    """The value that was wrong."""
    remedy: str
    """What to do."""
    code: int = 1
    stdin: str = ""


USAGE = 2
"""The exit code of arguments that could not be parsed."""
DEEP = '{"type":"array","items":' * 300 + '{"type":"string"}' + "}" * 300
FILES = {
    "a.yaml": "kind: load\nstreams: [orders]\n",
    "kind.yaml": "kind: laod\nstreams: [orders]\n",
    "key.yaml": "kind: load\nstrems: [orders]\n",
    "format.yaml": "kind: load\nstreams: [orders]\ninto: out\ncheckpoint: cp\nformat: csv\n",
    "text.yaml": "kind: load\nstreams: orders\ninto: out\ncheckpoint: cp\n",
    "twice.yaml": "kind: load\nstreams: [orders, orders]\ninto: out\ncheckpoint: cp\n",
    "list.yaml": "- kind\n- load\n",
    "syntax.yaml": "kind: [load\n",
    "again.yaml": "kind: load\nkind: copy\n",
    "circle.yaml": "kind: copy\nstream: orders\ninto: orders\ncheckpoint: cp\n",
    "catalog.yaml": (
        "kind: load\nengine: local\nstreams: [orders]\ninto: {directory}/out\n"
        "checkpoint: {directory}/cp\ncatalog: {uri: x}\n"
    ),
    "key-upsert.yaml": (
        "kind: load\nengine: local\nstreams: [orders]\ninto: {directory}/out\n"
        "checkpoint: {directory}/cp\nmode: upsert\n"
    ),
    "stream.yaml": (
        "kind: load\nengine: local\nserver: {server}\nstreams: [ordres]\ninto: {directory}/out\n"
        "checkpoint: {directory}/cp\ntrigger: available_now\n"
    ),
    "no-schema.yaml": (
        "kind: load\nengine: local\nserver: {server}\nstreams: [orders]\ninto: {directory}/out\n"
        "checkpoint: {directory}/cp\ntrigger: available_now\nvalues: protobuf\n"
    ),
    "broker-key.yaml": "flihgt_port: 1\n",
    "broker-nested.yaml": "nats:\n  prot: 1\n",
    "broker-type.yaml": "flight_port: many\n",
    "broker-list.yaml": "nats: {servers: here}\n",
    "broker-port.yaml": "flight_port: 70000\n",
    "broker-same.yaml": "flight_port: 9294\n",
    "broker-limit.yaml": "limits: {record_bytes: 99999999999}\n",
    "broker-auth.yaml": "auth: {enabled: true}\n",
    "broker-tls.yaml": "tls: {certificate: a.pem}\n",
    "broker-peers.yaml": ("cluster: {broker_id: 1, name: c, peers: ['1=10.0.0.1']}\n"),
    "broker-host.yaml": "host: ''\n",
    "empty.json": " ",
    "broken.json": '{"type": "object",',
    "draft.json": (
        '{"$schema": "https://json-schema.org/draft-99/schema", "type": "object", '
        '"properties": {"id": {"type": "integer"}}}'
    ),
    "foreign.json": '{"type": "object", "properties": {"id": {"$ref": "https://x.org/id.json"}}}',
    "any.json": '{"type": "object", "properties": {"id": false}}',
    "type.json": '{"type": "object", "properties": {"id": {"type": "text"}}}',
    "large.json": '{"type": "object", "properties": {"id": {"type": "integer", "minimum": 1e999}}}',
    "deep.json": '{"type": "object", "properties": {"id": ' + DEEP + "}}",
    "union.avsc": (
        '{"type": "record", "name": "R", "fields": [{"name": "id", "type": ["int", "string"]}]}'
    ),
    "unknown.avsc": '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "itn"}]}',
    "columns.sql": "id BIGNIT",
    "broken.proto": 'syntax = "proto3"; message A { int3 a = 1; }',
    "two.proto": 'syntax = "proto3"; message A { int32 a = 1; } message B { int32 b = 1; }',
    "rename.sql": "number BIGINT",
    "narrow.sql": "id INT",
}
REFUSALS = (
    # Arguments
    Refusal("straem list", "straem", "-h' for help", USAGE),
    Refusal("stream lits", "lits", "-h' for help", USAGE),
    Refusal("stream create", "NAME", "-h' for help", USAGE),
    Refusal("stream create x --partition 3", "--partition", "--partitions", USAGE),
    Refusal("stream create x --partitions 0", "0 is not", "x>=1", USAGE),
    Refusal("stream create x --partitions many", "many", "-h' for help", USAGE),
    Refusal("stream create x --acks all", "all", "'memory', 'disk', 'replicated'", USAGE),
    Refusal("stream create x --retention-age soon", "soon", "7d, 12h or 30s", USAGE),
    Refusal("stream create x --retention-age 7x", "'x'", "7d, 12h or 30s", USAGE),
    Refusal("stream create x --retention-bytes 10GO", "GO", "64MiB", USAGE),
    Refusal("publish orders v --header lang", "lang", "name=value", USAGE),
    Refusal("publish orders --file nowhere.bin", "nowhere.bin", "exist", USAGE),
    Refusal("publish orders --tombstone", "--tombstone", "--key", USAGE),
    Refusal("publish orders --message-id m", "--message-id", "VALUE or --file", USAGE),
    Refusal("read orders --from soon", "soon", "earliest, latest, a number", USAGE),
    Refusal("read orders --to then", "then", "earliest, latest, a number", USAGE),
    Refusal("read orders --format xml", "xml", "'table', 'json', 'raw'", USAGE),
    Refusal("group reset billing orders --to never", "never", "earliest, latest", USAGE),
    Refusal("quota set shop --read fast", "fast", "64MiB", USAGE),
    Refusal("schema straem list", "straem list", "strandline --help"),
    # Streams
    Refusal("stream create a/b", "a/b", "letters, digits"),
    Refusal("stream create x --subject a..b", "a..b", "leave the dot out"),
    Refusal("stream create x --subject a.>.b", "a.>.b", "'>' may only be the last token"),
    Refusal("stream create x --subject a.b*", "b*", "must be a whole token"),
    Refusal("stream create x --subject '>'", "'>'", "--no-pub-ack"),
    Refusal("stream create x --subject '$JS.a'", "$JS.a", "--no-pub-ack"),
    Refusal("stream create orders", "orders", "choose another name"),
    Refusal("stream create __x", "__x", "choose another name"),
    Refusal("stream create x --replicas 3", "replicas is 3", "leave it out"),
    Refusal("stream create x --acks replicated", "replicated", "docs/cluster.md"),
    Refusal("stream create x --segment-bytes 7", "is 7", "minimum of"),
    Refusal("stream create x --partitions 99999", "99999", "give 1 to"),
    Refusal("stream create x --compact --max-records-per-subject 5", "(5)", "choose one"),
    Refusal("stream create x --encryption", "master key", "strandline encryption new-key"),
    Refusal(
        "stream create x --subject 'a.>' --partitions 2 --partition-by suffix",
        "'suffix'",
        "use 'subject' or 'key'",
    ),
    Refusal("stream info ordres", "ordres", "did you mean 'orders'"),
    Refusal("stream delete ordres --yes", "ordres", "did you mean 'orders'"),
    Refusal("stream add-partitions orders --partitions 2", "got 2", "at least 3"),
    Refusal("stream delete-records orders --before 99", "99", "give at most that"),
    Refusal("stream delete-records orders --before 0 --partition 7", "not 7", "partitions 0 to 2"),
    # Records
    Refusal("publish ordres v", "ordres", "did you mean 'orders'"),
    Refusal("publish orders v --subject paris.orders", "paris.orders", "give one that matches"),
    Refusal("publish orders v --subject 'orders.a b'", "orders.a b", "leave it out"),
    Refusal("publish orders v --subject 'orders.*'", "orders.*", "publish to a plain one"),
    Refusal("publish orders v --subject orders.a --partition 9", "partition 9", "it has 0 to 2"),
    Refusal("publish checked 5", "the value is 5", "strandline stream schema show checked"),
    Refusal(
        'publish checked {{"id":0}}', "column 'id' is 0", "strandline stream schema show checked"
    ),
    Refusal("read ordres", "ordres", "did you mean 'orders'"),
    Refusal("read orders --partition 9", "not 9", "partitions 0 to 2"),
    Refusal("read orders --columns offset,valeu", "valeu", "columns are: partition, offset"),
    Refusal("read orders --columns offset,offset", "offset", "name it once"),
    Refusal("read orders --from 99 --partition 0", "99", "'earliest' and 'latest'"),
    Refusal("read orders --from 1", "offset 1", "name the partition"),
    Refusal("read orders --subject 'a b'", "a b", "leave it out"),
    Refusal(
        "read orders --values protobuf", "stream has no schema", "strandline stream schema set"
    ),
    Refusal("read checked --values avro", "json", "--values json"),
    Refusal("read orders --schema order.avsc", "--schema", "--values avro"),
    Refusal("read orders --format raw --values json", "raw", "leave --values out"),
    Refusal("read orders --latest-by-key --limit 5", "--latest-by-key", "omit --from"),
    # Groups
    Refusal("group info biling", "biling", "strandline group list"),
    Refusal("group delete biling --yes", "biling", "strandline group list"),
    Refusal("group reset billing ordres --to latest", "ordres", "did you mean 'orders'"),
    Refusal("group reset billing orders --to 99 --partition 0", "99", "give at most that"),
    Refusal("group reset billing orders --to 1", "offset 1", "name the partition"),
    Refusal(
        "group reset billing orders --to latest --partition 9",
        "partition 9",
        "strandline stream info",
    ),
    # Schemas
    Refusal("stream schema set orders {directory}/none.json", "none.json", "another FILE"),
    Refusal("stream schema set orders {directory}/empty.json", "empty", "id BIGINT"),
    Refusal("stream schema set orders {directory}/broken.json", "line 1 column", "not JSON"),
    Refusal("stream schema set orders {directory}/draft.json", "draft-99", "or leave it out"),
    Refusal("stream schema set orders {directory}/foreign.json", "x.org/id.json", '"$defs"'),
    Refusal("stream schema set orders {directory}/any.json", "false", "give it a type"),
    Refusal(
        "stream schema set orders {directory}/type.json",
        '"text"',
        "must be one of array, boolean, integer",
    ),
    Refusal("stream schema set orders {directory}/large.json", "1e999", "the largest is"),
    Refusal("stream schema set orders {directory}/deep.json", "32 levels", "leave inner fields"),
    Refusal("stream schema set orders {directory}/union.avsc", "int and string", "null and one"),
    Refusal("stream schema set orders {directory}/unknown.avsc", "'itn'", "not an Avro schema"),
    Refusal("stream schema set orders {directory}/columns.sql", "'BIGNIT'", "did you mean BIGINT"),
    Refusal("stream schema set orders {directory}/broken.proto", "int3", "broken.proto"),
    Refusal("stream schema set orders {directory}/two.proto", "A, B", "name the message"),
    Refusal(
        "stream schema set orders {directory}/two.proto --message C", "'C'", "name one with its"
    ),
    Refusal(
        "stream schema set checked {directory}/rename.sql",
        "'id' is missing",
        "give the new one its id",
    ),
    Refusal("stream schema set ordres {directory}/narrow.sql", "ordres", "did you mean 'orders'"),
    Refusal("stream schema show orders", "orders", "strandline stream schema set"),
    Refusal("stream schema show checked --version 7", "not 7", "versions 1 to 1"),
    Refusal("stream schema delete orders --yes", "orders", "another stream"),
    Refusal("stream schema import orders --registry here:81", "here:81", "http://host:port"),
    # Access, quotas, keys
    Refusal("acl grant shop write stream orders", "write", "operations are read, publish"),
    Refusal("acl grant shop read streams orders", "streams", "kinds"),
    Refusal("acl grant shop read cluster orders", "orders", "must be '*'"),
    Refusal("acl grant __x read stream orders", "__x", "does not begin with"),
    Refusal("acl revoke shop read stream orders", "shop may read stream orders", "acl list"),
    Refusal("token create __x", "__x", "does not begin with"),
    Refusal("token create shop --days 0", "0.0 is not", "x>=0.001", USAGE),
    Refusal("token create shop --days 1e99", "1e+99", "None for no expiry"),
    Refusal("token revoke 12", "'12'", "strandline token list"),
    Refusal("token revoke 12345678", "12345678", "strandline token list"),
    Refusal("quota set shop", "'shop'", "--publish, --read, --requests", USAGE),
    Refusal("quota remove shop", "shop", "strandline quota list"),
    Refusal("encryption rotate orders", "orders", "when a stream is created"),
    # Brokers and clusters
    Refusal("stream list --server nowhere:", "nowhere:", "host:port"),
    Refusal("stream list --server 127.0.0.1:1", "127.0.0.1:1", "strandline serve"),
    Refusal("stream list --server 127.0.0.1:99999", "99999", "between 1 and 65535"),
    Refusal("cluster status", "not part of a cluster", "strandline top"),
    Refusal("cluster drain 2", "not part of a cluster", "docs/cluster.md"),
    Refusal("cluster add 4", "'4'", "4=10.0.0.4:9295"),
    Refusal("cluster reassign orders --to a,b", "a,b", "1,2,3"),
    Refusal("cluster init --broker 1 --out {directory}/c", "'1'", "write e.g. --broker 1=10.0.0.1"),
    Refusal(
        "cluster init --broker 1=h --broker 1=h --out {directory}/c", "broker 1 twice", "own number"
    ),
    # Files
    Refusal("serve --config {directory}/none.yaml", "none.yaml", "name another"),
    Refusal("serve --config {directory}/broker-key.yaml", "'flihgt_port'", "'flight_port'"),
    Refusal("serve --config {directory}/broker-nested.yaml", "nats.prot", "'nats.port'"),
    Refusal("serve --config {directory}/broker-type.yaml", "'many'", "a whole number"),
    Refusal("serve --config {directory}/broker-list.yaml", "'here'", "must be a list"),
    Refusal("serve --config {directory}/broker-port.yaml", "70000", "0 to 65535"),
    Refusal("serve --config {directory}/broker-same.yaml", "9294", "port of its own"),
    Refusal("serve --config {directory}/broker-limit.yaml", "99999999999", "raise the latter"),
    Refusal("serve --config {directory}/broker-auth.yaml", "auth.enabled", "auth.admin_token"),
    Refusal("serve --config {directory}/broker-tls.yaml", "tls.certificate", "set tls.key"),
    Refusal("serve --config {directory}/broker-peers.yaml", "1=10.0.0.1", "ID=HOST:PORT"),
    Refusal("serve --config {directory}/broker-host.yaml", "host is empty", "0.0.0.0"),
    Refusal("serve --config {directory}/list.yaml", "'kind', 'load'", "keys and values"),
    Refusal("pipeline run {directory}/none.yaml", "none.yaml", "name another"),
    Refusal(
        "pipeline run {directory}/kind.yaml",
        "kind.yaml: no kind of pipeline is called 'laod'",
        "did you mean 'load'",
    ),
    Refusal("pipeline run {directory}/key.yaml", "'strems'", "did you mean 'streams'"),
    Refusal("pipeline run {directory}/a.yaml", "checkpoint", "required"),
    Refusal("pipeline run {directory}/format.yaml", "'csv'", "parquet, delta, iceberg"),
    Refusal("pipeline run {directory}/text.yaml", "[orders]", "is a list"),
    Refusal("pipeline run {directory}/twice.yaml", "'orders'", "name it once"),
    Refusal("pipeline run {directory}/syntax.yaml", "line", "not valid YAML"),
    Refusal("pipeline run {directory}/again.yaml", "'kind'", "given twice"),
    Refusal("pipeline run {directory}/circle.yaml", "'orders'", "name another stream"),
    Refusal("pipeline run {directory}/catalog.yaml", "'catalog'", "leave it out"),
    Refusal("pipeline run {directory}/key-upsert.yaml", "'mode' is upsert", "set it"),
    Refusal("pipeline run {directory}/stream.yaml", "ordres", "did you mean 'orders'"),
    Refusal("pipeline run {directory}/no-schema.yaml", "orders", "stream schema set"),
    Refusal("pipeline run {directory}/stream.yaml --conf a", "'a'", "NAME=VALUE"),
    Refusal("pipeline status {directory}/circle-ok.yaml", "circle-ok.yaml", "name another"),
    Refusal("inspect {directory}", "{directory}", "give one of these"),
    Refusal("inspect {directory}/a.yaml", "a.yaml", "inspect the data directory"),
    Refusal("restore {directory} --data-dir {directory}/new", "{directory}", "strandline backup"),
    Refusal("backup {directory}", "{directory}", "choose an empty directory"),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("refusals")


@pytest.fixture(scope="module")
def server(directory):
    """A broker with a stream of records, one that checks values, and a group."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", subject="orders.>", partitions=3)
        client.append("orders", b"tea", subject="orders.oslo", partition=0)
        client.create_stream("checked", schema_validation=True)
        limits = {"type": "integer", "minimum": 1}
        schema = {"type": "object", "properties": {"id": limits}, "required": ["id"]}
        client.schemas.set("checked", json.dumps(schema))
        client.groups.reset("billing", "orders", "earliest")
        for name, text in FILES.items():
            whole = text.replace("{directory}", str(directory)).replace("{server}", str(url))
            (directory / name).write_text(whole)
        yield str(url)


def words_of(refusal, directory, server):
    """The arguments; the broker's address is added where a command takes one."""
    words = [
        part.strip("'").format(directory=directory)
        for part in re.findall(r"'[^']*'|\S+", refusal.words)
    ]
    local = {"serve", "pipeline", "inspect", "restore", "schema"}
    if "--server" in words or words[0] in local or words[:2] == ["cluster", "init"]:
        return words
    return words if refusal.code == USAGE else [*words, "--server", server]


def plain(text):
    """An answer without the frame and the line ends of a terminal."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


@pytest.mark.parametrize(
    "refusal", REFUSALS, ids=lambda each: each.words.replace("{directory}/", "")
)
def test_an_answer_says_what_was_given_and_what_to_do(refusal, directory, server):
    """In text and as JSON; it is one line and no traceback, and nothing is on standard output."""
    words = words_of(refusal, directory, server)
    given, remedy = (part.replace("{directory}", str(directory)) for part in refusal[1:3])
    done = CliRunner().invoke(app, words, input=refusal.stdin)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == refusal.code, done.output
    assert "Traceback" not in done.output
    told = plain(done.stderr)
    assert given in told
    assert remedy in told
    done = CliRunner().invoke(app, [*words, "--output", "json"], input=refusal.stdin)
    assert done.exit_code == refusal.code, done.output
    assert done.stdout == ""
    document = json.loads(done.stderr)
    assert set(document) == {"error", "message", "retriable"}
    assert given in document["message"]
    assert remedy in document["message"]


def test_there_are_many_refusals():
    """Of every group of commands."""
    assert len({each.words for each in REFUSALS}) == len(REFUSALS) >= 60
