"""Truncations of a log survive crashes: neither journal nor checkpoint restores removed batches."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from strandline.errors import CorruptBatchError
from strandline.record.batch import read_header
from strandline.storage.checkpoint import NEW_LOG
from strandline.storage.truncation_marker import MARKER_NAME, TruncationMarker, read_marker

from .test_recovery import A, Data, keep_all


@pytest.fixture
def data(tmp_path, disk, make_batch):
    """An empty data directory, open."""
    return Data(tmp_path / "data", disk, make_batch)


def cut(data, kept):
    """Truncate a log after this many batches; return it."""
    log = data.now.logs[A]
    end = sum(read_header(batch).record_count for batch in data.written[A][:kept])
    del data.written[A][kept:]
    assert log.truncate_to(end) == end
    return log


@pytest.mark.parametrize("keep", [None, keep_all], ids=["power-loss", "kill"])
@pytest.mark.parametrize("size", [50, 1500], ids=["in one segment", "over segments"])
@pytest.mark.parametrize("grown", [0, 1, 6])
def test_what_comes_after_a_cut_is_there_and_nothing_else(data, keep, size, grown):
    """The checkpoint and the journal still have what was truncated."""
    for _ in range(4):
        data.turn(A, size=size)
    data.checkpoint()
    data.turn(A, size=size)
    cut(data, 2)
    for _ in range(grown):
        data.turn(A, size=size + 7)
    for _ in range(2):
        assert data.die(keep).corruption == []
        data.check(A)


def test_names_of_segments_that_were_cut_away_stay_away(data):
    """Else the log would continue in an old file when it reaches its offset."""
    for _ in range(4):
        data.turn(A, size=1500)
    data.checkpoint()
    cut(data, 1)
    data.turn(A, size=1400)
    assert data.die().corruption == []
    data.check(A)


def test_a_checkpoint_from_before_a_cut_makes_nothing_stable(data):
    """Segments that recovery may continue in must not be compacted."""
    for _ in range(4):
        data.turn(A, size=1500)
    pending = data.now.checkpointer.begin(data.now.logs)
    log = cut(data, 1)
    for _ in range(3):
        data.turn(A, size=1500)
    data.now.checkpointer.write(pending)
    data.now.checkpointer.finish(pending)
    assert log.stable_segments == ()
    data.checkpoint()
    assert len(log.stable_segments) == 3


def test_a_cut_that_a_checkpoint_knows_of_is_over(data):
    """The log continues from the newer checkpoint, even without new records."""
    for _ in range(4):
        data.turn(A)
    log = cut(data, 2)
    data.checkpoint()
    data.without_journal(A, 50, 50)
    data.checkpoint()
    found = read_marker(log.directory, disk=data.disk)
    assert (found.state.log_end_offset, found.state.truncations) == (2, 1)
    assert data.die().records_replayed == 0
    data.check(A)


def test_cuts_are_counted_over_lives(data):
    """A second truncation is newer than a checkpoint that includes the first."""
    for kept in (3, 2, 1):
        for _ in range(4):
            data.turn(A)
        data.checkpoint()
        cut(data, kept)
        data.turn(A)
        assert data.die().corruption == []
        data.check(A)
    assert read_marker(data.now.logs[A].directory, disk=data.disk).state.truncations == 3


@pytest.mark.parametrize("found", [b"", b"\n", b"00000001\n{}\n", b"{}\n"])
def test_a_note_without_its_checksum_is_corrupt(tmp_path, disk, found):
    """The error says so, not what the decoder could not do."""
    (tmp_path / MARKER_NAME).write_bytes(found)
    with pytest.raises(CorruptBatchError, match=r"is corrupt \(checksum mismatch\)"):
        read_marker(tmp_path, disk=disk)


def test_a_corrupt_note_is_reported(data):
    """The end of the log is then unknown: that is reported, and everything is replayed."""
    for _ in range(3):
        data.turn(A)
    log = cut(data, 2)
    (log.directory / MARKER_NAME).write_bytes(b"00000000\n{}\n")
    with pytest.raises(CorruptBatchError, match="truncation-marker is corrupt"):
        read_marker(log.directory, disk=data.disk)
    [corruption] = data.die().corruption
    assert corruption.file.name == MARKER_NAME


@pytest.mark.parametrize("size", [50, 1500], ids=["in one segment", "over segments"])
def test_without_its_marker_a_log_ends_as_the_journal_does(data, size):
    """Batches in the journal from before the truncation give way to those from after it."""
    data.checkpoint()
    for _ in range(6):
        data.turn(A, size=size)
    log = cut(data, 2)
    for _ in range(2):
        data.turn(A, size=size + 7)
    (log.directory / MARKER_NAME).write_bytes(b"00000000\n{}\n")
    [corruption] = data.die().corruption
    assert corruption.file.name == MARKER_NAME
    data.check(A)


@pytest.mark.parametrize(
    ("at", "first", "is_newer"),
    [(6, 0, False), (7, 0, False), (5, 99, True), (None, 13, True), (None, 14, False)],
)
def test_a_marker_counts_if_it_is_newer_than_the_checkpoint(at, first, is_newer):
    """Without one, if the journal goes on where it was written, or before."""
    marker = TruncationMarker(sequence=12, state=replace(NEW_LOG, truncations=6))
    known = None if at is None else replace(NEW_LOG, truncations=at)
    assert marker.is_newer(known, SimpleNamespace(first_sequence=first)) is is_newer
