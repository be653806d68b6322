"""The files that a task stages: their size and contents, and none after a failure."""

import errno
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.errors import UnavailableError
from strandline.spark.tables import stage as table_stage
from strandline.spark.tables.files import TableFiles
from strandline.spark.tables.stage import FileSettings, stage, tracks_offsets
from strandline.spark.tables.store import replace_durably
from tests.kit.tables import SCHEMA, rows

PLAIN = {"schema": SCHEMA, "prefix": "task-7", "compression": "none"}


@pytest.fixture
def files(tmp_path):
    """A table's directory."""
    files = TableFiles(str(tmp_path))
    files.create()
    return files


def incompressible(start, stop):
    """Records of about a kilobyte each, which no encoding shortens."""
    batch = rows(0, start, stop)
    values = pa.array(
        [b"%d" % offset * (1000 // len(str(offset))) for offset in range(start, stop)]
    )
    return batch.set_column(2, SCHEMA.field("value"), values)


def test_a_file_that_is_large_enough_is_followed_by_another(files):
    """No file grows far beyond the size asked for; together they hold every row, in order."""
    batches = [incompressible(start, start + 10) for start in range(0, 100, 10)]
    staged = stage(files, batches, FileSettings(**PLAIN, file_bytes=25_000))
    assert len(staged.files) > 1
    offsets = []
    for file in staged.files:
        assert file.staged.startswith("part-task-7")
        path = files.directory.staging / file.staged
        found = pq.read_table(path).column("offset").to_pylist()
        assert (file.rows, file.size_bytes) == (len(found), path.stat().st_size)
        offsets += found
    assert offsets == list(range(100))
    assert all(25_000 <= file.size_bytes < 60_000 for file in staged.files[:-1])
    assert {path.name for path in files.directory.staging.iterdir()} == {
        f.staged for f in staged.files
    }


def test_a_batch_larger_than_a_file_is_split(files):
    """However much comes at once, the size asked for holds."""
    staged = stage(files, [incompressible(0, 100)], FileSettings(**PLAIN, file_bytes=25_000))
    assert sum(file.rows for file in staged.files) == 100
    assert all(file.size_bytes < 60_000 for file in staged.files)


def test_memory_holds_one_row_group(files, monkeypatch):
    """Small batches are gathered until they make a row group, which then is written."""
    monkeypatch.setattr(table_stage, "_ROW_GROUP_BYTES", 10_000)
    batches = [incompressible(start, start + 1) for start in range(30)]
    [file] = stage(files, batches, FileSettings(**PLAIN)).files
    metadata = pq.read_metadata(files.directory.staging / file.staged)
    sizes = [metadata.row_group(each).num_rows for each in range(metadata.num_row_groups)]
    assert sizes == [10, 10, 10]


def test_a_failed_task_leaves_neither_whole_files_nor_halves(files):
    """Files closed before the failure are removed, too."""

    def failing():
        for start in range(0, 100, 10):
            yield incompressible(start, start + 10)
        yield rows(0, 100, 101)
        assert len(list(files.directory.staging.iterdir())) > 1
        raise RuntimeError("the query's own error")

    with pytest.raises(RuntimeError, match="own error"):
        stage(files, failing(), FileSettings(**PLAIN, file_bytes=25_000))
    assert list(files.directory.staging.iterdir()) == []


def test_ranges_are_of_what_came_in(files):
    """Records that give no row are consumed as well: the next run does not read them again."""
    settings = FileSettings(**PLAIN, decode=lambda batch: batch.slice(0, 1))
    staged = stage(files, [rows(0, 5, 9), rows(2, 0, 3), rows(0, 9, 12)], settings)
    assert [file.rows for file in staged.files] == [3]
    assert {p: (found.start, found.stop, found.rows) for p, found in staged.ranges.items()} == {
        0: (5, 12, 7),
        2: (0, 3, 3),
    }


@pytest.mark.parametrize(
    ("partition", "offset", "is_tracked"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int64(), False),
        (pa.int32(), pa.int32(), False),
        (pa.int32(), None, False),
    ],
)
def test_rows_are_told_by_both_columns(partition, offset, is_tracked):
    """A table of columns that only look alike makes no claim about offsets."""
    fields = {"partition": partition, "offset": offset, "value": pa.binary()}
    schema = pa.schema([(name, kind) for name, kind in fields.items() if kind is not None])
    assert tracks_offsets(schema) == is_tracked


def test_columns_are_taken_by_position(files):
    """Types that differ are cast; the table's names and types are those of the files."""
    given = pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int64()), "b": pa.array(["x"])})
    schema = pa.schema([("number", pa.int32()), ("text", pa.string())])
    [file] = stage(files, [given], FileSettings(schema=schema, prefix="t")).files
    found = pq.read_table(files.directory.staging / file.staged)
    assert found.schema.equals(schema)
    assert found.to_pylist() == [{"number": 1, "text": "x"}]


def test_text_that_repeats_is_kept_once(files):
    """Text columns have dictionaries; times of records that ascend are kept as differences."""
    schema = pa.schema([("timestamp", pa.timestamp("ns", "UTC")), ("text", pa.string())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(range(1000), schema.field(0).type), pa.array(["the same"] * 1000)], schema=schema
    )
    [file] = stage(files, [batch], FileSettings(schema=schema, prefix="t")).files
    group = pq.read_metadata(files.directory.staging / file.staged).row_group(0)
    assert "DELTA_BINARY_PACKED" in group.column(0).encodings
    assert group.column(1).has_dictionary_page


def test_only_a_record_s_own_numbers_are_kept_as_differences(files):
    """Other numbers repeat, and a user's timestamp may be text."""
    schema = pa.schema([("timestamp", pa.string()), ("count", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"timestamp": ["now"] * 9, "count": [7] * 9}, schema=schema)
    [file] = stage(files, [batch], FileSettings(schema=schema, prefix="t")).files
    path = files.directory.staging / file.staged
    assert pq.read_table(path).to_pylist() == batch.to_pylist()
    group = pq.read_metadata(path).row_group(0)
    assert all(group.column(number).has_dictionary_page for number in range(2))


def test_a_read_only_file_system_is_named(files, monkeypatch):
    """Neither a file nor its name can be written or removed there."""

    def refused(path, *_args, **_given):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    staged = stage(files, [rows(0, 0, 1)], FileSettings(**PLAIN, file_bytes=1))
    assert staged.files
    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, refused)
    monkeypatch.setattr(pq, "ParquetWriter", refused)
    for act in (
        lambda: stage(files, [rows(0, 0, 1)], FileSettings(**PLAIN, file_bytes=1)),
        lambda: replace_durably(files.directory.root / "plan", b"x"),
    ):
        with pytest.raises(UnavailableError, match=r"cannot use .*: Read-only file system"):
            act()
