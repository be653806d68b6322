"""A table together with the log's tail: no gap and no double, whatever commits meanwhile."""

import random
import threading
import time

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import strandline
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidRequestError,
)
from strandline.spark.connection import forget_client, identity_of, read_rows
from strandline.spark.options import ReadOptions, TableOptions
from strandline.spark.planning import OffsetRange
from strandline.spark.table import commit
from strandline.spark.tables.log import Proposal, encode_schema
from strandline.spark.tables.open import existing_store, open_store
from strandline.spark.tables.stage import FileSettings, stage
from strandline.testing import Server
from strandline.values.decode import RECORD_SCHEMA, decoded_schema
from tests.kit.tables import DAY_MS

FORMATS = ("parquet", "delta", "iceberg")
NUMBERS = pa.schema([("n", pa.int64())])


@pytest.fixture
def broker():
    """A broker with the stream ``orders`` of two partitions."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        yield str(url), client
        forget_client(str(url))


class Load:
    """A load of ``orders`` into a table, a step at a time."""

    def __init__(self, url, client, directory, table_format, schema=RECORD_SCHEMA):
        self.client = client
        self.schema = schema
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        (directory / "warehouse").mkdir()
        path = "lake.orders" if table_format == "iceberg" else str(directory / "orders")
        self.where = {"table": path, "server": url, "table_format": table_format}
        if table_format == "iceberg":
            self.where["catalog"] = catalog
        self.table = TableOptions(path=path, table_format=table_format, catalog=catalog)
        self.options = ReadOptions(server=url, stream="orders")
        self.identity = identity_of(client.stream_info("orders"))
        self.batch = -1

    def view(self, **options):
        return strandline.table("orders", **self.where, **options)

    def commit(self, ends, decode=None):
        """Commit the records up to these offsets."""
        store = open_store(self.table, self.schema)
        store.create()
        state = store.load().state
        starts = {} if state is None else state.offsets
        settings = FileSettings(schema=self.schema, prefix="t", decode=decode)
        ranges = [OffsetRange(p, starts.get(p, 0), end) for p, end in ends.items()]
        if not any(each.records_max for each in ranges):
            return
        read = [read_rows(self.options, r, RECORD_SCHEMA, identity=self.identity) for r in ranges]
        staged = [stage(store, rows, settings) for rows in read]
        self.batch += 1
        proposal = Proposal(
            txn_id="load",
            batch=self.batch,
            files=[file for each in staged for file in each.files],
            ranges={p: r for each in staged for p, r in each.ranges.items()},
            arrow_schema=encode_schema(self.schema),
            tracks_offsets=True,
            stream=self.identity,
        )
        commit(store, proposal, garbage_age_ms=DAY_MS)


def append(client, numbers):
    for n in numbers:
        client.append("orders", b"%d" % n, key=f"k{n}", partition=n % 2)


def numbers(view):
    return sorted(int(value) for value in view.to_table().column("value").to_pylist())


@pytest.mark.parametrize("table_format", FORMATS)
def test_each_record_is_there_once_while_loads_commit(broker, tmp_path, table_format):
    """At random moments, with appends and commits going on: everything acknowledged before, and
    nothing twice.
    """
    url, client = broker
    load = Load(url, client, tmp_path, table_format)
    open_store(load.table, RECORD_SCHEMA)  # pyiceberg's catalog is not made by two at once
    appended, over, failures = 0, threading.Event(), []
    rng = random.Random(7)

    def keep_appending():
        nonlocal appended
        with strandline.connect(url) as mine:
            while not over.is_set():
                append(mine, range(appended, appended + 10))
                appended += 10
                time.sleep(0.02)

    def keep_loading():
        while not over.is_set():
            load.commit(client.offsets("orders"))
            time.sleep(0.01)

    def watched(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=watched, args=[w]) for w in (keep_appending, keep_loading)]
    for thread in threads:
        thread.start()
    try:
        loaded = set()
        for _ in range(30):
            time.sleep(rng.random() * 0.05)
            at_least = appended
            view = load.view()
            pause = rng.random() * 0.05
            time.sleep(pause)
            found = numbers(view)
            for parity in (0, 1):
                mine = [n for n in found if n % 2 == parity]
                assert mine == list(range(parity, parity + 2 * len(mine), 2)), "a gap or a double"
            assert set(range(at_least)) <= set(found)
            loaded.add(load.batch)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not failures
    assert len(loaded) > 2, "too few commits for the claim"


@pytest.mark.parametrize("table_format", FORMATS)
def test_the_table_and_its_tail_are_one_relation(broker, tmp_path, table_format):
    """Polars and DuckDB take it; reading it again gives the same rows, in the table's columns."""
    url, client = broker
    load = Load(url, client, tmp_path, table_format)
    append(client, range(6))
    load.commit({0: 2, 1: 3})
    append(client, range(6, 9))
    view = load.view()
    append(client, range(9, 11))
    load.commit(client.offsets("orders"))
    assert numbers(view) == numbers(view) == list(range(9))
    assert [(r.partition, r.start, r.stop) for r in view.tail] == [(0, 2, 5), (1, 3, 4)]
    assert view.to_table().schema.equals(RECORD_SCHEMA)
    assert pl.DataFrame(view)["key"].sort().to_list() == [b"k%d" % n for n in range(9)]
    assert duckdb.sql('SELECT count(*), max("offset") FROM view').fetchall() == [(9, 4)]
    assert numbers(load.view()) == list(range(11))


def test_before_the_first_commit_everything_is_in_the_log(broker, tmp_path):
    """So that nothing has to wait for a load; decoded columns are not known yet."""
    url, client = broker
    load = Load(url, client, tmp_path, "parquet")
    append(client, range(3))
    assert numbers(load.view()) == [0, 1, 2]
    with pytest.raises(InvalidConfigError, match="first commit"):
        load.view(values="json")


def test_values_are_decoded_as_the_load_does(broker, tmp_path):
    """The tail has the columns of the table; what a load makes a dead letter may be left out."""
    from strandline.spark.tables.live import _decoder

    url, client = broker
    schema = decoded_schema(RECORD_SCHEMA, NUMBERS)
    load = Load(url, client, tmp_path, "parquet", schema=schema)
    for n in range(3):
        client.append("orders", b'{"n": %d}' % n, partition=0)
    load.commit({0: 2}, decode=_decoder(schema, "json", skip_invalid=False))
    found = load.view(values="json").to_table()
    assert found.column_names[:2] == ["_partition", "_offset"]
    assert found.column("n").to_pylist() == [0, 1, 2]
    client.append("orders", b"not JSON")
    with pytest.raises(InvalidRecordError, match="skip_invalid"):
        load.view(values="json").to_table()
    assert load.view(values="json", skip_invalid=True).to_table().num_rows == 3
    with pytest.raises(InvalidConfigError, match="'values'"):
        load.view()


def test_a_gap_between_table_and_log_is_an_error(broker, tmp_path):
    """Records that retention deleted before they were loaded are missed, not passed over."""
    url, client = broker
    load = Load(url, client, tmp_path, "parquet")
    client.delete_stream("orders")
    client.create_stream("orders", segment_bytes=1 << 20)
    load.identity = identity_of(client.stream_info("orders"))
    for _ in range(4):
        client.append_batch("orders", pa.table({"value": [b"0" * 700_000]}))
    load.commit({0: 1})
    client.delete_records("orders", 3)
    assert client.offsets("orders", "earliest")[0] > 1, "nothing was deleted"
    with pytest.raises(DataLossError, match="deleted"):
        load.view()


def test_a_table_of_another_stream_is_rejected(broker, tmp_path):
    """Also one of the same name that was created again."""
    url, client = broker
    load = Load(url, client, tmp_path, "parquet")
    append(client, range(2))
    load.commit(client.offsets("orders"))
    client.delete_stream("orders")
    client.create_stream("orders", partitions=2)
    with pytest.raises(InvalidRequestError, match="holds records of stream orders@"):
        load.view()


def test_a_table_of_computed_rows_is_rejected(broker, tmp_path):
    """The log has no rows of them."""
    url, _ = broker
    for schema, reason in (
        (pa.schema([("n", pa.int64())]), "where the log goes on"),
        (RECORD_SCHEMA.append(pa.field("n", pa.int64())), "computed"),
    ):
        store = existing_store(str(tmp_path / reason))
        store.create()
        proposal = Proposal(
            txn_id="q",
            batch=0,
            files=[],
            arrow_schema=encode_schema(schema),
            tracks_offsets="offset" in schema.names,
        )
        commit(store, proposal, garbage_age_ms=DAY_MS)
        with pytest.raises(InvalidConfigError, match=reason):
            strandline.table("orders", table=str(tmp_path / reason), server=url)
