"""Delta Lake and Iceberg tables as stores of commits: the same rules, on real tables."""

import gc
import json
import sqlite3
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from deltalake import Field as DeltaField
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import StringType
from sqlalchemy.exc import OperationalError

from strandline.errors import (
    DataLossError,
    DiskFullError,
    InvalidConfigError,
    InvalidRequestError,
    UnavailableError,
)
from strandline.spark.options import TableOptions
from strandline.spark.table import commit, committed_offsets
from strandline.spark.tables import delta as table_delta
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.iceberg import open_catalog
from strandline.spark.tables.open import existing_store, open_store
from tests.kit.tables import DAY_MS, propose

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("subject", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.binary())),
    ]
)


def rows(partition, start, stop):
    """Records of a partition."""
    count = stop - start
    return pa.RecordBatch.from_arrays(
        [
            pa.array([partition] * count, pa.int32()),
            pa.array(range(start, stop), pa.int64()),
            pa.array(range(count), pa.timestamp("us", tz="UTC")),
            pa.array(["orders.paris"] * count),
            pa.array([b"%d/%d" % (partition, o) for o in range(start, stop)], pa.binary()),
            pa.array([[("trace", b"7")]] * count, SCHEMA.field("headers").type),
        ],
        schema=SCHEMA,
    )


class Lake:
    """A table of one format in a directory of its own."""

    def __init__(self, directory, table_format):
        self.format = table_format
        self.path = str(directory / "t") if table_format == "delta" else "lake.t"
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        (directory / "warehouse").mkdir(parents=True)

    def store(self):
        """The table as one more writer opens it."""
        options = TableOptions(path=self.path, table_format=self.format, catalog=self.catalog)
        return open_store(options, SCHEMA)

    def propose(self, *batches, txn="query", batch=0):
        """Stage each batch in files of its own, as tasks do."""
        return propose(self.store(), *batches, txn=txn, batch=batch, schema=SCHEMA)

    def commit(self, proposal):
        """Commit as a new process would."""
        return commit(self.store(), proposal, garbage_age_ms=DAY_MS)

    def values(self):
        """Return what a reader of the format alone sees."""
        if self.format == "delta":
            table = DeltaTable(self.path).to_pyarrow_table()
        else:
            table = open_catalog(self.catalog).load_table(self.path).scan().to_arrow()
        return sorted(table.column("value").to_pylist())

    def offsets(self):
        """Where a new query would start."""
        text = committed_offsets(self.path, table_format=self.format, catalog=self.catalog)
        return json.loads(text)


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path):
    """A table that does not exist yet."""
    return Lake(tmp_path, request.param)


def expected(**stops):
    """Values of partitions p0, p1, ... up to their ends."""
    return sorted(b"%s/%d" % (p[1:].encode(), o) for p, stop in stops.items() for o in range(stop))


def test_data_and_offsets_are_committed_together(lake):
    """A stranger reads the rows, and the next query starts where they end."""
    assert lake.commit(lake.propose(rows(0, 0, 10), rows(1, 0, 5)))
    assert lake.commit(lake.propose(rows(0, 10, 12), batch=1))
    assert lake.values() == expected(p0=12, p1=5)
    assert lake.offsets() == {"0": 12, "1": 5}


def test_a_replay_is_acknowledged_and_adds_nothing(lake):
    """The newest batch again changes nothing; other content is rejected."""
    assert lake.commit(lake.propose(rows(0, 0, 10)))
    assert not lake.commit(lake.propose(rows(0, 0, 4), rows(0, 4, 10)))
    with pytest.raises(InvalidRequestError, match="restored from an old copy"):
        lake.commit(lake.propose(rows(0, 0, 11)))
    assert lake.values() == expected(p0=10)


def test_of_two_writers_that_saw_the_same_table_one_commits(lake):
    """The second to publish decides again, and is rejected."""
    assert lake.commit(lake.propose(rows(0, 0, 10)))
    late, early = lake.propose(rows(0, 10, 20), txn="a"), lake.propose(rows(0, 10, 20), txn="b")
    store = lake.store()
    publish = store.publish

    def overtaken(*decided):
        store.publish = publish
        assert lake.commit(early)
        return publish(*decided)

    store.publish = overtaken
    with pytest.raises(InvalidRequestError, match="committed already"):
        commit(store, late, garbage_age_ms=DAY_MS)
    assert lake.values() == expected(p0=20)


def test_the_first_commit_is_one_too(lake):
    """Two writers that found no table do not both begin it."""
    late, early = lake.propose(rows(0, 0, 5), txn="a"), lake.propose(rows(0, 0, 5), txn="b")
    store = lake.store()
    loaded = store.load()
    assert lake.commit(early)
    store.load = lambda: (setattr(store, "load", lake.store().load), loaded)[1]
    with pytest.raises(InvalidRequestError, match="committed already"):
        commit(store, late, garbage_age_ms=DAY_MS)
    assert lake.values() == expected(p0=5)


def test_a_batch_of_nothing_but_rejected_records_moves_the_offsets(lake):
    """Records that became dead letters are done: their offsets are committed without a file."""
    assert lake.commit(lake.propose(rows(0, 0, 10)))
    whole = lake.propose(rows(0, 10, 15), batch=1)
    no_files = msgspec.structs.replace(whole, files=[])
    assert lake.commit(no_files)
    assert not lake.commit(no_files)
    assert lake.offsets() == {"0": 15}
    assert lake.values() == expected(p0=10)


def test_a_gap_is_rejected(lake):
    """Records between the table's end and the batch are missing, whatever the format."""
    assert lake.commit(lake.propose(rows(0, 0, 10)))
    with pytest.raises(DataLossError, match="2 offsets are missing"):
        lake.commit(lake.propose(rows(0, 12, 15), batch=1))


def test_other_writers_may_compact_the_table(tmp_path):
    """A commit that is not ours, such as OPTIMIZE, neither hides our offsets nor stops us."""
    lake = Lake(tmp_path, "delta")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    assert lake.commit(lake.propose(rows(0, 3, 6), batch=1))
    DeltaTable(lake.path).optimize.compact()
    assert lake.commit(lake.propose(rows(0, 6, 8), batch=2))
    assert lake.values() == expected(p0=8)


def test_somebody_s_delta_table_is_appended_to_if_the_columns_are_the_same(tmp_path):
    """Other columns or partitions are rejected before any task."""
    lake = Lake(tmp_path, "delta")
    write_deltalake(lake.path, pa.table({"x": [1, 2, 3]}))
    with pytest.raises(InvalidRequestError, match=r"columns x int64, and the rows have partition"):
        lake.store()
    write_deltalake(
        lake.path, pa.Table.from_batches([rows(7, 0, 2)]), schema_mode="overwrite", mode="overwrite"
    )
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    assert lake.values() == sorted([*expected(p0=3), *expected(p7=2)])
    assert lake.offsets() == {"0": 3}
    lake.path = str(tmp_path / "by-partition")
    write_deltalake(lake.path, pa.Table.from_batches([rows(7, 0, 2)]), partition_by=["partition"])
    with pytest.raises(InvalidRequestError, match="partitioned by partition"):
        lake.store()


def partition_anew(lake):
    """Replace a table by a partitioned one."""
    if lake.format == "delta":
        table = pa.Table.from_batches([rows(0, 0, 3)])
        how = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["subject"]}
        write_deltalake(lake.path, table, **how)
        return
    with open_catalog(lake.catalog).load_table(lake.path).update_spec() as spec:
        spec.add_identity("subject")


def rename_column(lake):
    """Rename a column."""
    if lake.format == "delta":
        table = pa.Table.from_batches([rows(0, 0, 3)]).rename_columns({"value": "content"})
        write_deltalake(lake.path, table, mode="overwrite", schema_mode="overwrite")
        return
    with open_catalog(lake.catalog).load_table(lake.path).update_schema() as schema:
        schema.rename_column("value", "content")


@pytest.mark.parametrize("change", [partition_anew, rename_column])
def test_what_others_changed_between_two_commits_is_rejected(lake, change):
    """Before any task writes, and also after that; the error is permanent and has a remedy."""
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    staged, store = lake.propose(rows(0, 3, 5), batch=1), lake.store()
    change(lake)
    with pytest.raises(InvalidRequestError, match="into another table") as told:
        lake.store()
    assert not told.value.retriable
    with pytest.raises(InvalidRequestError, match="into another table"):
        commit(store, staged, garbage_age_ms=DAY_MS)
    assert lake.offsets() == {"0": 3}


def test_a_column_that_others_add_is_null_in_our_rows(lake):
    """In both formats, and the load continues."""
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    if lake.format == "delta":
        DeltaTable(lake.path).alter.add_columns(DeltaField("extra", "string"))
    else:
        with open_catalog(lake.catalog).load_table(lake.path).update_schema() as schema:
            schema.add_column("extra", StringType())
    assert lake.commit(lake.propose(rows(0, 3, 5), batch=1))
    assert lake.values() == expected(p0=5)


def constrain(table):
    """Ask writers for offsets below 10."""
    table.alter.add_constraint({"small": '"offset" < 10'})


def track_rows(table):
    """Ask writers to number rows."""
    feature = TableFeatures.RowTracking
    table.alter.add_feature(feature, allow_protocol_versions_increase=True)


@pytest.mark.parametrize(
    ("change", "reason"), [(constrain, "constraints small"), (track_rows, "features.*rowTracking")]
)
def test_what_delta_asks_of_writers_and_we_do_not_do_is_rejected(tmp_path, change, reason):
    """A row that breaks a constraint was committed, and an unknown feature tried without end."""
    lake = Lake(tmp_path, "delta")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    staged, store = lake.propose(rows(0, 3, 5), batch=1), lake.store()
    change(DeltaTable(lake.path))
    with pytest.raises(InvalidRequestError, match=f"{reason}.*nothing was written"):
        commit(store, staged, garbage_age_ms=DAY_MS)
    assert lake.values() == expected(p0=3)


def test_a_delta_commit_that_fails_without_a_race_is_not_tried_again(tmp_path, monkeypatch):
    """Only a concurrent commit causes a retry; another failure would repeat for ever."""
    lake = Lake(tmp_path, "delta")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    staged, store = lake.propose(rows(0, 3, 5), batch=1), lake.store()
    track_rows(DeltaTable(lake.path))
    monkeypatch.setattr("strandline.spark.tables.delta._check_writable", lambda *_, **__: None)
    with pytest.raises(UnavailableError):
        commit(store, staged, garbage_age_ms=DAY_MS)


def unread(lake, commits):
    """Restore the table to its state after this many commits."""
    if lake.format == "delta":
        DeltaTable(lake.path).restore(commits - 1)
        return
    table = open_catalog(lake.catalog).load_table(lake.path)
    snapshot = table.history()[commits - 1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(snapshot).commit()


@pytest.mark.parametrize("dense", [True, False])
def test_a_table_that_was_restored_ends_where_it_then_did(lake, dense):
    """Removed records are loaded again; a checkpoint beyond that is rejected."""
    for batch in range(3):
        assert lake.commit(lake.propose(rows(0, 2 * batch, 2 * batch + 2), batch=batch))
    unread(lake, 2)
    assert lake.offsets() == {"0": 4}
    ahead = msgspec.structs.replace(lake.propose(rows(0, 6, 8), batch=3), dense=dense)
    with pytest.raises(DataLossError, match=r"ends at 4: 2 offsets are missing.*committed_offsets"):
        lake.commit(ahead)
    again = msgspec.structs.replace(lake.propose(rows(0, 4, 8), txn="anew"), dense=dense)
    assert lake.commit(again)
    assert lake.values() == expected(p0=8)
    assert lake.commit(lake.propose(rows(0, 8, 9), batch=1, txn="anew"))
    assert lake.offsets() == {"0": 9}


def test_a_table_that_was_restored_twice_ends_where_the_second_says(tmp_path):
    """A restore of a restored version is looked through, and one named by its time too."""
    lake = Lake(tmp_path, "delta")
    for batch in range(3):
        assert lake.commit(lake.propose(rows(0, batch, batch + 1), batch=batch))
    table = DeltaTable(lake.path)
    table.restore(0)
    table.restore(2)
    assert lake.offsets() == {"0": 3}
    table.restore(3)
    assert lake.offsets() == {"0": 1}
    when = table.history()[-1]["timestamp"] / 1000
    table.restore(datetime.fromtimestamp(when, UTC))
    assert lake.offsets() == {"0": 1}


def test_a_delta_table_restored_to_before_our_first_commit_has_none_of_our_records(tmp_path):
    """A load starts again at the beginning of the stream."""
    lake = Lake(tmp_path, "delta")
    write_deltalake(lake.path, pa.Table.from_batches([rows(7, 0, 2)]))
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    DeltaTable(lake.path).restore(0)
    text = committed_offsets(lake.path, table_format="delta")
    assert text == "earliest"
    with pytest.raises(DataLossError, match="ends at 0: 3 offsets are missing"):
        lake.commit(lake.propose(rows(0, 3, 5), batch=1))
    assert lake.commit(lake.propose(rows(0, 0, 5), txn="anew"))
    assert lake.values() == sorted([*expected(p0=5), *expected(p7=2)])


def test_a_restore_that_the_log_no_longer_explains_is_rejected(tmp_path):
    """The log was cleaned up, so the end of the table is unknown."""
    lake = Lake(tmp_path, "delta")
    write_deltalake(lake.path, pa.Table.from_batches([rows(7, 0, 2)]))
    write_deltalake(lake.path, pa.Table.from_batches([rows(7, 2, 4)]), mode="append")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    DeltaTable(lake.path).restore(1)
    DeltaTable(lake.path).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InvalidRequestError, match=r"restored to version 1.*another table"):
        lake.offsets()


@pytest.mark.parametrize("kept", ["the restore", "nothing of it"])
def test_a_restored_delta_table_whose_log_was_cleaned_up_is_rejected(tmp_path, kept):
    """The application transactions are those of the last commit, but its records are gone."""
    lake = Lake(tmp_path, "delta")
    for batch in range(2):
        assert lake.commit(lake.propose(rows(0, batch, batch + 1), batch=batch))
    DeltaTable(lake.path).restore(0)
    write_deltalake(lake.path, pa.Table.from_batches([rows(7, 0, 2)]), mode="append")
    DeltaTable(lake.path).create_checkpoint()
    for version in (0, 1, 2) if kept == "nothing of it" else (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InvalidRequestError, match=r"no record 1 of partition 0.*another table"):
        lake.offsets()


def test_a_rolled_back_iceberg_table_whose_snapshots_expired_is_rejected(tmp_path):
    """The property is that of the last commit, but its records are gone."""
    lake = Lake(tmp_path, "iceberg")
    for batch in range(2):
        assert lake.commit(lake.propose(rows(0, batch, batch + 1), batch=batch))
    table = open_catalog(lake.catalog).load_table(lake.path)
    ours = [entry.snapshot_id for entry in table.history()]
    table.manage_snapshots().rollback_to_snapshot(ours[0]).commit()
    table.append(pa.Table.from_batches([rows(7, 0, 2)]))
    table.maintenance.expire_snapshots().by_ids(ours).commit()
    with pytest.raises(InvalidRequestError, match=r"no record 1 of partition 0.*another table"):
        lake.offsets()


def test_expired_snapshots_of_an_iceberg_table_do_not_hide_the_offsets(tmp_path):
    """Our snapshot is gone with those before the current one; the property still says it."""
    lake = Lake(tmp_path, "iceberg")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    table = open_catalog(lake.catalog).load_table(lake.path)
    ours = table.current_snapshot().snapshot_id
    table.delete("offset < 2")
    table.maintenance.expire_snapshots().by_id(ours).commit()
    assert lake.offsets() == {"0": 3}


def test_an_iceberg_table_rolled_back_to_before_our_commits_is_rejected(tmp_path):
    """No snapshot says which of our records it has, if any."""
    lake = Lake(tmp_path, "iceberg")
    lake.store()
    table = open_catalog(lake.catalog).load_table(lake.path)
    table.append(pa.Table.from_batches([rows(7, 0, 2)]))
    theirs = table.current_snapshot().snapshot_id
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    table = open_catalog(lake.catalog).load_table(lake.path)
    table.manage_snapshots().rollback_to_snapshot(theirs).commit()
    with pytest.raises(InvalidRequestError, match=r"rolled back.*into another table"):
        lake.offsets()


def test_a_directory_holds_a_table_of_one_kind(tmp_path):
    """Files of one kind beside another's log would be read twice, or not at all."""
    lake = Lake(tmp_path, "delta")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    with pytest.raises(InvalidRequestError, match="set tableFormat=delta"):
        open_store(TableOptions(path=lake.path), SCHEMA)
    with pytest.raises(InvalidRequestError, match="set tableFormat=delta"):
        propose(TableFiles(lake.path), rows(0, 0, 3), schema=SCHEMA)
    lake.path = str(tmp_path / "plain")
    plain = TableFiles(lake.path)
    assert commit(plain, propose(plain, rows(0, 0, 3), schema=SCHEMA), garbage_age_ms=DAY_MS)
    with pytest.raises(InvalidRequestError, match="leave tableFormat out"):
        lake.store()
    iceberg = Lake(tmp_path / "ice", "iceberg")
    assert iceberg.commit(iceberg.propose(rows(0, 0, 3)))
    with pytest.raises(InvalidRequestError, match="not a table"):
        open_store(TableOptions(path=str(iceberg.store().directory)), SCHEMA)


def test_a_cleaned_up_delta_log_still_knows_the_offsets(tmp_path):
    """Delta's application transactions have them when our commits' entries are gone."""
    lake = Lake(tmp_path, "delta")
    assert lake.commit(lake.propose(rows(0, 0, 3), rows(2, 0, 4)))
    DeltaTable(lake.path).optimize.compact()
    DeltaTable(lake.path).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").unlink()
    assert lake.offsets() == {"0": 3, "2": 4}
    with pytest.raises(InvalidRequestError, match="committed already"):
        lake.commit(lake.propose(rows(0, 0, 3), rows(2, 0, 4)))
    assert lake.commit(lake.propose(rows(0, 3, 5), batch=1))
    assert lake.values() == sorted([*expected(p0=5), *expected(p2=4)])


def test_an_iceberg_table_that_retries_commits_is_told_not_to(tmp_path):
    """pyiceberg repeats a commit that lost a race, which would double records: not here. A table
    that is only read is left as it is.
    """
    lake = Lake(tmp_path, "iceberg")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    table = open_catalog(lake.catalog).load_table(lake.path)
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    assert lake.store().load().at.properties["commit.retry.num-retries"] == "4"
    assert lake.commit(lake.propose(rows(0, 3, 5), batch=1))
    loaded = lake.store().load()
    assert loaded.at.properties["commit.retry.num-retries"] == "0"
    assert sum(batch.num_rows for batch in lake.store().scan(loaded)) == 5


def test_a_table_that_is_not_there_is_named(tmp_path):
    """Looking at an Iceberg table makes none."""
    lake = Lake(tmp_path, "iceberg")
    with pytest.raises(InvalidConfigError, match="no table"):
        existing_store("lake.t", table_format="iceberg", catalog=lake.catalog)
    lake.path = "t"
    with pytest.raises(InvalidConfigError, match="namespace"):
        lake.store()
    with pytest.raises(InvalidConfigError, match="namespace"):
        existing_store("t", table_format="iceberg", catalog=lake.catalog)


def test_a_catalog_without_an_address_is_the_caller_s_mistake():
    """pyiceberg's own complaint, with the key that fixes it."""
    with pytest.raises(InvalidConfigError, match="'catalog'"):
        existing_store("lake.t", table_format="iceberg", catalog={"name": "nowhere"})


@pytest.mark.parametrize(
    ("properties", "message", "kind"),
    [
        ({"type": "sql", "uri": "sqlite:////nix/da.db"}, "unable to open", InvalidConfigError),
        ({"type": "sql", "uri": "nonsense"}, "could not parse", InvalidConfigError),
        ({"type": "rest", "uri": "http://127.0.0.1:1"}, "refused", UnavailableError),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_told_in_one_line(properties, message, kind):
    """Whatever library it is that complains."""
    with pytest.raises(kind, match=f"(?i)Iceberg catalog: .*{message}") as told:
        open_catalog(properties)
    assert "\n" not in told.value.message


def test_a_path_that_is_no_delta_table_is_told(tmp_path):
    """Here a file."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="file is not a Delta table"):
        existing_store(str(tmp_path / "file"), table_format="delta").load()


def test_a_catalog_that_nobody_uses_lets_go_of_its_connections(tmp_path):
    """Else a long query would gather them, and those in a transaction would lock others out."""
    catalog = open_catalog(Lake(tmp_path, "iceberg").catalog)
    engine = catalog.engine
    assert catalog.list_namespaces() == []
    assert engine.pool.checkedin() == 1
    del catalog
    gc.collect()
    assert engine.pool.checkedin() == 0


def test_a_commit_while_a_delta_table_is_loaded_makes_it_load_again(tmp_path, monkeypatch):
    """delta-rs reads the history of the newest version: its state would be ahead of the files."""
    lake = Lake(tmp_path, "delta")
    lake.commit(lake.propose(rows(0, 0, 3)))
    read, pending = table_delta._committed, [lake.propose(rows(0, 3, 5), batch=1)]

    def committed(table):
        while pending:
            proposal = pending.pop()
            lake.commit(proposal)
        return read(table)

    monkeypatch.setattr(table_delta, "_committed", committed)
    loaded = lake.store().load()
    assert loaded.state.offsets == {0: 5}
    assert sum(batch.num_rows for batch in lake.store().scan(loaded)) == 5


@pytest.mark.parametrize("method", ["commit_table", "load_table"])
def test_a_full_disk_under_an_sql_catalog_is_named(tmp_path, monkeypatch, method):
    """The error of the catalog's database is one of ours; once there is space, the load goes on."""
    lake = Lake(tmp_path, "iceberg")
    assert lake.commit(lake.propose(rows(0, 0, 3)))
    staged, store = lake.propose(rows(0, 3, 5), batch=1), lake.store()

    def fail(*args, **kwargs):
        raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database or disk is full"))

    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, method, fail)
        with pytest.raises(DiskFullError, match=r"catalog or metadata of lake\.t.*disk is full"):
            commit(store, staged, garbage_age_ms=DAY_MS)
    assert lake.commit(staged)
    assert lake.values() == expected(p0=5)
