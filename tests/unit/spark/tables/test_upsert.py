"""Tables kept by a primary key: the last change of a key counts, deletes delete, once."""

import io
import json
import random
import re
from itertools import count
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import strandline
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
)
from strandline.spark.connection import forget_client
from strandline.spark.options import parse_table_options
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.pipelines.status import load_status
from strandline.spark.tables.compact import compact
from strandline.spark.tables.iceberg import open_catalog
from strandline.spark.tables.io import TableCommitter
from strandline.spark.tables.open import existing_store
from strandline.testing import Server
from strandline.values.decode import RECORD_SCHEMA
from tests.kit.local_loads import LocalLoad, sql_catalog

FORMATS = ("delta", "iceberg")
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
_numbers = count()


class Table:
    """A table in a directory, to which micro-batches are committed as by a new process each."""

    def __init__(self, directory, table_format, **options):
        self.path = "lake.t" if table_format == "iceberg" else str(directory / "t")
        directory.mkdir(exist_ok=True)
        self.format, self.catalog = table_format, sql_catalog(directory)
        self.options = {
            "path": self.path,
            "tableFormat": table_format,
            "catalog": json.dumps(self.catalog),
            "compaction": "false",
            "primaryKey": "id",
            "values": "json",
            "valueSchema": from_arrow_schema(COLUMNS).json(),
            **options,
        }
        self.batch = 0

    def committer(self, **changes):
        options = parse_table_options(self.options | changes)
        return TableCommitter(options, from_arrow_schema(RECORD_SCHEMA))

    def commit(self, *tasks, batch=None, **changes):
        """One micro-batch of records, in these tasks."""
        if batch is None:
            batch, self.batch = self.batch, self.batch + 1
        committer = self.committer(**changes)
        staged = [committer.stage(iter([task]), txn_id="q", batch=batch) for task in tasks]
        committer.commit(staged)

    def rows(self):
        """The table as a reader of the format finds it."""
        if self.format == "delta":
            return DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return open_catalog(self.catalog).load_table(self.path).scan().to_arrow().to_pylist()

    def names(self):
        """What is in the table, by primary key; a key that is there twice fails."""
        rows = self.rows()
        found = {row["id"]: row["name"] for row in rows}
        assert len(found) == len(rows), rows
        return found

    def store(self):
        where = {"table_format": self.format, "catalog": self.catalog}
        return existing_store(self.path, **where)


def records(partition, start, *pairs):
    """Records of a partition from (key, value) on."""
    keys, values = zip(*pairs, strict=True) if pairs else ((), ())
    size = len(keys)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([partition] * size, pa.int32()),
            pa.array(range(start, start + size), pa.int64()),
            pa.array([0] * size, pa.timestamp("us", tz="UTC")),
            pa.array(["s"] * size),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([None] * size, RECORD_SCHEMA.field("headers").type),
        ],
        schema=RECORD_SCHEMA,
    )


def row(number, name):
    return json.dumps({"id": number, "name": name}).encode()


def put(number, name):
    """A record that keeps a row."""
    return b"%d" % number, row(number, name)


def drop(number):
    """A tombstone."""
    return b"%d" % number, None


@pytest.fixture(params=FORMATS)
def table(request, tmp_path):
    """A table that does not exist yet, kept by ``id``."""
    return Table(tmp_path, request.param)


def test_records_replace_and_delete_rows(table):
    """Within a batch the last one of a key counts; one that is not there may be deleted."""
    table.commit(records(0, 0, put(1, "a"), put(2, "b"), put(1, "c"), put(3, "d"), drop(3)))
    assert table.names() == {1: "c", 2: "b"}
    table.commit(records(0, 5, put(2, "e"), drop(1), put(4, "f"), drop(9)))
    assert table.names() == {2: "e", 4: "f"}
    table.commit(records(0, 9, drop(2), put(2, "g"), drop(4)))
    assert table.names() == {2: "g"}
    table.commit(records(0, 12, drop(2)))
    assert table.names() == {}
    assert table.store().load().state.offsets == {0: 13}


def test_a_replay_changes_nothing(table):
    """Also one of deletes alone; other content under its number is rejected."""
    table.commit(records(0, 0, put(1, "a"), put(2, "b")))
    table.commit(records(0, 2, drop(1)))
    table.commit(records(0, 2, drop(1)), batch=1)
    assert table.names() == {2: "b"}
    with pytest.raises(InvalidRequestError, match="restored from an old copy"):
        table.commit(records(0, 2, drop(1), drop(2)), batch=1)
    with pytest.raises(InvalidRequestError, match="committed already"):
        table.commit(records(0, 1, put(2, "c")), batch=2)
    assert table.names() == {2: "b"}


changes = st.lists(
    st.tuples(st.integers(0, 5), st.one_of(st.none(), st.text("xyz", max_size=2))), max_size=8
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    commits=st.lists(changes, min_size=1, max_size=6),
    table_format=st.sampled_from(FORMATS),
    kind=st.sampled_from(["json", "raw", "debezium"]),
    seed=st.integers(0, 99),
)
def test_the_table_is_a_dict(tmp_path, commits, table_format, kind, seed):
    """Any sequence of changes in any split into commits and tasks, with replays, merges of files
    and a new process each time.
    """
    rng, model, offsets = random.Random(seed), {}, [0, 0]
    options = {"raw": {"values": "raw", "primaryKey": "key"}, "debezium": {"envelope": "debezium"}}
    table = Table(tmp_path / f"{next(_numbers)}", table_format, **options.get(kind, {}))
    for commit in commits:
        tasks = []
        for partition in (0, 1):
            mine = [change for change in commit if change[0] % 2 == partition]
            pairs = [record(kind, number, name, before=model) for number, name in mine]
            cut = rng.randint(0, len(pairs))
            for piece in (pairs[:cut], pairs[cut:]):
                tasks.append(records(partition, offsets[partition], *piece))
                offsets[partition] += len(piece)
        for number, name in commit:
            model.pop(number, None)
            if name is not None:
                model[number] = name
        rng.shuffle(tasks)
        if any(task.num_rows for task in tasks):
            for _ in range(rng.randint(1, 2)):
                table.commit(*tasks, batch=table.batch)
            table.batch += 1
        if rng.random() < 0.3 and table.batch:
            compact(table.store(), file_bytes=1 << 20, files_max=1)
        if table.batch:
            assert content(table, kind) == model
            found = table.store().load().state.offsets
            assert [found.get(0, 0), found.get(1, 0)] == offsets


def record(kind, number, name, *, before):
    if kind == "debezium":
        event = {"op": "u" if number in before else "c", "after": {"id": number, "name": name}}
        if name is None:
            event = {"op": "d", "before": {"id": number, "name": None}, "after": None}
        return b"{}", json.dumps({"payload": event} if number % 3 else event).encode()
    return drop(number) if name is None else put(number, name)


def content(table, kind):
    if kind != "raw":
        return table.names()
    rows = table.rows()
    assert len({row["key"] for row in rows}) == len(rows)
    return {int(row["key"]): json.loads(row["value"])["name"] for row in rows}


DEBEZIUM = {"envelope": "debezium"}


def event(op, before=None, after=None, **more):
    return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 1, **more}).encode()


def test_debezium_s_events_are_understood(table):
    """With and without schema, deletes followed by tombstones, a changed primary key, and a
    database that gives no row before.
    """
    table.options |= DEBEZIUM
    one, two = {"id": 1, "name": "a"}, {"id": 2, "name": "b"}
    wrapped = json.dumps({"schema": {"type": "struct"}, "payload": {"op": "r", "after": two}})
    key = b'{"schema": {}, "payload": {"id": 1}}'
    table.commit(records(0, 0, (key, event("c", after=one)), (b'{"id": 2}', wrapped.encode())))
    assert table.names() == {1: "a", 2: "b"}
    table.commit(
        records(
            0,
            2,
            (key, event("d", before=one)),
            (key, None),
            (b'{"id": 2}', event("u", before=two, after={"id": 3, "name": "c"})),
        )
    )
    assert table.names() == {3: "c"}
    table.commit(records(0, 5, (b'{"id": 3}', event("d"))))
    assert table.names() == {}


def test_what_is_no_change_is_rejected_with_its_reason(table):
    """A truncation, a null key, a tombstone without a key, or with one that is none."""
    table.options |= DEBEZIUM
    for key, value, reason in (
        (b"1", event("t"), r"its op is t"),
        (b"1", b'{"id": 1, "name": "a"}', r"its op is None"),
        (b"1", b'{"schema":null,"payload":null}', r"its op is None"),
        (b"1", event("c", after={"name": "a"}), r"primary key \(id\) is null"),
        (b"1", event("c"), r"its op is c, and its row None"),
        (None, None, "no key says which"),
        (b"\xff", None, "its key"),
        (b'{"id": "x"}', None, "its key"),
        (b'{"no": 1}', None, r"primary key \(id\) is null"),
    ):
        with pytest.raises(InvalidRecordError, match=f"partition 0, offset 0.*{reason}"):
            table.commit(records(0, 0, (key, value)), batch=0)
    assert table.store().load().state is None


@pytest.mark.parametrize("key", [b"x y", b'"x y"', b'{"name": "x y"}'])
def test_a_record_s_key_may_be_the_value_of_a_column(table, key):
    """As text, as JSON text, or as an object."""
    table.options["primaryKey"] = "name"
    table.commit(records(0, 0, (b"x y", row(1, "x y")), (b"z", row(2, "z"))))
    table.commit(records(0, 2, (key, None)))
    assert [row["name"] for row in table.rows()] == ["z"]


@pytest.mark.parametrize("name", ["payload", "schema", "op"])
@pytest.mark.parametrize("kind", ["int", "text"])
def test_a_primary_key_may_have_a_word_of_a_wrapper(tmp_path, name, kind):
    """Its tombstones' keys may be wrapped, or not."""
    columns = pa.schema([(name, pa.int64() if kind == "int" else pa.string()), ("x", pa.int64())])
    schema = from_arrow_schema(columns).json()
    table = Table(tmp_path, "delta", primaryKey=name, valueSchema=schema)
    values = [n if kind == "int" else f"{{{n}" for n in range(5)]
    table.commit(records(0, 0, *[(b"k", json.dumps({name: v, "x": 1}).encode()) for v in values]))
    keys = [{name: values[0]}, {"payload": {name: values[1]}}, values[2]]
    keys.append({"schema": {"type": "struct"}, "payload": {name: values[3]}})
    table.commit(records(0, 5, *[(json.dumps(key).encode(), None) for key in keys]))
    assert [row[name] for row in table.rows()] == [values[4]]


def test_a_primary_key_may_have_several_columns(table):
    """Of the value and of the record."""
    table.options["primaryKey"] = "id,name,_key"
    first = [(b"k", row(1, "a")), (b"k", row(1, "b")), (b"l", row(1, "a")), (b"k", row(1, "a"))]
    table.commit(records(0, 0, *first))
    assert sorted((row["_key"], row["name"]) for row in table.rows()) == [
        (b"k", "a"),
        (b"k", "b"),
        (b"l", "a"),
    ]
    key = b'{"id": 1, "name": "a"}'
    table.commit(records(0, 4, (key, row(1, "a")), (key, None)))
    assert len(table.rows()) == 3


def test_of_two_commits_on_one_version_the_second_decides_anew(table):
    """A merge, or another writer's rows, in between: no change is lost and none is undone."""
    table.commit(records(0, 0, put(1, "a"), put(2, "b")))
    table.commit(records(0, 2, put(3, "c")))
    committer = table.committer()
    staged = committer.stage(iter([records(0, 3, put(1, "d"), drop(3))]), txn_id="q", batch=2)
    publish = committer.store.publish

    def overtaken(*decided):
        committer.store.publish = publish
        assert compact(table.store(), file_bytes=1 << 20, files_max=1) == 2
        return publish(*decided)

    committer.store.publish = overtaken
    committer.commit([staged])
    assert table.names() == {1: "d", 2: "b"}


def test_replaced_files_are_removed_from_the_disk(table, tmp_path):
    """By their other name, in staging, too; and the metadata that only old snapshots had."""
    table.options["snapshotAgeMs"] = "0"
    for batch in range(6):
        table.commit(records(0, batch, put(1, f"{batch}")))
    assert table.names() == {1: "5"}
    assert len({path.stat().st_ino for path in tmp_path.rglob("*.parquet")}) == 1
    if table.format == "iceberg":
        [current] = open_catalog(table.catalog).load_table(table.path).snapshots()
        found = open_catalog(table.catalog).load_table(table.path)
        named = {current.manifest_list, *(m.manifest_path for m in current.manifests(found.io))}
        assert {f"file://{path}" for path in tmp_path.rglob("*.avro")} == named
        assert found.properties["write.metadata.delete-after-commit.enabled"] == "true"


def test_a_data_file_that_somebody_removed_is_named(table, tmp_path):
    """Not as a failure that passes."""
    table.commit(records(0, 0, put(1, "a"), put(2, "b")))
    [file] = {path.name for path in tmp_path.rglob("*.parquet")}
    for path in tmp_path.rglob("*.parquet"):
        path.unlink()
    with pytest.raises(DataLossError, match=rf"{file} is gone: it was deleted"):
        table.commit(records(0, 2, put(1, "b")))


def test_only_files_with_changed_rows_are_rewritten(table):
    """Others stay as they are; nothing staged is left behind."""
    for batch in range(4):
        table.commit(records(0, 2 * batch, put(2 * batch, "a"), put(2 * batch + 1, "a")))
    before = {file.path for file in table.store().live_files(table.store().load())}
    table.commit(records(0, 8, put(2, "b"), put(20, "c")))
    after = {file.path for file in table.store().live_files(table.store().load())}
    assert len(before) == 4
    assert len(before - after) == 1
    assert len(after - before) == 2
    assert table.names() == dict.fromkeys(range(8), "a") | {2: "b", 20: "c"}


def test_rows_of_others_keep_their_columns(tmp_path):
    """A column that somebody added, and its values, survive the rewriting of a file."""
    from deltalake import Field, write_deltalake

    table = Table(tmp_path, "delta")
    table.commit(records(0, 0, put(1, "a"), put(2, "b")))
    DeltaTable(table.path).alter.add_columns([Field("note", "string")])
    theirs = DeltaTable(table.path).to_pyarrow_table().slice(0, 2)
    changed = theirs.set_column(
        theirs.schema.get_field_index("id"), "id", pa.array([7, 8], pa.int64())
    )
    noted = changed.set_column(
        theirs.schema.get_field_index("note"), "note", pa.array(["kept", "gone"])
    )
    write_deltalake(table.path, noted, mode="append")
    table.commit(records(0, 2, put(8, "z")))
    assert {row["id"]: row["note"] for row in table.rows()} == {
        1: None,
        2: None,
        7: "kept",
        8: None,
    }


def test_files_that_others_rewrote_are_changed_and_merged(tmp_path):
    """delta-rs writes views of texts, also in lists, for which Arrow has no filter."""
    columns = pa.schema([*COLUMNS, ("tags", pa.list_(pa.string())), ("more", pa.binary())])
    table = Table(tmp_path, "delta", valueSchema=from_arrow_schema(columns).json())
    values = [{"id": n, "name": f"{n}", "tags": ["x"], "more": "eA=="} for n in range(6)]
    for batch in range(3):
        mine = values[2 * batch : 2 * batch + 2]
        pairs = [(b"%d" % each["id"], json.dumps(each).encode()) for each in mine]
        table.commit(records(0, 2 * batch, *pairs))
    DeltaTable(table.path).delete("id = 0")
    DeltaTable(table.path).update(predicate="id = 2", updates={"name": "'their'"})
    DeltaTable(table.path).delete("id = 4")
    assert compact(table.store(), file_bytes=1 << 20, files_max=1) == 3
    table.commit(records(0, 6, drop(1)))
    DeltaTable(table.path).update(predicate="id = 5", updates={"name": "'five'"})
    table.commit(records(0, 7, drop(3)))
    assert table.names() == {2: "their", 5: "five"}
    assert [(row["tags"], row["more"]) for row in table.rows()] == [(["x"], b"x")] * 2


def test_a_text_is_a_primary_key_in_files_that_others_rewrote(tmp_path):
    """And its row is found there."""
    table = Table(tmp_path, "delta", primaryKey="name")
    table.commit(records(0, 0, (b"a", row(1, "a")), (b"b", row(2, "b")), (b"c", row(3, "c"))))
    DeltaTable(table.path).delete("id = 3")
    table.commit(records(0, 3, (b"a", None), (b"b", row(4, "b"))))
    assert [(row["id"], row["name"]) for row in table.rows()] == [(4, "b")]


def test_a_table_that_cannot_be_changed_is_rejected(tmp_path):
    """Plain Parquet, only appends, deletion vectors, another primary key, or none."""
    with pytest.raises(InvalidConfigError, match=r"plain Parquet.*delta or iceberg"):
        Table(tmp_path / "p", "parquet").committer()
    table = Table(tmp_path / "a", "delta")
    table.commit(records(0, 0, put(1, "a")))
    with pytest.raises(InvalidRequestError, match="primary key is id, not none"):
        table.commit(records(0, 1, put(2, "b")), batch=1, primaryKey="")
    with pytest.raises(InvalidRequestError, match="primary key is id, not name"):
        table.commit(records(0, 1, put(2, "b")), batch=1, primaryKey="name")
    DeltaTable(table.path).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(InvalidRequestError, match=r"only appends \(delta.appendOnly\)"):
        table.commit(records(0, 1, put(1, "b")), batch=1)
    assert table.names() == {1: "a"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"primaryKey": "nothing"}, "names 'nothing', but the table has: _partition"),
        ({"primaryKey": "_headers"}, "cannot be a primary key"),
        ({"primaryKey": "_offset"}, "only _key, _subject, _stream can"),
        ({"primaryKey": "id,_timestamp"}, "'_timestamp' of a record cannot be"),
        ({"primaryKey": "_partition"}, "'_partition' of a record cannot be"),
        ({"primaryKey": "offset", "values": "raw"}, "only key, subject, stream can"),
        ({"primaryKey": "value", "values": "raw"}, "'value' of a record cannot be"),
        ({"primaryKey": "id,name,id"}, "names 'id' twice"),
        ({"primaryKey": "id,ID"}, "names 'ID' twice"),
        ({"envelope": "debezium", "primaryKey": ""}, "set 'primaryKey'"),
        ({"envelope": "debezium", "values": "raw"}, "'values' to json or avro"),
        ({"envelope": "canal"}, "must be one of none, debezium"),
    ],
)
def test_options_that_do_not_fit_are_rejected(tmp_path, options, message):
    """Each error says what to give."""
    with pytest.raises(InvalidConfigError, match=message):
        Table(tmp_path, "delta", **options).committer()


@pytest.fixture
def log(tmp_path):
    """A broker with the compacted stream ``orders``, loaded by the id of its values."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2, compact=True)
        client.create_stream("bad")
        yield LocalLoad(
            str(url),
            client,
            tmp_path,
            schema="id BIGINT, name STRING",
            mode="upsert",
            primary_key=["id"],
            dead_letters="bad",
        )
        forget_client(str(url))


def publish(log, changes):
    """Publish changes of (id, name), each id to one partition; without a name it is deleted."""
    for partition in (0, 1):
        mine = [change for change in changes if change[0] % 2 == partition]
        pairs = [drop(n) if name is None else put(n, name) for n, name in mine]
        keys, values = zip(*pairs, strict=True) if pairs else ((), ())
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        log.client.append_batch("orders", pa.table(columns), partition=partition)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_load_applies_each_change_once(log, table_format):
    """By SIGKILL at random moments, with merges of files: no change is lost, undone or doubled, and
    the dead letters are there once.
    """
    log.use(table_format)
    rng, model = random.Random(4), {}

    def begin(number):
        changes = [
            (n, rng.choice([None, f"{number}-{n}", "x"])) for n in rng.choices(range(40), k=300)
        ]
        publish(log, changes)
        log.client.append("orders", b"oops %d" % number, key=b"bad", partition=0)
        for n, name in changes:
            model.pop(n, None)
            if name is not None:
                model[n] = name

    log.killed(3, begin, lines=3, pause_s=0.4, batch_bytes_max=600)
    log.run()
    rows = log.rows()
    assert {row["id"]: row["name"] for row in rows} == model
    assert len(rows) == len(model)
    assert log.letters() == [b"oops 0", b"oops 1", b"oops 2"]
    assert log.state()[1].state.sequence >= 9, "too few commits"


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_new_load_of_a_compacted_stream_has_its_newest_rows(log, table_format):
    """Offsets that compaction left empty are no gaps, and the tail is known as no rows."""
    log.use(table_format)
    publish(log, [(n % 10, f"{n}") for n in range(100)])
    log.run(batch_bytes_max=400)
    publish(log, [(n, None) for n in range(4)])
    log.run()
    expected = {n: f"{90 + n}" for n in range(4, 10)}
    assert {row["id"]: row["name"] for row in log.rows()} == expected
    [status] = load_status(decode_pipeline(log.config))
    assert (status.rows, set(status.lag.values())) == (6, {0})
    with pytest.raises(InvalidConfigError, match="read only the table"):
        strandline.table(
            "orders",
            server=log.config["server"],
            table=log.config["into"].replace("{stream}", "orders"),
            values="json",
            **log.where(),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"primary_key": []}, "'primary_key' does not say"),
        ({"primary_key": ["id", "id"]}, "'primary_key' names 'id' twice"),
        ({"mode": "append"}, "'primary_key' is for 'mode: upsert'"),
        ({"format": "parquet"}, "set 'format' to delta or iceberg"),
        ({"values": "raw", "schema": None, "envelope": "debezium"}, "'values' to json or avro"),
    ],
)
def test_an_error_of_an_upsert_names_the_keys_of_the_file(log, changes, message):
    """And what to write instead; status says the same."""
    log.use("delta")
    for act in (log.run, lambda **c: load_status(decode_pipeline(log.config | c))):
        with pytest.raises(InvalidConfigError) as raised:
            act(**changes)
        assert message in str(raised.value)
    with pytest.raises(
        InvalidConfigError, match="'primary_key' names 'nothing', but the table has"
    ):
        log.run(primary_key=["nothing"])
    publish(log, [(1, "a")])
    log.run()
    appended = {"mode": "append", "primary_key": []}
    for act in (log.run, lambda **c: load_status(decode_pipeline(log.config | c))):
        with pytest.raises(InvalidRequestError, match="primary key is id, not none"):
            act(**appended)
        with pytest.raises(InvalidRequestError, match="primary key is id, not name"):
            act(primary_key=["name"])


def test_debezium_s_columns_are_inferred_from_its_rows(log):
    """Of the row after; with the envelope's Avro schema they are those of its record."""
    log.use("delta")
    log.config |= {"envelope": "debezium", "schema": None}
    log.client.append("orders", event("c", after={"id": 1, "name": "a"}), key=b"1", partition=0)
    log.run()
    assert [(row["id"], row["name"]) for row in log.rows()] == [(1, "a")]
    row_type = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}],
    }
    fields = [
        {"name": "before", "type": ["null", row_type], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ]
    schema = {"type": "record", "name": "Envelope", "fields": fields}
    log.client.create_stream("avro", partitions=1)
    for number, (op, name) in enumerate([("c", "a"), ("u", "b"), ("c", "c"), ("d", None)]):
        out = io.BytesIO()
        of = {"id": number // 2, "name": name or "c"}
        value = {"op": op, "before": of if op == "d" else None, "after": None if op == "d" else of}
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        log.client.append("avro", out.getvalue())
    log.run(streams=["avro"], values="avro", schema=json.dumps(schema))
    store = existing_store(str(log.directory / "avro"), table_format="delta")
    rows = [row for batch in store.scan(store.load()) for row in batch.to_pylist()]
    assert [(row["id"], row["name"]) for row in rows] == [(0, "b")]


def events_schema(*more, kind="avro"):
    """Debezium's schema of events whose rows have id, name and more columns."""
    if kind == "json":
        row = ", ".join(["id: INT", "name: STRING", *(f"{name}: DOUBLE" for name in more)])
        return f"before STRUCT<{row}>, after STRUCT<{row}>, op STRING NOT NULL, ts_ms BIGINT"
    fields = [{"name": "id", "type": "int"}, {"name": "name", "type": ["null", "string"]}]
    fields += [{"name": name, "type": ["null", "double"], "default": None} for name in more]
    row = {"type": "record", "name": "Value", "fields": fields}
    fields = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ]
    return json.dumps({"type": "record", "name": "Envelope", "fields": fields})


def event_of(schema, op, row, *, registry_id):
    """An event, in the framing of a registry if its schema is Avro."""
    found = {"op": op, "before": None, "after": None} | {"before" if op == "d" else "after": row}
    if not schema.startswith("{"):
        return json.dumps(found).encode()
    out = io.BytesIO(b"\0" + registry_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), found)
    return out.getvalue()


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("kind", ["json", "avro"])
def test_debezium_s_rows_follow_the_schema_of_the_stream(log, table_format, kind):
    """That of its events: a new version with one more column in ``after`` adds it to the table;
    events of the version before are read as before.
    """
    log.use(table_format)
    log.config |= {"envelope": "debezium", "schema": None, "values": kind}
    one, two = events_schema(kind=kind), events_schema("price", kind=kind)
    events = [
        event_of(one, op, {"id": number, "name": name}, registry_id=7)
        for number, op, name in [(1, "c", "a"), (2, "r", "b"), (1, "u", "c"), (2, "d", None)]
    ]
    log.client.schemas.set("orders", one, registry_id=7 if kind == "avro" else None)
    for value in events:
        log.client.append("orders", value, key=b"k", partition=0)
    log.run()
    assert log.rows()[0] | {"id": 1, "name": "c"} == log.rows()[0]
    log.client.schemas.set("orders", two, registry_id=8 if kind == "avro" else None)
    row = {"id": 3, "name": "z", "price": 1.5}
    log.client.append("orders", event_of(two, "c", row, registry_id=8), key=b"k", partition=0)
    log.client.append("orders", events[1], key=b"k", partition=0)
    log.client.append("orders", b"oops", key=b"k", partition=0)
    log.run()
    found = sorted((row["id"], row["name"], row["price"]) for row in log.rows())
    assert found == [(1, "c", None), (2, "b", None), (3, "z", 1.5)]
    assert log.letters() == [b"oops"]


def test_a_schema_that_is_not_of_events_is_rejected(log):
    """With what to do; columns in the file are of the rows, whatever the stream's schema."""
    log.use("delta")
    log.config["envelope"] = "debezium"
    log.client.schemas.set("orders", "id INT, name STRING")
    log.client.append("orders", event("c", after={"id": 1, "name": "a"}), key=b"1", partition=0)
    with pytest.raises(InvalidConfigError, match="no struct 'after' beside 'op'; set their schema"):
        log.run(schema=None)
    log.run()
    assert [row["name"] for row in log.rows()] == ["a"]


def test_a_tombstone_needs_only_the_key_that_a_json_schema_describes(log):
    """Not the other properties that values have to have."""
    log.use("delta")
    properties = {"id": {"type": "integer"}, "name": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["id", "name"]}
    log.client.schemas.set("orders", json.dumps(schema))
    log.config["schema"] = None
    publish(log, [(1, "a"), (2, "b"), (1, None)])
    log.run()
    assert [(row["id"], row["name"]) for row in log.rows()] == [(2, "b")]
    assert log.letters() == []


def test_the_file_of_the_docs_keeps_a_table(log, monkeypatch):
    """As it stands on the page, in a directory of its own."""
    page = (Path(__file__).parents[4] / "docs" / "pipelines.md").read_text()
    text = page.partition("### Upsert and delete by key")[2]
    file = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL)[1])
    log.client.create_stream("customers")
    for name in ("a", "b"):
        after = {"id": 1, "name": name, "more": [1]}
        log.client.append("customers", event("u", after=after), key=b'{"id":1}')
        log.client.append("customers", event("c", after=after | {"id": 2}), key=b'{"id":2}')
    log.client.append("customers", event("d", before={"id": 2}), key=b'{"id":2}')
    log.client.append("customers", None, key=b'{"id":2}')
    monkeypatch.chdir(log.directory)
    run_local(decode_pipeline(file | {"server": log.config["server"]}))
    assert DeltaTable("lake/customers").to_pyarrow_table().select(["id", "name"]).to_pylist() == [
        {"id": 1, "name": "b"}
    ]
