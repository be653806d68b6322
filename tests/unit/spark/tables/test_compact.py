"""Compaction: few files whatever the trigger, in commits like any other."""

import json
import threading
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strandline
from strandline.errors import UnavailableError
from strandline.spark.connection import forget_client
from strandline.spark.options import TableOptions
from strandline.spark.table import commit, committed_offsets, read_table, table_summary
from strandline.spark.tables import compact as table_compact
from strandline.spark.tables import iceberg
from strandline.spark.tables.compact import FILES_MAX, choose_files, compact
from strandline.spark.tables.iceberg import open_catalog
from strandline.spark.tables.log import LiveFile
from strandline.spark.tables.open import existing_store, open_store
from strandline.testing import Server
from tests.kit.local_loads import FORMATS, LocalLoad, sql_catalog
from tests.kit.object_stores import BUCKET, ObjectStore
from tests.kit.tables import DAY_MS, SCHEMA, propose, rows

FILE_BYTES = 512 << 20


class Lake:
    """A table of one format in a directory, or an object store."""

    def __init__(self, directory, table_format, s3=None):
        self.format = table_format
        top = f"s3://{BUCKET}" if s3 else f"file://{directory}"
        self.path = "lake.t" if table_format == "iceberg" else f"{top}/t"
        self.where = {
            "table_format": table_format,
            "storage": s3.storage() if s3 else {},
            "catalog": sql_catalog(directory, s3=s3),
        }

    def store(self):
        """The table as one more writer opens it."""
        return open_store(TableOptions(path=self.path, **self.where), SCHEMA)

    def commit(self, *batches, batch):
        """One micro-batch, as a new process would."""
        proposal = propose(self.store(), *batches, batch=batch)
        return commit(self.store(), proposal, garbage_age_ms=DAY_MS)

    def live(self):
        """The table as it is now."""
        store = existing_store(self.path, **self.where)
        return store, store.load()

    def files(self):
        store, loaded = self.live()
        return store.live_files(loaded)

    def values(self):
        store, loaded = self.live()
        return values_of(store, loaded)

    def offsets(self):
        return json.loads(committed_offsets(self.path, **self.where))


def values_of(store, loaded):
    found = [batch.column("value").to_pylist() for batch in store.scan(loaded)]
    return sorted(value for values in found for value in values)


@pytest.fixture(params=FORMATS)
def lake(request, tmp_path):
    """A table that does not exist yet."""
    return Lake(tmp_path, request.param)


def expected(**stops):
    return sorted(b"%s/%d" % (p[1:].encode(), o) for p, stop in stops.items() for o in range(stop))


def sized(*sizes):
    return [LiveFile(path=str(n), rows=1, size_bytes=size) for n, size in enumerate(sizes)]


def test_few_small_files_are_left_alone():
    """Nor are large ones merged, however many."""
    assert choose_files(sized(*[10] * 24), files_max=24, file_bytes=1000) == []
    assert choose_files(sized(*[600] * 99), files_max=24, file_bytes=1000) == []


@given(
    sizes=st.lists(st.integers(1, 999), max_size=80),
    files_max=st.integers(2, 30),
    file_bytes=st.integers(10, 3000),
)
def test_a_merge_is_worth_it_and_bounded(sizes, files_max, file_bytes):
    """It has at least two files, all small and none larger than what is left out, and its size is
    at most that of one file, or of two small ones.
    """
    chosen = choose_files(sized(*sizes), files_max=files_max, file_bytes=file_bytes)
    small = [size for size in sizes if size < file_bytes // 2]
    assert bool(chosen) == (len(small) > files_max)
    if chosen:
        merged = [file.size_bytes for file in chosen]
        assert len(merged) >= 2
        assert sum(merged) <= file_bytes
        assert sorted(small)[: len(merged)] == merged


def test_a_row_is_merged_a_few_times_only():
    """A day of commits every second leaves 24 files, and rewrites each row about ten times."""
    files, rewritten = [], 0
    for n in range(86_400):
        files.append(LiveFile(path=str(n), rows=1, size_bytes=100))
        chosen = choose_files(files, files_max=FILES_MAX, file_bytes=FILE_BYTES)
        if chosen:
            names = {file.path for file in chosen}
            total = sum(file.size_bytes for file in chosen)
            rewritten += total
            files = [file for file in files if file.path not in names]
            files.append(LiveFile(path=f"m{n}", rows=1, size_bytes=total))
        assert len(files) <= FILES_MAX
    assert rewritten / (86_400 * 100) < 12


def test_a_table_keeps_few_files_and_every_row(lake):
    """Data, offsets and the memory of the last batch survive each merge."""
    for batch in range(40):
        assert lake.commit(rows(0, batch * 2, batch * 2 + 2), batch=batch)
        compact(lake.store(), file_bytes=FILE_BYTES)
        assert len(lake.files()) <= FILES_MAX
        assert not lake.commit(rows(0, batch * 2, batch * 2 + 2), batch=batch), "a replay"
    assert lake.values() == expected(p0=80)
    assert lake.offsets() == {"0": 80}
    assert len(lake.files()) > 1, "everything was merged at every step"


def test_a_merged_table_of_plain_files_is_a_dataset(tmp_path):
    """The summary still counts every commit and row."""
    lake = Lake(tmp_path, "parquet")
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
    lake.commit(rows(0, 4, 6), batch=4)
    found = read_table(lake.path).to_table()
    assert sorted(found.column("value").to_pylist()) == expected(p0=6)
    summary = table_summary(lake.path)
    assert (summary.commits, summary.rows, summary.offsets) == (6, 6, {0: 6})


def test_a_reader_of_an_older_version_is_not_disturbed(lake):
    """What was loaded before a merge is read after it."""
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    before = lake.live()
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
    assert values_of(*before) == expected(p0=4)
    assert lake.values() == expected(p0=4)


def test_a_load_that_commits_first_makes_a_merge_give_up(lake, monkeypatch):
    """And its rows are there once; the next merge takes them."""
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    staging = table_compact.stage

    def stage(*args):
        done = staging(*args)
        lake.commit(rows(0, 4, 5), batch=4)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(table_compact, "stage", stage)
        assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) == 0
    assert lake.values() == expected(p0=5)
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
    assert lake.values() == expected(p0=5)


def test_a_merge_that_commits_first_makes_a_load_decide_anew(lake):
    """A proposal staged before a merge is committed after it."""
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    proposal = propose(lake.store(), rows(0, 4, 6), batch=4)
    store = lake.store()
    load = store.load

    def merged_in_between():
        found = load()
        store.load = load
        assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
        return found

    store.load = merged_in_between
    assert commit(store, proposal, garbage_age_ms=DAY_MS)
    assert lake.values() == expected(p0=6)
    assert lake.offsets() == {"0": 6}


def test_old_snapshots_expire(lake, tmp_path):
    """Replaced files go once they are older than asked for, and no others."""

    def on_disk():
        return sum(
            path.suffix == ".parquet" and "staging" not in path.parts
            for path in tmp_path.rglob("*.parquet")
        )

    for batch in range(30):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
        compact(lake.store(), file_bytes=FILE_BYTES)
    before = on_disk()
    assert before > len(lake.files())
    lake.store().expire(age_s=3600)
    assert on_disk() == before
    time.sleep(0.01)
    lake.store().expire(age_s=0)
    assert on_disk() < before
    assert lake.values() == expected(p0=30)
    assert lake.commit(rows(0, 30, 31), batch=30)
    assert not lake.commit(rows(0, 30, 31), batch=30)
    assert lake.values() == expected(p0=31)


def test_of_two_loads_that_expire_the_same_snapshots_none_fails(tmp_path, monkeypatch):
    """The one that comes second has nothing left to do."""
    lake = Lake(tmp_path, "iceberg")
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
    store, paths = lake.store(), iceberg._all_paths

    def overtaken(table):
        found = paths(table)
        monkeypatch.setattr(iceberg, "_all_paths", paths)
        assert lake.store().expire(age_s=0) > 0
        return found

    monkeypatch.setattr(iceberg, "_all_paths", overtaken)
    assert store.expire(age_s=0) == 0
    assert lake.values() == expected(p0=4)


def test_columns_that_others_added_stop_a_merge_of_their_files(tmp_path):
    """A Delta table with one more nullable column keeps its values."""
    from deltalake import DeltaTable, Field, write_deltalake

    lake = Lake(tmp_path, "delta")
    for batch in range(4):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    path = str(tmp_path / "t")
    DeltaTable(path).alter.add_columns([Field("note", "string")])
    theirs = pa.Table.from_batches([rows(9, 0, 1)]).append_column("note", pa.array(["kept"]))
    write_deltalake(path, theirs, mode="append")
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) == 4
    found = DeltaTable(path).to_pyarrow_table()
    assert sorted(found.column("value").to_pylist()) == [*expected(p0=4), b"9/0"]
    assert [note for note in found.column("note").to_pylist() if note] == ["kept"]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_rows_that_others_deleted_stay_deleted(tmp_path, table_format):
    """A merge after a DELETE does not bring them back."""
    lake = Lake(tmp_path, table_format)
    for batch in range(5):
        lake.commit(rows(0, batch * 2, batch * 2 + 2), batch=batch)
    if lake.format == "delta":
        from deltalake import DeltaTable

        DeltaTable(lake.path).delete("offset = 3")
    else:
        table = open_catalog(lake.where["catalog"]).load_table(lake.path)
        table.delete("offset = 3")
    assert compact(lake.store(), file_bytes=FILE_BYTES, files_max=2) > 1
    assert lake.values() == [value for value in expected(p0=10) if value != b"0/3"]
    assert lake.commit(rows(0, 10, 11), batch=5)


@pytest.mark.parametrize("table_format", FORMATS)
def test_merges_in_an_object_store_keep_every_row_while_answers_are_lost(
    table_format, tmp_path, monkeypatch
):
    """An outcome that is not known removes nothing."""
    with ObjectStore() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        lake, batch = Lake(tmp_path, table_format, s3), 0
        s3.fail("lose", "(PUT|DELETE) .*", chance=0.15)
        while batch < 12:
            try:
                lake.commit(rows(0, batch, batch + 1), batch=batch)
                compact(lake.store(), file_bytes=FILE_BYTES, files_max=4)
            except UnavailableError:
                continue
            batch += 1
        assert len(s3.heal()) > 5
        assert lake.values() == expected(p0=12)
        assert lake.offsets() == {"0": 12}
        assert len(lake.files()) < 8


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_killed_load_with_merges_takes_each_record_once(table_format, tmp_path):
    """Killed by SIGKILL at random moments, while a reader finds data and offsets agree."""
    with Server() as url, strandline.connect(url) as client:
        client.create_stream("orders")
        lake = Lake(tmp_path, table_format)
        load = LocalLoad(
            str(url),
            client,
            tmp_path,
            into=lake.path,
            format=table_format,
            **({"catalog": lake.where["catalog"]} if table_format == "iceberg" else {}),
            compaction=True,
            snapshot_age_ms=60_000,
            partitions=1,
            batch_bytes_max=100,
        )
        stop, seen = threading.Event(), []

        def read():
            while not stop.wait(0.2):
                try:
                    store, loaded = lake.live()
                except strandline.errors.InvalidConfigError:
                    continue  # Iceberg: not created yet
                if loaded.state is not None:
                    count = sum(batch.num_rows for batch in store.scan(loaded))
                    seen.append((count, sum(loaded.state.offsets.values())))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            load.killed(
                3,
                lambda n: load.append(range(200 * n, 200 * n + 200)),
                lines=12,
                pause_s=0.3,
                batch_bytes_max=100,
            )
        finally:
            stop.set()
            reader.join(60)
        load.run(batch_bytes_max=2000)
        store, loaded = lake.live()
        assert load.ids() == list(range(600))
        assert len(store.live_files(loaded)) <= FILES_MAX
        assert loaded.state.sequence > FILES_MAX + 5, "too few commits to merge"
        assert len(seen) > 5
        assert all(count == offsets for count, offsets in seen)
        forget_client(str(url))


def test_a_merge_opens_each_file_once(lake, monkeypatch):
    """And those alone that it merges."""
    for batch in range(6):
        lake.commit(rows(0, batch, batch + 1), batch=batch)
    store, opened = lake.store(), []
    open_live = store.open_live
    monkeypatch.setattr(
        store, "open_live", lambda loaded, file: opened.append(file) or open_live(loaded, file)
    )
    assert compact(store, file_bytes=FILE_BYTES, files_max=4) == len(opened)
    assert len({file.path for file in opened}) == len(opened)
    assert lake.values() == expected(p0=6)
