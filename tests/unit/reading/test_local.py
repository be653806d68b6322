"""Records straight from files: the same rows as were stored, and an error where a file is not."""

import os
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.api.local import AbortedRange, LocalFile, LocalFiles, LocalPart
from strandline.api.tickets import ReadRequest
from strandline.errors import CorruptBatchError, UnavailableError
from strandline.reading import local
from strandline.reading.local import is_here, local_batches, local_cursor
from strandline.record.codec import Stamp, encode_arrow, encode_filler, encode_records
from strandline.record.schema import project

NAMES = project(None).names


class Stored(NamedTuple):
    """Files of batches, and their contents."""

    files: list[LocalFile]
    offsets: list[int]
    batches: list[tuple[Path, int, int]]
    """Of each batch its file, position and base offset."""
    end: int
    """The offset after the last that they stand for."""


def store(directory: Path, sizes: list[list[int]], *, gap: int = 0) -> Stored:
    """Write files with batches of this many records; ``gap`` offsets are missing before each."""
    files, offsets, batches, base = [], [], [], 0
    for number, counts in enumerate(sizes):
        path = directory / f"{number}.log"
        content = bytearray()
        for count in counts:
            base += gap
            batches.append((path, len(content), base))
            values = [b"%d" % (base + n) for n in range(count)]
            content += encode_records(values, ["s"], Stamp(base, 0, 1_000 + base))
            offsets += range(base, base + count)
            base += count
        path.write_bytes(content)
        files.append(listed(path))
    return Stored(files, offsets, batches, base)


def listed(path: Path, position: int = 0) -> LocalFile:
    """A file as a broker lists it."""
    found = path.stat()
    return LocalFile(path=str(path), inode=found.st_ino, position=position, size=found.st_size)


def cursor_at(
    stored: Stored,
    *,
    start: int = 0,
    stop: int | None = None,
    has_hidden: bool = False,
    aborted: tuple[AbortedRange, ...] = (),
    bytes_max: int = 4096,
):
    """Return a cursor over the files, from the batch with ``start`` on."""
    end = stored.end
    holds = [batch for batch in stored.batches if batch[2] <= start][-1:] or stored.batches[:1]
    [(path, position, _)] = holds
    first = [file.path for file in stored.files].index(str(path))
    part = LocalPart(
        partition=0,
        start=start,
        stop=end if stop is None else stop,
        end=end,
        files=(listed(path, position), *stored.files[first + 1 :]),
        log_start_offset=0,
        may_move=False,
        has_hidden=has_hidden,
        aborted=aborted,
    )
    return local_cursor(ReadRequest(stream="s", batch_bytes=bytes_max), part, NAMES)


def rest_of(cursor) -> list[int]:
    """The offsets that are left to read; each record says its own."""
    found = []
    for batch in local_batches(cursor):
        offsets = batch.column("offset").to_pylist()
        assert batch.column("value").to_pylist() == [b"%d" % offset for offset in offsets]
        found += offsets
    return found


@given(
    sizes=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=5), min_size=1, max_size=3),
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    large=st.sampled_from([1, 2000, 64 << 10]),
)
def test_any_range_is_read_exactly(tmp_path_factory, sizes, edges, large):
    """Whatever the batches and files, and wherever in a batch the range begins and ends.

    Large batches, which are looked at before they are read, may begin at any size.
    """
    stored = store(tmp_path_factory.mktemp("log"), sizes)
    end = len(stored.offsets)
    start, stop = sorted(int(edge * end) for edge in edges)
    if start == end:
        start -= 1
    with mock.patch.object(local, "LARGE_BYTES", large):
        assert rest_of(cursor_at(stored, start=start, stop=stop)) == list(range(start, stop))


def compact(directory: Path, sizes: list[list[list[bool]]]) -> Stored:
    """Write files of batches from which compaction kept the records that are True."""
    files, offsets, batches, base = [], [], [], 0
    for number, kept in enumerate(sizes):
        path = directory / f"{number}.log"
        content = bytearray()
        for whole in kept:
            batches.append((path, len(content), base))
            left = [n for n, is_left in enumerate(whole) if is_left]
            if left:
                rows = pa.record_batch({"value": [b"%d" % (base + n) for n in left]})
                content += encode_arrow(
                    rows,
                    Stamp(base, 0, 1_000 + base),
                    default_subject="s",
                    offset_deltas=left,
                    last_offset_delta=len(whole) - 1,
                )
            else:
                content += encode_filler(base, base + len(whole), leader_epoch=0)
            offsets += [base + n for n in left]
            base += len(whole)
        path.write_bytes(content)
        files.append(listed(path))
    return Stored(files, offsets, batches, base)


@given(
    sizes=st.lists(
        st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    ),
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    bytes_max=st.sampled_from([1, 300, 64 << 10]),
)
def test_any_range_is_read_of_what_compaction_has_left(tmp_path_factory, sizes, edges, bytes_max):
    """Any range is read to its end, without the removed records."""
    stored = compact(tmp_path_factory.mktemp("log"), sizes)
    start, stop = sorted(int(edge * stored.end) for edge in edges)
    if start == stored.end:
        start -= 1
    cursor = cursor_at(stored, start=start, stop=stop, has_hidden=True, bytes_max=bytes_max)
    assert rest_of(cursor) == [offset for offset in stored.offsets if start <= offset < stop]
    assert cursor.is_done


def test_a_file_that_is_missing_between_compacted_ones_is_corruption(tmp_path):
    """Fillers keep them dense, too."""
    stored = compact(tmp_path, [[[True, False]], [[True]], [[True]]])
    del stored.files[1]
    with pytest.raises(CorruptBatchError, match="2 to 2 are missing"):
        rest_of(cursor_at(stored, has_hidden=True))


def test_missing_records_are_corruption(tmp_path):
    """Offsets are dense; a file that lacks some was tampered with."""
    stored = store(tmp_path, [[3, 2], [4]], gap=5)
    with pytest.raises(CorruptBatchError, match="0 to 4 are missing"):
        rest_of(cursor_at(stored))


def test_corruption_ends_the_read_where_it_is(tmp_path):
    """Earlier records are read; the cursor is where a read through the broker continues."""
    stored = store(tmp_path, [[300, 300, 300]])
    path, position, base = stored.batches[1]
    content = bytearray(path.read_bytes())
    content[position + 100] ^= 1
    path.write_bytes(content)
    cursor = cursor_at(stored)
    with pytest.raises(CorruptBatchError, match="no intact batch"):
        rest_of(cursor)
    assert cursor.position == base == 300


def test_a_file_that_was_truncated_is_corruption_not_a_crash(tmp_path):
    """A mapped file would end the process here."""
    stored = store(tmp_path, [[300, 300], [10]])
    path, position, _ = stored.batches[1]
    cursor = cursor_at(stored)
    os.truncate(path, position + 50)
    with pytest.raises(CorruptBatchError):
        rest_of(cursor)
    assert cursor.position == 300


def test_another_file_of_the_same_name_is_not_read(tmp_path):
    """Compaction puts a new file in the old one's place."""
    stored = store(tmp_path, [[5]])
    path = stored.batches[0][0]
    cursor = cursor_at(stored)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(path.read_bytes())
    fresh.rename(path)
    with pytest.raises(UnavailableError, match="was replaced"):
        rest_of(cursor)


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, os.mkdir])
def test_what_is_no_file_is_rejected_at_once(tmp_path, make):
    """Nothing there, or something that one could wait at for ever."""
    stored = store(tmp_path, [[5]])
    path = stored.batches[0][0]
    cursor = cursor_at(stored)
    path.unlink()
    make(path)
    with pytest.raises(UnavailableError):
        rest_of(cursor)


def test_only_the_machine_that_has_the_proof_is_here(tmp_path):
    """The same paths may exist elsewhere."""
    proof = tmp_path / "local-reads.proof"
    proof.write_text("cafe")
    answer = {"proof_file": str(proof), "has_partition_column": False, "parts": ()}
    assert is_here(LocalFiles(proof="cafe", **answer))
    assert not is_here(LocalFiles(proof="beef", **answer))
    proof.unlink()
    assert not is_here(LocalFiles(proof="cafe", **answer))
