"""The table on a real directory: commits, crashes between any two steps, readers, garbage."""

import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import DataLossError, InvalidConfigError, InvalidRequestError
from strandline.spark.table import (
    commit,
    committed_files,
    committed_offsets,
    read_table,
    table_summary,
)
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.stage import FileSettings, stage, summarize
from tests.kit.tables import DAY_MS, SCHEMA, propose, rows, stored, visible


def expected(**stops):
    return sorted(b"%s/%d" % (p[1:].encode(), o) for p, stop in stops.items() for o in range(stop))


def test_committed_rows_are_read_and_staged_ones_are_not(tmp_path):
    """Readers see the manifest's files, by the table's reader and by a plain listing."""
    files = TableFiles(str(tmp_path / "t"))
    assert commit(files, propose(files, rows(0, 0, 10), rows(1, 0, 5)), garbage_age_ms=DAY_MS)
    propose(files, rows(0, 10, 99))
    assert stored(tmp_path / "t") == expected(p0=10, p1=5)
    assert visible(tmp_path / "t") == expected(p0=10, p1=5)
    assert json.loads(committed_offsets(str(tmp_path / "t"))) == {"0": 10, "1": 5}


def test_a_replay_changes_nothing_and_leaves_nothing(tmp_path):
    """A batch that is committed is acknowledged, and its second set of files removed."""
    files = TableFiles(str(tmp_path))
    assert commit(files, propose(files, rows(0, 0, 10)), garbage_age_ms=DAY_MS)
    replay = propose(files, rows(0, 0, 4), rows(0, 4, 10))
    assert not commit(files, replay, garbage_age_ms=DAY_MS)
    assert stored(tmp_path) == expected(p0=10)
    assert not any((files.directory.staging / file.staged).exists() for file in replay.files)
    assert table_summary(str(tmp_path)).commits == 1


def test_the_first_run_starts_at_the_beginning(tmp_path):
    """Where nothing is committed the continuation is earliest, and reading says so clearly."""
    assert committed_offsets(str(tmp_path / "none")) == "earliest"
    assert table_summary(str(tmp_path / "none")).rows == 0
    with pytest.raises(InvalidRequestError, match="nothing is committed"):
        read_table(str(tmp_path / "none"))


class CrashError(BaseException):
    """Simulates kill -9."""


def crash_at(monkeypatch, step):
    """Let the process die just before the ``step``-th link, unlink or sync of a commit."""
    counter = iter(range(10_000))

    def guarded(original):
        def call(*args, **kwargs):
            if next(counter) == step:
                raise CrashError
            return original(*args, **kwargs)

        return call

    for name in ("link", "fsync"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))


def test_a_crash_at_any_step_loses_and_doubles_nothing(tmp_path, monkeypatch):
    """Killed before each system call of a commit in turn, the replay always ends with each row
    once, and in between readers see all of the batch or nothing of it.
    """
    for step in range(40):
        path = tmp_path / str(step)
        files = TableFiles(str(path))
        assert commit(files, propose(files, rows(0, 0, 10)), garbage_age_ms=DAY_MS)
        proposal = propose(files, rows(0, 10, 15), rows(1, 0, 7), batch=1)
        before, after = expected(p0=10), expected(p0=15, p1=7)
        crashed = False
        with monkeypatch.context() as patch:
            crash_at(patch, step)
            try:
                commit(files, proposal, garbage_age_ms=DAY_MS)
            except CrashError:
                crashed = True
        assert stored(path) in (before, after)
        assert set(visible(path)) <= set(stored(path))
        replay = propose(files, rows(1, 0, 7), rows(0, 10, 12), rows(0, 12, 15), batch=1)
        commit(files, replay, garbage_age_ms=DAY_MS)
        assert stored(path) == after
        assert visible(path) == after
        if not crashed:
            assert step > 5
            return
    pytest.fail("a commit takes fewer than 40 steps")


def test_of_two_writers_one_wins(tmp_path):
    """A second query that commits the same records in between is rejected."""
    files = TableFiles(str(tmp_path))
    ours, theirs = propose(files, rows(0, 0, 10)), propose(files, rows(0, 0, 10), txn="other")
    publish = files.publish

    def late(*decided):
        files.publish = publish
        assert commit(TableFiles(str(tmp_path)), theirs, garbage_age_ms=DAY_MS)
        return publish(*decided)

    files.publish = late
    with pytest.raises(InvalidRequestError, match="committed already"):
        commit(files, ours, garbage_age_ms=DAY_MS)
    assert stored(tmp_path) == expected(p0=10)


def test_a_batch_whose_staged_file_is_gone_is_not_published(tmp_path):
    """A manifest never names a missing or truncated file."""
    files = TableFiles(str(tmp_path))
    proposal = propose(files, rows(0, 0, 10))
    staged = files.directory.staging / proposal.files[0].staged
    os.truncate(staged, 10)
    with pytest.raises(DataLossError, match="bytes instead of"):
        commit(files, proposal, garbage_age_ms=DAY_MS)
    staged.unlink()
    with pytest.raises(DataLossError, match="gone"):
        commit(files, proposal, garbage_age_ms=DAY_MS)
    assert table_summary(str(tmp_path)).commits == 0


def test_a_deleted_data_file_is_reported(tmp_path):
    """A committed file that someone deleted is data loss with a name, not a short result."""
    files = TableFiles(str(tmp_path))
    commit(files, propose(files, rows(0, 0, 10)), garbage_age_ms=DAY_MS)
    (name,) = files.load_manifest(0).files
    (tmp_path / name.name).unlink()
    (files.directory.staging / name.staged).unlink()
    with pytest.raises(DataLossError, match="part-"):
        committed_files(str(tmp_path))


def test_garbage_goes_by_age_and_committed_files_stay(tmp_path):
    """Old orphans and old names of placed files go; young orphans and data stay."""
    files = TableFiles(str(tmp_path))
    old, young = propose(files, rows(0, 50, 60)), propose(files, rows(0, 60, 70))
    committed = propose(files, rows(0, 0, 10))
    long_ago = time.time() - 3600
    for file in (*old.files, *committed.files):
        os.utime(files.directory.staging / file.staged, (long_ago, long_ago))
    commit(files, committed, garbage_age_ms=60_000)
    commit(files, propose(files, rows(0, 10, 12), batch=1), garbage_age_ms=60_000)
    left = {entry.name for entry in files.directory.staging.iterdir()}
    assert old.files[0].staged not in left
    assert committed.files[0].staged not in left
    assert young.files[0].staged in left
    assert stored(tmp_path) == expected(p0=12)


def test_a_directory_of_other_files_is_rejected(tmp_path):
    """A table is not started among files that are not its own."""
    (tmp_path / "letters.txt").write_text("x")
    with pytest.raises(InvalidRequestError, match="not a table"):
        TableFiles(str(tmp_path)).create()


@pytest.mark.parametrize("below", ["", "table"])
def test_a_path_that_is_no_directory_is_told(tmp_path, below):
    """A file in place of the table, or above it, is named."""
    (tmp_path / "file").touch()
    path = tmp_path / "file" / below
    for use in (table_summary, committed_offsets, lambda path: TableFiles(path).create()):
        with pytest.raises(InvalidConfigError, match=f"{tmp_path}/file.* cannot be used"):
            use(str(path))


def test_only_posix_paths_are_taken(tmp_path):
    """A file: URI is a path; a URL is not."""
    assert TableFiles(f"file://{tmp_path}").directory.root == tmp_path
    assert TableFiles(f"file:{tmp_path}").directory.root == tmp_path
    with pytest.raises(InvalidConfigError, match="POSIX file system"):
        TableFiles("s3://bucket/t")


def test_offsets_are_stored_as_differences(tmp_path):
    """A dictionary of numbers that never repeat would be larger than they are."""
    files = TableFiles(str(tmp_path))
    [staged] = propose(files, rows(0, 0, 50_000)).files
    with pq.ParquetFile(files.directory.staging / staged.staged) as file:
        group = file.metadata.row_group(0)
        places = {group.column(i).path_in_schema: group.column(i) for i in range(3)}
    assert "DELTA_BINARY_PACKED" in places["offset"].encodings
    assert places["offset"].total_compressed_size < 50_000
    assert not places["value"].has_dictionary_page


def test_an_empty_task_stages_no_file(tmp_path):
    """Tasks without rows leave nothing behind."""
    files = TableFiles(str(tmp_path))
    assert propose(files, rows(0, 0, 0)).files == []
    assert list(files.directory.staging.iterdir()) == []


def test_a_failed_task_stages_no_file(tmp_path):
    """A task whose input fails removes its files."""
    files = TableFiles(str(tmp_path))
    files.create()

    def failing():
        yield rows(0, 0, 10)
        raise RuntimeError("the query's own error")

    with pytest.raises(RuntimeError):
        stage(files, failing(), FileSettings(schema=SCHEMA, prefix="t"))
    assert list(files.directory.staging.iterdir()) == []


def test_rows_without_an_offset_are_rejected(tmp_path):
    """A null offset cannot be committed once, so it is not committed."""
    batch = pa.RecordBatch.from_pydict(
        {"partition": pa.array([0], pa.int32()), "offset": pa.array([None], pa.int64())}
    )
    with pytest.raises(Exception, match="without partition or offset"):
        summarize(batch)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**62)), min_size=1, max_size=50))
def test_summaries_hold_for_any_offsets(pairs):
    """Range, count and sum are right, also where a sum exceeds 64 bits."""
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([p for p, _ in pairs], pa.int32()),
            "offset": pa.array([o for _, o in pairs], pa.int64()),
        }
    )
    found = summarize(batch)
    for partition in {p for p, _ in pairs}:
        offsets = [o for p, o in pairs if p == partition]
        assert found[partition] == (
            type(found[partition])(
                min(offsets), max(offsets) + 1, len(offsets), sum(offsets) % 2**64
            )
        )
