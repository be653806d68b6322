"""Pipeline files as the docs show them, run by ``strandline pipeline run`` in processes of its own.

Some run again, in a new process and with nothing new, and the outputs are judged after that. Paths
in the files are relative, as in the docs. The suite runs a slice of them, ``make pipelines`` all.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable

import strandline
from strandline.client.reader.compacted_view import compacted_view
from strandline.spark.demo.processes import Child
from strandline.spark.pipelines.sources import source_of
from strandline.spark.session import QUICK_START
from strandline.spark.table import read_table
from strandline.testing import ProcessServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DOCS = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
FILES = {
    found["kind"]: found
    for found in map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL))
    if "engine" not in found
}
"""Those that Spark runs."""
JOB = Path(__file__).parent / "jobs" / "commands.py"
PATIENCE_S = 300
ORDERS = 60
RECORDS = {
    "copy": ORDERS,
    "transform": ORDERS,
    "aggregate": ORDERS,
    "merge": 2 * ORDERS,
    "repartition": ORDERS,
    "clean": ORDERS,
    "load": 2 * ORDERS,
    "parquet": ORDERS,
}
"""How many records each file reads, in the order in which they run: clean needs repartition."""
RUN = os.environ.get("PIPELINE_FILES", "transform,load").split(",")
"""Which of them."""
AGAIN = [name for name in ("copy", "parquet") if name in RUN]
"""What runs again: one knows where it is from its checkpoint and output, the other from a table."""
MISTAKES = {
    "no-stream": FILES["copy"] | {"stream": "ordres"},
    "no-output": FILES["transform"] | {"sql": "SELECT value, 'smal' AS stream FROM records"},
    "no-column": FILES["transform"] | {"sql": "SELECT valeu AS value FROM records"},
    "no-key": FILES["repartition"] | {"kye": "offset"},
}


def order(number):
    """A value of the streams."""
    found = {"id": number, "customer": f"c{number % 3}", "amount": number * 10}
    return json.dumps(found | {"at": "2026-11-22T10:00:00"}).encode()


def fill(client):
    """The streams that the docs' files read, and those that have to be there."""
    for stream, partitions in {"orders": 2, "payments": 2, "a": 1, "b": 1}.items():
        client.create_stream(stream, partitions=partitions)
        for partition in range(partitions):
            values = [order(n) for n in range(partition, ORDERS, partitions)]
            if (stream, partition) == ("payments", 1):
                values[7] = b"oops"
            batch = pa.table({"value": pa.array(values, pa.binary())})
            client.append_batch(stream, batch, partition=partition)
    for stream in ("small", "large", "bad-values"):
        client.create_stream(stream)


def command(file, *options):
    """Words that run a file, with as little of Spark as will do."""
    settings = [word for each in QUICK_START.items() for word in ("--conf", "=".join(each))]
    return ["pipeline", "run", file, "--master", "local[2]", *settings, *options]


def run_commands(directory, commands):
    """Return the results of commands in one process."""
    (directory / "commands.json").write_text(json.dumps(commands))
    words = [sys.executable, str(JOB), str(directory), str(directory / "commands.json")]
    job = Child(words, log=directory / "job.log")
    try:
        return [job.wait_for("command", timeout_s=PATIENCE_S) for _ in commands]
    finally:
        job.kill()


@pytest.fixture(scope="module")
def server(importable_by_workers):
    """A broker for this module, whose streams have the names that the docs give them."""
    with ProcessServer() as broker, strandline.connect(broker.flight) as client:
        fill(client)
        yield broker.flight


@pytest.fixture(scope="module")
def client(server):
    """A client of the broker."""
    with strandline.connect(server) as connected:
        yield connected


@pytest.fixture(scope="module")
def directory(server, tmp_path_factory):
    """Where the files are, and where the commands run; only addresses differ from the docs."""
    folder = tmp_path_factory.mktemp("files")
    plain = {"format": "parquet", "into": "plain/{stream}", "streams": ["orders"]}
    more = {"parquet": FILES["load"] | plain | {"checkpoint": "plain-checkpoints"}}
    # Of its own: a checkpoint that has read everything would never come to the mistake.
    more |= {name: found | {"checkpoint": f"mistakes/{name}"} for name, found in MISTAKES.items()}
    for name, values in (FILES | more).items():
        addresses = dict.fromkeys({"server", "into_server"} & {"server", *values}, server)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(values | addresses))
    return folder


@pytest.fixture(scope="module")
def first(directory):
    """The output of the first run of each file, and of those with mistakes."""
    names = [*(name for name in RECORDS if name in RUN), *MISTAKES]
    commands = [command(f"{name}.yaml", "--output", "json") for name in names]
    return dict(zip(names, run_commands(directory, commands), strict=True))


@pytest.fixture(scope="module")
def second(first, directory):
    """The output of the second runs."""
    commands = [command(f"{name}.yaml", "--output", "json") for name in AGAIN]
    return dict(zip(AGAIN, run_commands(directory, commands), strict=True)) if AGAIN else {}


def documents(told):
    """The lines of a command's standard output."""
    return [json.loads(line) for line in told["out"].splitlines()]


def rows(client, stream):
    """Every record as a dictionary, headers too, partition by partition."""
    return [
        row | {"partition": info.partition, "headers": dict(row["headers"] or ())}
        for info in client.stream_info(stream).partitions
        for row in client.read(stream, partition=info.partition).read_all().to_pylist()
    ]


def values(client, stream, partition=None):
    """The values of a stream or of one of its partitions, in order."""
    found = rows(client, stream)
    return [row["value"] for row in found if partition in (None, row["partition"])]


def needs(*names):
    """Mark a test of the output of these files."""
    return pytest.mark.skipif(not set(names) <= set(RUN), reason="make pipelines runs this")


def test_the_docs_show_every_kind():
    """So that the tests below run them all."""
    assert set(FILES) == set(RECORDS) - {"parquet"}


@pytest.mark.parametrize("name", [name for name in RECORDS if name in RUN])
def test_a_file_is_run_to_its_end_and_told_as_documents(name, first):
    """Each micro-batch is a document; together they have every record, and nothing is left."""
    told = first[name]
    assert told["code"] == 0, told["err"]
    batches = documents(told)
    assert {line["event"] for line in batches} == {"batch"}
    assert sum(line["records"] for line in batches) == RECORDS[name]
    assert set(batches[-1]["lag"].values()) == {0}


@pytest.mark.parametrize("name", AGAIN)
def test_a_file_that_is_run_again_finds_nothing_new(name, second):
    """Its checkpoint or its output says that all is done."""
    assert second[name]["code"] == 0, second[name]["err"]
    assert sum(line["records"] for line in documents(second[name])) == 0


@needs("copy")
def test_the_copy_is_the_stream_again(second, client):
    """Partition by partition, in order, with its sources."""
    for partition in (0, 1):
        assert values(client, "orders-copy", partition) == values(client, "orders", partition)
    places = [source_of(row["headers"]) for row in rows(client, "orders-copy")]
    assert places == [("orders", p, offset) for p in (0, 1) for offset in range(ORDERS // 2)]


@needs("transform")
def test_the_transform_splits_by_amount(second, client):
    """Every order once, in the stream that the SQL names."""
    found = {stream: sorted(values(client, stream)) for stream in ("small", "large")}
    assert found == {
        "small": sorted(map(order, range(11))),
        "large": sorted(map(order, range(11, ORDERS))),
    }


@needs("aggregate")
def test_the_aggregate_has_a_state_for_each_customer(second, client):
    """Number and sum of a customer's orders."""
    table = compacted_view(client, "spent").to_pylist()
    found = {row["key"].decode(): json.loads(row["value"])["values"] for row in table}
    orders = {k: range(k, ORDERS, 3) for k in range(3)}
    assert found == {
        f"c{k}": {"n": len(mine), "total": 10.0 * sum(mine)} for k, mine in orders.items()
    }


@needs("merge")
def test_the_merge_has_each_stream_in_its_order(second, client):
    """Values and sources of both, interleaved."""
    merged = rows(client, "merged")
    for stream in ("a", "b"):
        mine = [row for row in merged if source_of(row["headers"])[0] == stream]
        assert [row["value"] for row in mine] == values(client, stream)
        assert [source_of(row["headers"])[2] for row in mine] == list(range(len(mine)))
    assert len(merged) == len(values(client, "a")) + len(values(client, "b"))


@needs("repartition", "clean")
def test_what_was_repartitioned_and_cleaned_is_pristine(second, client):
    """Each customer in one partition, by key; then the same without source headers."""
    keyed = rows(client, "by-customer")
    assert sorted(row["value"] for row in keyed) == sorted(map(order, range(ORDERS)))
    assert all(json.loads(row["value"])["customer"] == row["key"].decode() for row in keyed)
    assert len({(row["key"], row["partition"]) for row in keyed}) == 3
    pristine = rows(client, "pristine")
    same = ("partition", "key", "value")
    assert [[r[n] for n in same] for r in pristine] == [[r[n] for n in same] for r in keyed]
    assert all(row["headers"] == {} for row in pristine)


@pytest.mark.parametrize(
    ("stream", "path"),
    [
        pytest.param("orders", "lake/orders", marks=needs("load")),
        pytest.param("payments", "lake/payments", marks=needs("load")),
        pytest.param("orders", "plain/orders", marks=needs("parquet")),
    ],
)
def test_the_loads_have_every_record_in_columns(stream, path, second, directory, client):
    """Delta and plain Parquet, from one file each; invalid JSON goes to dead letters."""
    where = str(directory / path)
    is_plain = path.startswith("plain")
    table = read_table(where).to_table() if is_plain else DeltaTable(where).to_pyarrow_table()
    found = sorted(
        (r["_partition"], r["_offset"], r["id"], r["customer"]) for r in table.to_pylist()
    )
    assert found == [
        (row["partition"], row["offset"], made["id"], made["customer"])
        for row in rows(client, stream)
        if row["value"] != b"oops" and (made := json.loads(row["value"]))
    ]
    assert table.column("at").null_count == 0
    assert values(client, "bad-values") == [b"oops"]


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("no-stream", "unknown_stream", "no stream 'ordres'; did you mean 'orders'[?]"),
        ("no-output", "unknown_stream", "query transform .* failed: no stream 'smal'"),
        ("no-column", "invalid_config", "SQL .*`valeu` cannot be resolved. Did you mean .*`value`"),
        ("no-key", "invalid_config", "'kye'; did you mean 'key'"),
    ],
)
def test_a_mistake_is_told_in_one_document_that_says_what_to_do(name, code, message, first):
    """Whether we find it, Spark on the driver, or a task."""
    told = first[name]
    assert (told["code"], told["out"]) == (1, "")
    error = json.loads(told["err"].splitlines()[-1])
    assert error["error"] == code
    assert re.search(message, error["message"])
    assert "\n" not in error["message"]


@needs("merge")
def test_people_read_a_line_for_each_micro_batch(second, directory, client):
    """The installed command in a process of its own prints text."""
    client.append("a", b"one more")
    words = [str(Path(sys.executable).parent / "strandline"), *command("merge.yaml")]
    done = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"merge a, b into merged: batch 1, 1 records in \d+ ms, lag {.*a/0: 0.*}\n",
        done.stdout,
    )
    assert values(client, "merged")[-1] == b"one more"
