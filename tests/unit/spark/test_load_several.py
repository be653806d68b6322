"""Several streams in one table: offsets by stream and partition, each record once."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import yaml

import strandline
from strandline.errors import DataLossError, InvalidConfigError, InvalidRequestError
from strandline.spark.connection import forget_client
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.status import load_status
from strandline.spark.table import committed_offsets, read_table
from strandline.spark.tables import io as table_io
from strandline.testing import Server
from tests.kit.local_loads import FORMATS, LocalLoad

STREAMS = ("orders-eu", "orders-us")


@pytest.fixture
def log(tmp_path):
    """A broker with ``orders-eu`` and ``orders-us`` of two partitions, loaded into one table."""
    with Server() as url, strandline.connect(url) as client:
        for name in STREAMS:
            client.create_stream(name, partitions=2)
        client.create_stream("bad")
        yield LocalLoad(
            str(url), client, tmp_path, streams=list(STREAMS), into=str(tmp_path / "all")
        )
        forget_client(str(url))


def append(log, numbers, bad=()):
    """Each number goes to both streams."""
    for stream in STREAMS:
        log.append(numbers, bad=bad, stream=stream)


def found(log):
    """The table as (stream, id), in order."""
    return sorted((row["_stream"], row["id"]) for row in log.rows())


def expected(numbers, streams=STREAMS):
    numbers = list(numbers)
    return sorted((stream, n) for stream in streams for n in numbers)


def pattern(log):
    """The load, of a pattern in place of names."""
    log.config |= {"streams": [], "stream_pattern": "orders-*"}


@pytest.mark.parametrize("table_format", FORMATS)
def test_several_streams_become_one_table(log, table_format):
    """Rows name their stream; run after run only what is new is added, also without checkpoint."""
    log.use(table_format)
    log.config["dead_letters"] = "bad"
    append(log, range(20), bad={7})
    [first] = log.run()
    assert first["records"] == 40
    assert set(first["lag"]) == {f"{stream}/{p}" for stream in STREAMS for p in (0, 1)}
    assert log.run() == []
    append(log, range(20, 30))
    log.run(checkpoint=str(log.directory / "another"))
    assert found(log) == expected(n for n in range(30) if n != 7)
    assert json.loads(committed_offsets(table_of(log), **log.where())) == {
        f"{stream}/{p}": 15 for stream in STREAMS for p in (0, 1)
    }
    letters = log.client.read("bad").read_all().column("headers").to_pylist()
    assert {dict(each)["Strandline-Source-Stream"].decode() for each in letters} == set(STREAMS)


def table_of(log):
    return log.config["into"]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_new_stream_of_a_pattern_joins_the_table(log, table_format):
    """From its beginning, with the same checkpoint and with a new one."""
    log.use(table_format)
    pattern(log)
    append(log, range(10))
    log.run()
    log.client.create_stream("orders-jp", partitions=2)
    log.append(range(5), stream="orders-jp")
    append(log, range(10, 12))
    log.run()
    assert found(log) == sorted(expected(range(12)) + expected(range(5), ["orders-jp"]))
    log.client.create_stream("orders-uk", partitions=2)
    log.append(range(3), stream="orders-uk")
    log.run(checkpoint=str(log.directory / "another"))
    assert [row for row in found(log) if row[0] == "orders-uk"] == expected(range(3), ["orders-uk"])
    assert log.run(checkpoint=str(log.directory / "a third")) == []
    state = log.state()[1].state
    assert [each.partition("@")[0] for each in state.stream.split(",")] == [
        "orders-eu",
        "orders-jp",
        "orders-uk",
        "orders-us",
    ]


def test_raw_values_keep_the_stream(log):
    """In a column of its own; the log's tail has it too."""
    append(log, range(6))
    log.run(values="raw", schema=None)
    append(log, range(6, 8))
    view = strandline.table(STREAMS, server=log.config["server"], table=table_of(log)).to_table()
    places = zip(*(view.column(name).to_pylist() for name in ("stream", "value")), strict=True)
    assert sorted((stream, json.loads(value)["id"]) for stream, value in places) == expected(
        range(8)
    )


def test_table_and_tail_of_a_pattern_are_one_relation(log):
    """Decoded, and before the first commit of a stream."""
    pattern(log)
    append(log, range(4))
    log.run()
    append(log, range(4, 6))
    view = strandline.table(
        stream_pattern="orders-*",
        server=log.config["server"],
        table=table_of(log),
        values="json",
    ).to_table()
    rows = zip(*(view.column(name).to_pylist() for name in ("_stream", "id")), strict=True)
    assert sorted(rows) == expected(range(6))


def test_an_open_batch_is_repeated_although_a_stream_was_added(log, monkeypatch):
    """A crash between dead letters and commit: the letters are published once."""
    pattern(log)
    log.config["dead_letters"] = "bad"
    append(log, range(10), bad={3})
    with monkeypatch.context() as patch:

        def crash(*args, **kwargs):
            raise KeyboardInterrupt

        patch.setattr(table_io, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            log.run()
    log.client.create_stream("orders-jp", partitions=2)
    log.append(range(4), stream="orders-jp")
    assert [line["records"] for line in log.run()] == [20, 4]
    assert log.letters() == [b"oops 3", b"oops 3"]
    assert len(log.rows()) == 22


def test_a_load_goes_on_with_the_only_stream_that_is_left(log):
    """By a pattern, since the table's rows name their stream."""
    append(log, range(4))
    log.run()
    log.client.delete_stream("orders-us")
    log.append(range(4, 6), stream="orders-eu")
    log.config["checkpoint"] = str(log.directory / "fewer")
    with pytest.raises(InvalidRequestError, match="select that one with 'stream_pattern'"):
        log.run(streams=["orders-eu"])
    log.run(streams=[], stream_pattern="orders-eu")
    assert found(log) == sorted([*expected(range(4)), ("orders-eu", 4), ("orders-eu", 5)])


def test_what_would_mix_tables_up_is_rejected(log):
    """One stream's table for several and the other way round, a recreated stream, a removed one."""
    append(log, range(4))
    one = {"streams": ["orders-eu"], "checkpoint": str(log.directory / "c")}
    log.run(**one, into=str(log.directory / "one"))
    with pytest.raises(InvalidRequestError, match="one stream, which no column names"):
        log.run(into=str(log.directory / "one"))
    log.run()
    with pytest.raises(
        InvalidRequestError, match=r"several streams, which a column names.*'stream_pattern'"
    ):
        log.run(**one)
    pattern(log)
    rest = r"reads stream orders-us, too.*new checkpoint; a table says where the others go on$"
    with pytest.raises(InvalidConfigError, match=rest):
        log.run(stream_pattern="orders-e*")
    append(log, range(4, 6))
    log.run(stream_pattern="orders-e*", checkpoint=str(log.directory / "fewer"))
    assert ("orders-us", 5) not in found(log)
    assert ("orders-eu", 5) in found(log)
    log.run()
    assert found(log) == expected(range(6))
    log.client.delete_stream("orders-us")
    log.client.create_stream("orders-us", partitions=2)
    with pytest.raises(InvalidRequestError, match="holds records of stream orders-us@"):
        log.run()


def test_a_stream_recreated_while_a_load_runs_ends_it(log):
    """Before any of its records is committed under the old one's offsets."""
    append(log, range(4))
    seen = []

    def recreate(line):
        seen.append(line)
        if len(seen) == 1:
            log.client.delete_stream("orders-us")
            log.client.create_stream("orders-us", partitions=2)
            log.append(range(10), stream="orders-us")

    with pytest.raises(DataLossError, match="orders-us@"):
        run_local(decode_pipeline(log.config | {"batch_bytes_max": 60}), report=recreate)
    assert len([row for row in found(log) if row[0] == "orders-us"]) < 4


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_load_of_several_streams_takes_each_record_once(log, table_format):
    """By SIGKILL at random moments, with merges of files and a stream that joins meanwhile."""
    log.use(table_format)
    pattern(log)
    log.config |= {"dead_letters": "bad", "compaction": True}

    def begin(number):
        new = range(200 * number, 200 * number + 200)
        append(log, new, bad={n for n in new if n % 50 == 0})
        if number == 1:
            log.client.create_stream("orders-jp", partitions=2)
            log.append(range(100), stream="orders-jp")

    log.killed(3, begin, lines=random.Random(1).randint(1, 4), pause_s=0.3)
    log.run()
    assert found(log) == sorted(
        expected(n for n in range(600) if n % 50) + expected(range(100), ["orders-jp"])
    )
    assert log.letters() == sorted(2 * [b"oops %d" % n for n in range(0, 600, 50)])


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_status_has_every_partition_of_every_stream(log, table_format):
    """One line for the table, with offsets and lag by stream and partition."""
    log.use(table_format)
    append(log, range(10))
    log.run()
    log.append([10], stream="orders-us")
    [status] = load_status(decode_pipeline(log.config))
    assert status.stream == "orders-eu, orders-us"
    assert status.lag == {
        "orders-eu/0": 0,
        "orders-eu/1": 0,
        "orders-us/0": 1,
        "orders-us/1": 0,
    }
    assert status.offsets["orders-us/1"] == 5
    assert status.oldest_unread_ms.keys() == {"orders-us/0"}
    pattern(log)
    [status] = load_status(decode_pipeline(log.config))
    assert (status.stream, status.rows) == ("orders-*", 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stream_pattern": "orders-*"}, "not both"),
        ({"streams": [], "stream_pattern": "o*", "into": "t/{stream}"}, "without {stream}"),
        (
            {"streams": [], "stream_pattern": "b*", "dead_letters": "bad"},
            "which the pipeline reads",
        ),
        ({"streams": []}, "'streams' is empty"),
    ],
)
def test_a_file_that_does_not_say_which_streams_is_rejected(changes, message):
    """Names or a pattern, which is one table."""
    load = {"kind": "load", "streams": ["a"], "into": "t", "checkpoint": "c"}
    with pytest.raises(InvalidConfigError, match=message):
        decode_pipeline(load | changes)


@pytest.mark.parametrize("kept", ["all", "none"])
def test_offsets_outlive_the_log_of_a_delta_table(log, kept):
    """Its application transactions have them; a partition without rows is missed."""
    from deltalake import DeltaTable, write_deltalake

    log.use("delta")
    log.append(range(4), stream="orders-eu")
    if kept == "all":
        log.append(range(4), stream="orders-us")
    else:
        log.config["dead_letters"] = "bad"
        log.append(range(4), stream="orders-us", bad=set(range(4)))
    log.run()
    path = table_of(log)
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 0), mode="append")
    DeltaTable(path).create_checkpoint()
    for version in range(DeltaTable(path).version()):
        (log.directory / "all" / "_delta_log" / f"{version:020d}.json").unlink(missing_ok=True)
    shutil.rmtree(log.directory / "checkpoint")
    if kept == "none":
        with pytest.raises(InvalidRequestError, match="only 2 of the 4 partitions"):
            log.run()
        return
    append(log, range(4, 6))
    log.run()
    assert found(log) == expected(range(6))


def test_the_file_of_the_docs_loads_a_pattern(log, monkeypatch):
    """As it stands on the page, in a directory of its own."""
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()
    text = page.partition("### Several streams in one table")[2]
    file = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1]
    append(log, range(10))
    monkeypatch.chdir(log.directory)
    run_local(decode_pipeline(yaml.safe_load(file) | {"server": log.config["server"]}))
    rows = read_table("lake/orders").to_table().select(["_stream", "id"]).to_pylist()
    assert sorted((row["_stream"], row["id"]) for row in rows) == expected(range(10))


def append_json(log, stream, *rows):
    for row in rows:
        log.client.append(stream, json.dumps(row).encode(), partition=0)


def rows_of(log, *names):
    found = sorted(log.rows(), key=lambda row: (row["_stream"], row["_offset"]))
    return [tuple(row[name] for name in ("_stream", *names)) for row in found]


@pytest.mark.parametrize("table_format", FORMATS)
def test_each_stream_is_decoded_by_its_own_schema(log, table_format):
    """The table has the columns of all; one that a stream adds later is added, a narrower one is
    wide enough, and a field that only another stream describes is left out.
    """
    log.use(table_format)
    log.config |= {"schema": None, "dead_letters": "bad"}
    eu, us = STREAMS
    log.client.schemas.set(eu, "id INT NOT NULL, vat DOUBLE")
    log.client.schemas.set(us, "id BIGINT, state STRING, place STRUCT<zip: STRING>")
    append_json(log, eu, {"id": 1, "vat": 0.2, "state": 7}, {"vat": 1.5})
    append_json(log, us, {"id": 1 << 40, "state": "NY", "vat": "none", "place": {"zip": "1"}})
    log.run()
    first = [(eu, 1, 0.2, None), (us, 1 << 40, None, "NY")]
    assert rows_of(log, "id", "vat", "state") == first
    log.client.schemas.set(us, "id BIGINT, state STRING, place STRUCT<zip: STRING>, tax DOUBLE")
    append_json(log, us, {"id": 2, "tax": 0.5})
    view = strandline.table(
        STREAMS,
        table=table_of(log),
        server=log.config["server"],
        values="json",
        skip_invalid=True,
        **log.where(),
    ).to_table()
    assert sorted(view.column("id").to_pylist()) == [1, 2, 1 << 40]
    log.run()
    assert rows_of(log, "id", "tax") == [(eu, 1, None), (us, 1 << 40, None), (us, 2, 0.5)]
    columns = view.column_names
    assert columns == list(log.rows()[0])
    letters = log.client.read("bad").read_all().column("headers").to_pylist()
    assert [dict(each)["Strandline-Error"] for each in letters] == [
        b"'id', which the schema requires, is missing or null"
    ]


def test_a_pattern_takes_a_stream_with_a_schema_of_its_own(log):
    """Also one that is created while the load exists; a column that it renames stays the same."""
    pattern(log)
    log.config["schema"] = None
    eu, us = STREAMS
    log.client.schemas.set(eu, "id INT, customer STRING")
    log.client.schemas.set(us, "id INT, customer STRING")
    renamed = (
        '[{"id": 1, "name": "id", "type": "int"}, {"id": 2, "name": "client", "type": "string"}]'
    )
    append_json(log, us, {"id": 1, "customer": "ada"})
    log.run()
    log.client.schemas.set(us, renamed)
    log.client.create_stream("orders-jp", partitions=2)
    log.client.schemas.set("orders-jp", "id INT, yen BIGINT")
    append_json(log, us, {"id": 2, "client": "bob"})
    append_json(log, "orders-jp", {"id": 3, "yen": 9})
    log.run()
    assert rows_of(log, "id", "customer", "yen") == [
        ("orders-jp", 3, None, 9),
        (us, 1, "ada", None),
        (us, 2, "bob", None),
    ]


@pytest.mark.parametrize(
    ("eu", "us", "message"),
    [
        (
            "id INT, at DATE, x STRUCT<a: INT>",
            "id STRING, at TIMESTAMP, x STRUCT<a: BOOLEAN>",
            "column 'id' is int in 'orders-eu' and string in 'orders-us'; column 'at' is date",
        ),
        ("id INT", None, "stream 'orders-us' has no schema, and other streams of the table have"),
    ],
)
def test_schemas_that_do_not_agree_are_rejected(log, eu, us, message):
    """Before anything is loaded, with the columns' names and what to do."""
    log.config["schema"] = None
    log.client.schemas.set("orders-eu", eu)
    if us:
        log.client.schemas.set("orders-us", us)
    append_json(log, "orders-eu", {"id": 1})
    with pytest.raises(InvalidConfigError) as raised:
        log.run()
    assert message in str(raised.value)
    log.run(schema="id BIGINT")
    assert rows_of(log, "id") == [("orders-eu", 1)]


def test_a_list_of_one_stream_is_that_stream(log):
    """In a load and in the table that is read with its tail; text in place of a list says so."""
    log.append(range(4), stream="orders-eu")
    log.run(streams=["orders-eu"])
    for stream in ("orders-eu", ["orders-eu"]):
        view = strandline.table(
            stream, table=table_of(log), server=log.config["server"], values="json"
        )
        assert view.to_table().num_rows == 4
    with pytest.raises(InvalidConfigError, match=r"write streams: \[orders-eu\]"):
        log.run(streams="orders-eu")
