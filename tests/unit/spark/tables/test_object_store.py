"""Tables in an S3-compatible object store: lost and late answers, conflicts, credentials."""

import json
import logging
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline
from strandline.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    UnavailableError,
)
from strandline.spark.connection import forget_client
from strandline.spark.options import TableOptions
from strandline.spark.table import commit, committed_offsets, read_table, table_summary
from strandline.spark.tables.objects import ObjectDirectory
from strandline.spark.tables.open import existing_store, open_store
from strandline.testing import Server
from tests.kit.local_loads import FORMATS, LocalLoad, sql_catalog
from tests.kit.object_stores import BUCKET, KEY, SECRET, ObjectStore
from tests.kit.tables import DAY_MS, SCHEMA, propose, rows

COMMITS = "PUT .*(/commits/0|/_delta_log/0|metadata.json).*"
"""Requests that make a commit, in any format."""


@pytest.fixture
def s3(monkeypatch):
    """An object store, with its secrets in the environment."""
    with ObjectStore() as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        yield store


class Lake:
    """A table of one format in an object store."""

    def __init__(self, s3, directory, table_format):
        self.where = {"table_format": table_format, "storage": s3.storage(), "catalog": {}}
        self.path = f"s3://{BUCKET}/lake/t"
        if table_format == "iceberg":
            self.path = "lake.t"
            self.where["catalog"] = sql_catalog(directory, s3=s3)

    def store(self):
        """The table as one more writer opens it."""
        return open_store(TableOptions(path=self.path, **self.where), SCHEMA)

    def propose(self, *batches, txn="query", batch=0):
        return propose(self.store(), *batches, txn=txn, batch=batch)

    def commit(self, proposal):
        return commit(self.store(), proposal, garbage_age_ms=DAY_MS)

    def values(self):
        store = existing_store(self.path, **self.where)
        found = [batch.column("value").to_pylist() for batch in store.scan(store.load())]
        return sorted(value for values in found for value in values)

    def offsets(self):
        return json.loads(committed_offsets(self.path, **self.where))


@pytest.fixture(params=FORMATS)
def lake(request, s3, tmp_path):
    """A table that does not exist yet."""
    return Lake(s3, tmp_path, request.param)


def expected(**stops):
    return sorted(b"%s/%d" % (p[1:].encode(), o) for p, stop in stops.items() for o in range(stop))


def test_data_and_offsets_are_committed_together(lake):
    """What is committed is read, and the next query starts where it ends; a replay adds nothing."""
    assert lake.commit(lake.propose(rows(0, 0, 10), rows(1, 0, 5)))
    assert lake.commit(lake.propose(rows(0, 10, 12), batch=1))
    assert not lake.commit(lake.propose(rows(0, 10, 12), batch=1))
    assert lake.values() == expected(p0=12, p1=5)
    assert lake.offsets() == {"0": 12, "1": 5}


def test_a_commit_whose_answer_is_lost_counts_once(lake, s3):
    """The store executes each commit's write and drops the answer: its files stay, once."""
    lake.commit(lake.propose(rows(0, 0, 2)))
    for batch in range(1, 5):
        proposal = lake.propose(rows(0, 2 * batch, 2 * batch + 2), batch=batch)
        s3.fail("lose", COMMITS, count=1)
        lake.commit(proposal)
        assert len(s3.heal()) == 1, "no answer was lost"
        assert lake.values() == expected(p0=2 * batch + 2)
    assert lake.offsets() == {"0": 10}


def test_any_answer_may_be_lost_late_or_a_refusal(lake, s3):
    """Of every kind of request, at random: each record is there once."""
    batches, begun = 8, 0
    s3.fail("lose", chance=0.06)
    s3.fail("refuse", chance=0.06)
    while begun < batches:
        try:
            lake.commit(lake.propose(rows(0, 3 * begun, 3 * begun + 3), batch=begun))
        except UnavailableError:
            continue  # as a load that is run again
        begun += 1
    assert len(s3.heal()) > 5
    assert lake.values() == expected(p0=3 * batches)
    assert lake.offsets() == {"0": 3 * batches}


def test_of_writers_of_one_range_one_commits(lake):
    """Four loads of the same records start at once; their records are there once."""
    lake.commit(lake.propose(rows(0, 0, 4)))
    proposals = [lake.propose(rows(0, 4, 8), txn=f"q{n}") for n in range(4)]
    start = threading.Barrier(4)

    def run(proposal):
        start.wait()
        try:
            return lake.commit(proposal)
        except InvalidRequestError:
            return False

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(run, proposals)) == [False, False, False, True]
    assert lake.values() == expected(p0=8)


def test_loads_of_other_partitions_do_not_lose_each_other(lake):
    """Commits that race follow one another."""
    lake.commit(lake.propose(rows(9, 0, 1), txn="first"))
    proposals = [lake.propose(rows(n, 0, 5), txn=f"q{n}") for n in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(lake.commit, proposals))
    assert lake.values() == expected(p0=5, p1=5, p2=5, p9=1)


def test_an_uploaded_file_that_is_gone_is_not_committed(lake):
    """Nothing is committed without its data."""
    proposal = lake.propose(rows(0, 0, 4))
    store = lake.store()
    store.directory.discard([file.staged for file in proposal.files])
    with pytest.raises(DataLossError, match="is gone"):
        lake.commit(proposal)
    assert existing_store(lake.path, **lake.where).load().state is None


def test_a_store_that_is_away_is_retriable(lake, s3, monkeypatch):
    """The error says which store, and not with which secret."""
    lake.commit(lake.propose(rows(0, 0, 2)))
    monkeypatch.setattr(ObjectDirectory, "retry_pauses_s", (0.1,))
    monkeypatch.setattr("strandline.spark.tables.objects._RETRY", {"max_retries": 0})
    s3.fail("refuse")
    with pytest.raises(UnavailableError) as caught:
        lake.commit(lake.propose(rows(0, 2, 4), batch=1))
    assert SECRET not in str(caught.value)
    assert not {"\n", "\x1b"} & set(str(caught.value))
    s3.heal()
    lake.commit(lake.propose(rows(0, 2, 4), batch=1))
    assert lake.values() == expected(p0=4)


def test_plain_files_are_a_dataset(s3, tmp_path):
    """``read_table`` opens the committed objects with pyarrow's own file system."""
    lake = Lake(s3, tmp_path, "parquet")
    lake.commit(lake.propose(rows(0, 0, 10)))
    lake.propose(rows(0, 10, 20))  # never committed
    found = read_table(lake.path, storage=s3.storage())
    assert sorted(found.to_table().column("value").to_pylist()) == expected(p0=10)
    assert table_summary(lake.path, storage=s3.storage()).rows == 10


def test_secrets_are_references(s3, tmp_path, monkeypatch, caplog):
    """A secret in place of its reference is rejected and not repeated; a file may have it."""
    path = f"s3://{BUCKET}/t"
    for storage, message in (
        ({"secret_access_key": SECRET}, "must be env:NAME or file:PATH"),
        ({"secret_access_key": "env:NOT_SET"}, "NOT_SET is not set"),
        ({"access_key_id": f"file:{tmp_path}/none"}, "cannot read"),
        ({"secret": SECRET}, "unknown setting 'secret'"),
    ):
        with pytest.raises(InvalidConfigError, match=message) as caught:
            ObjectDirectory(path, storage=storage)
        assert SECRET not in str(caught.value)
    for wrong in ("gs://b/t", "s3://bucket", "https://example.org/t"):
        with pytest.raises(InvalidConfigError, match="s3://bucket/path"):
            ObjectDirectory(wrong, storage={})
    (tmp_path / "key").write_text(f"{KEY}\n")
    caplog.set_level(logging.DEBUG)
    made = ObjectDirectory(path, storage=s3.storage() | {"access_key_id": f"file:{tmp_path}/key"})
    assert made.create_file("x", b"1")
    assert not made.create_file("x", b"2")
    assert made.read("x") == b"1"
    assert SECRET.encode() not in pickle.dumps(made)
    assert SECRET not in caplog.text
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    assert ObjectDirectory(path, storage={}).read("x") == b"1"


@pytest.fixture
def log(s3, tmp_path):
    """A broker with a stream of two partitions, and a load of it."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders", partitions=2)
        yield LocalLoad(str(url), client, tmp_path, s3=s3)
        forget_client(str(url))


def live_ids(log):
    """The ids of the table and of the log's tail, as one."""
    table = log.config["into"].replace("{stream}", "orders")
    view = strandline.table(
        "orders", server=log.config["server"], table=table, values="json", **log.where()
    )
    return view.to_table().column("id").sort().to_pylist()


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_load_into_an_object_store_takes_each_record_once(log, table_format):
    """Run after run, with a lost checkpoint too; what is not loaded yet is read with it."""
    log.use(table_format)
    log.append(range(100))
    log.run(batch_bytes_max=1000)
    log.append(range(100, 150))
    assert live_ids(log) == list(range(150))
    assert log.run(checkpoint=str(log.directory / "another"))
    assert log.run() == []
    log.append(range(150, 160))
    assert live_ids(log) == list(range(160))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_load_into_an_object_store_takes_each_record_once(log, table_format):
    """By SIGKILL at random moments, while answers are lost."""
    log.use(table_format)
    log.s3.fail("lose", chance=0.02)
    log.killed(3, lambda n: log.append(range(400 * n, 400 * n + 400)), pause_s=1.0, seed=5)
    log.s3.heal()
    log.run()
    assert live_ids(log) == list(range(1200))
