"""Tables that get the columns of a new version of their stream's schema, whatever is killed."""

import json
import logging
import threading

import deltalake
import duckdb
import polars as pl
import pytest
from deltalake.exceptions import CommitFailedError

import strandline
from strandline.errors import InvalidConfigError, InvalidRequestError, UnavailableError
from strandline.spark.pipelines.config import decode_pipeline
from strandline.spark.pipelines.local import run_local
from strandline.spark.table import read_table
from strandline.spark.tables import log as table_log
from strandline.spark.tables.compact import compact
from tests.kit.local_loads import FORMATS


def publish(load, *rows):
    """Publish rows as JSON."""
    for row in rows:
        load.client.append("orders", json.dumps(row).encode())


def set_schema(load, columns, **renamed):
    """Set a version; of columns that are renamed, by their ids."""
    load.client.schemas.set("orders", columns)
    if renamed:
        newest = [
            {"id": c.id, "name": renamed.get(c.name, c.name), "type": c.type}
            for c in load.client.schemas.get("orders").columns
        ]
        load.client.schemas.set("orders", json.dumps(newest))


def loaded(load, *names):
    """The rows in the order of their offsets, as values of these columns."""
    rows = sorted(load.rows(), key=lambda row: row["_offset"])
    return [tuple(row[name] for name in names) for row in rows]


def columns(load):
    """The columns of values in the table's state, and their types."""
    schema = table_log.decode_schema(load.state()[1].state.arrow_schema)
    return {each.name: str(each.type) for each in schema if not each.name.startswith("_")}


def as_readers_see(load):
    """The columns ``id`` and ``price`` as those see them who know nothing of us, by id."""
    table_format, path = load.config.get("format"), load.config["into"].format(stream="orders")
    if table_format == "delta":
        found = deltalake.DeltaTable(path).to_pyarrow_table()
    elif table_format == "iceberg":
        found = load.state()[1].at.scan().to_arrow()
    else:
        found = read_table(path).to_table()
        files = f"read_parquet('{path}/*.parquet', union_by_name = true)"
        by_duckdb = duckdb.sql(f"SELECT id, price FROM {files} ORDER BY id").fetchall()
        assert by_duckdb == pl.DataFrame(found).select("id", "price").sort("id").rows()
    return pl.DataFrame(found).select("id", "price").sort("id").rows()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_gets_the_columns_of_a_new_version(load, table_format):
    """Rows before are null there, for every reader; fields within a column are columns, too."""
    load.use(table_format)
    set_schema(load, "id INT, place STRUCT<city: STRING>")
    publish(load, {"id": 1, "place": {"city": "Rome"}, "price": 9})
    load.run()
    set_schema(load, "price DOUBLE, id INT, place STRUCT<city: STRING, zip: INT>, at TIMESTAMP_NTZ")
    publish(load, {"id": 2, "place": {"city": "Oslo", "zip": 7}, "price": 1.5, "at": "2026-11-27"})
    load.run()
    assert loaded(load, "id", "price") == [(1, None), (2, 1.5)]
    assert [place for (place,) in loaded(load, "place")] == [
        {"city": "Rome", "zip": None},
        {"city": "Oslo", "zip": 7},
    ]
    assert list(columns(load)) == ["id", "place", "price", "at"]
    assert as_readers_see(load) == [(1, None), (2, 1.5)]
    publish(load, {"id": 3, "price": 2})
    load.run()
    assert loaded(load, "id", "price")[-1] == (3, 2.0)


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_type_is_widened_where_the_format_can(load, table_format, caplog):
    """In Delta Lake the column stays, what is too wide is a dead letter, and a line says so."""
    load.use(table_format)
    load.config["dead_letters"] = "bad"
    set_schema(load, "id INT, price FLOAT, cents DECIMAL(5,2)")
    publish(load, {"id": 1, "price": 0.5, "cents": 1.25})
    load.run()
    set_schema(load, "id BIGINT, price DOUBLE, cents DECIMAL(9,2)")
    publish(load, {"id": 1 << 40, "price": 0.5, "cents": 1.25})
    with caplog.at_level(logging.WARNING):
        load.run()
    if table_format == "delta":
        assert columns(load)["id"] == "int32"
        assert [json.loads(each)["id"] for each in load.letters()] == [1 << 40]
        assert "keeps the columns id int, price float, cents decimal(5,2), although" in caplog.text
        return
    assert columns(load) == {"id": "int64", "price": "double", "cents": "decimal128(9, 2)"}
    assert load.letters() == []
    assert as_readers_see(load) == [(1, 0.5), (1 << 40, 0.5)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_renamed_column_is_the_same_one(load, table_format):
    """Iceberg knows it by its id and has the new name; elsewhere it goes on under the old one."""
    load.use(table_format)
    set_schema(load, "id INT, customer STRING")
    publish(load, {"id": 1, "customer": "ada"})
    load.run()
    set_schema(load, "id INT, customer STRING, price DOUBLE", customer="client")
    publish(load, {"id": 2, "client": "bob", "price": 1.5})
    load.run()
    set_schema(load, "id INT, client STRING, price DOUBLE", client="buyer", price="cost")
    publish(load, {"id": 3, "buyer": "eve", "cost": 2.5}, {"id": 4, "customer": "zoe", "price": 3})
    load.run()
    names = ("buyer", "cost") if table_format == "iceberg" else ("customer", "price")
    assert list(columns(load)) == ["id", *names]
    assert loaded(load, *names) == [("ada", None), ("bob", 1.5), ("eve", 2.5), ("zoe", 3.0)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_running_load_gets_the_columns_of_the_next_batch(load, table_format):
    """A version that is set before its values are published is in time, without a new start."""
    load.use(table_format)
    set_schema(load, "id INT")
    publish(load, {"id": 1}, {"id": 2, "price": 1.5}, {"id": 3, "cost": 2.5})
    lines = []

    def report(line):
        lines.append(line)
        if len(lines) == 1:
            set_schema(load, "id INT, price DOUBLE")
        elif len(lines) == 2:
            set_schema(load, "id BIGINT, price DOUBLE", price="cost")

    run_local(decode_pipeline(load.config | {"batch_bytes_max": 1}), report=report)
    assert len(lines) == 3
    name = "cost" if table_format == "iceberg" else "price"
    assert loaded(load, "id", name) == [(1, None), (2, 1.5), (3, 2.5)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_old_and_new_files_are_merged(load, table_format):
    """So that the number of files stays bounded over versions of the schema."""
    load.use(table_format)
    set_schema(load, "id INT, customer STRING")
    publish(load, *({"id": n, "customer": "ada"} for n in range(3)))
    load.run(batch_bytes_max=1)
    set_schema(load, "id BIGINT, customer STRING, price DOUBLE", customer="client")
    publish(load, *({"id": n, "client": "bob", "price": 1.5} for n in range(3, 6)))
    load.run(batch_bytes_max=1)
    store, before = load.state()
    assert len(store.live_files(before)) == 6
    assert compact(store, file_bytes=1 << 20, files_max=2) == 6
    name = "client" if table_format == "iceberg" else "customer"
    assert loaded(load, "id", name, "price") == [
        *((n, "ada", None) for n in range(3)),
        *((n, "bob", 1.5) for n in range(3, 6)),
    ]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_rows_are_replaced_across_versions(load, table_format):
    """Files from before are rewritten with the new columns; a primary key keeps its name."""
    load.use(table_format)
    load.config |= {"mode": "upsert", "primary_key": ["id"]}
    set_schema(load, "id INT, customer STRING")
    publish(load, *({"id": n, "customer": "ada"} for n in range(4)))
    load.run()
    set_schema(load, "id BIGINT, customer STRING, price DOUBLE", customer="client", id="number")
    publish(load, {"number": 1, "client": "bob", "price": 1.5})
    load.client.append("orders", None, key=b'{"number": 2}')
    load.run()
    name = "client" if table_format == "iceberg" else "customer"
    assert sorted(loaded(load, "id", name, "price")) == [
        (0, "ada", None),
        (1, "bob", 1.5),
        (3, "ada", None),
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_tail_has_the_new_columns_before_the_table(load, table_format):
    """``strandline.table`` is what the next commit would make of it."""
    load.use(table_format)
    set_schema(load, "id INT, customer STRING")
    publish(load, {"id": 1, "customer": "ada"})
    load.run()
    set_schema(load, "id BIGINT, customer STRING, price DOUBLE", customer="client")
    publish(load, {"id": 2, "client": "bob", "price": 1.5})
    path = load.config["into"].format(stream="orders")
    where = load.where()
    found = strandline.table(
        "orders", table=path, server=load.config["server"], values="json", **where
    )
    name = "client" if table_format == "iceberg" else "customer"
    rows = pl.DataFrame(found).select("id", name, "price").rows()
    assert rows == [(1, "ada", None), (2, "bob", 1.5)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_load_with_new_versions_takes_each_record_once(load, table_format):
    """By SIGKILL at random moments, while versions are set; no value of a new column is lost."""
    load.use(table_format)
    load.config["compaction"] = True
    set_schema(load, "id BIGINT")

    def begin(number):
        new = [f"n{each} BIGINT" for each in range(number + 1)]
        set_schema(load, ", ".join(["id BIGINT", *new]))
        publish(load, *({"id": n, f"n{number}": n} for n in range(80 * number, 80 * number + 80)))

    load.killed(3, begin, pause_s=0.3)
    load.run()
    rows = loaded(load, "id", "n0", "n1", "n2")
    assert rows == [
        (n, *(n if n // 80 == version else None for version in range(3))) for n in range(240)
    ]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_change_without_its_data_is_completed(load, table_format, monkeypatch):
    """A failure after the columns and before the data loses nothing and repeats nothing."""
    load.use(table_format)
    set_schema(load, "id INT, place STRUCT<city: STRING>")
    publish(load, {"id": 1, "place": {"city": "Rome"}})
    load.run()
    set_schema(load, "id INT, place STRUCT<city: STRING, zip: INT>, price DOUBLE")
    publish(load, {"id": 2, "place": {"city": "Oslo", "zip": 7}, "price": 1.5})
    store = type(load.state()[0])
    publish_once, attempts = store.publish, []

    def fail(self, after, state, proposal):
        attempts.append(
            publish_once(self, after, state, proposal) if table_format == "delta" else 0
        )
        raise UnavailableError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(store, "publish", fail)
        with pytest.raises(UnavailableError, match="killed"):
            load.run()
    # Delta Lake's library adds columns in a commit of their own, which has no data.
    assert attempts == [False] if table_format == "delta" else [0]
    assert loaded(load, "id") == [(1,)]
    load.run()
    assert loaded(load, "id", "price") == [(1, None), (2, 1.5)]
    load.run()
    assert len(load.rows()) == 2


@pytest.mark.parametrize("table_format", FORMATS)
def test_of_two_loads_with_a_new_version_one_commits(load, table_format, tmp_path):
    """The other is rejected for its offsets, also if both are to change the columns."""
    load.use(table_format)
    set_schema(load, "id INT")
    publish(load, {"id": 1})
    load.run()
    set_schema(load, "id INT, price DOUBLE")
    publish(load, *({"id": n, "price": n} for n in range(2, 30)))
    barrier, errors = threading.Barrier(2), []

    def run(directory):
        barrier.wait()
        config = load.config | {"checkpoint": str(tmp_path / directory), "batch_bytes_max": 100}
        try:
            run_local(decode_pipeline(config))
        except InvalidRequestError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.run(checkpoint=str(tmp_path / "three"))
    assert loaded(load, "id", "price") == [(1, None), *((n, float(n)) for n in range(2, 30))]
    assert all("committed already" in each for each in errors)


def test_a_lost_race_for_the_columns_is_decided_anew(load, monkeypatch):
    """Somebody else's commit comes between the look at a Delta table and the new columns."""
    load.use("delta")
    set_schema(load, "id INT")
    publish(load, {"id": 1})
    load.run()
    set_schema(load, "id INT, price DOUBLE")
    publish(load, {"id": 2, "price": 1.5})
    store = type(load.state()[0])
    publish_once, outcomes = store.publish, []

    def race(self, after, state, proposal):
        if not outcomes:
            path = load.config["into"].format(stream="orders")
            theirs = deltalake.Field("theirs", deltalake.schema.PrimitiveType("string"))
            deltalake.DeltaTable(path).alter.add_columns(theirs)
        outcomes.append(publish_once(self, after, state, proposal))
        return outcomes[-1]

    monkeypatch.setattr(store, "publish", race)
    load.run()
    assert outcomes == [False, False, True]
    assert loaded(load, "id", "price") == [(1, None), (2, 1.5)]


def test_a_failure_to_add_columns_is_named(load, monkeypatch):
    """It is not taken for a lost race, which would be tried again without end."""
    load.use("delta")
    set_schema(load, "id INT")
    publish(load, {"id": 1})
    load.run()
    set_schema(load, "id INT, price DOUBLE")
    publish(load, {"id": 2})

    def fail(*_, **__):
        raise CommitFailedError("no luck")

    monkeypatch.setattr(deltalake.table.TableAlterer, "add_columns", fail)
    with pytest.raises(UnavailableError, match=r"the Delta log of .*: no luck"):
        load.run()


@pytest.mark.parametrize(
    ("table_format", "message"),
    [
        ("delta", "has a column price string of somebody else, and the stream's schema one of dou"),
        ("iceberg", "cannot add rows to table lake.orders: .*price"),
    ],
)
def test_a_column_of_somebody_else_is_not_taken(load, table_format, message):
    """It has the name of a new one, and another type."""
    load.use(table_format)
    set_schema(load, "id INT")
    publish(load, {"id": 1})
    load.run()
    if table_format == "delta":
        path = load.config["into"].format(stream="orders")
        theirs = deltalake.Field("price", deltalake.schema.PrimitiveType("string"))
        deltalake.DeltaTable(path).alter.add_columns(theirs)
    else:
        with load.state()[1].at.update_schema() as update:
            from pyiceberg.types import StringType

            update.add_column("price", StringType())
    set_schema(load, "id INT, price DOUBLE")
    publish(load, {"id": 2, "price": 1.5})
    with pytest.raises(InvalidRequestError, match=message):
        load.run()
    assert loaded(load, "id") == [(1,)]


def test_columns_that_differ_in_case_are_refused_at_the_start(load):
    """A table that was begun without the schema has a column that differs in case alone."""
    publish(load, {"id": 1, "Price": 1.5})
    load.run()
    set_schema(load, "id BIGINT, price DOUBLE")
    with pytest.raises(InvalidConfigError, match="'Price' and 'price' differ by case alone"):
        load.run()
