"""Offset and time indexes: found through them, rebuilt without them, never believed blindly."""

import pytest

from strandline.errors import CorruptBatchError
from strandline.record.batch import read_header
from strandline.storage.offset_index import (
    INTERVAL_BYTES,
    KIND_OFFSETS,
    KIND_TIMES,
    IndexFile,
    SparseIndex,
    decode_index,
)
from strandline.storage.segment import INDEX_LAG_BYTES


@pytest.fixture
def index():
    """Entries 10, 20, 20, 30 at positions 0, 100, 200, 300."""
    made = SparseIndex()
    for key, position in ((10, 0), (20, 100), (20, 200), (30, 300)):
        made.add(key, position)
    return made


def test_lookups(index):
    """Floor takes the last entry at most the key, below the last one under it."""
    assert [index.floor(key) for key in (9, 10, 20, 99)] == [(-1, 0), (10, 0), (20, 200), (30, 300)]
    assert [index.below(key) for key in (10, 20, 21)] == [(-1, 0), (10, 0), (20, 200)]
    assert index.beyond(100) == (20, 200)
    assert index.beyond(300) is None
    assert [index.offset_at(position) for position in (0, 99, 300)] == [10, 10, 30]
    assert SparseIndex().offset_at(5) == -1


def test_cut_leaves_the_original(index):
    """The shortened copy lacks the entries at and after the position."""
    assert list(index.before(200).positions) == [0, 100]
    assert len(index) == 4


def test_file_round_trip_and_every_flip(index):
    """An index file decodes to what was encoded; any flipped bit invalidates it."""
    about = IndexFile(KIND_OFFSETS, 400, 40, 7)
    data = index.encode(about)
    decoded = decode_index(data, KIND_OFFSETS)
    assert decoded is not None
    assert decoded[0] == about
    assert decoded[1].keys == index.keys
    assert decode_index(data, KIND_TIMES) is None
    assert decode_index(data[:-1], KIND_OFFSETS) is None
    assert decode_index(b"", KIND_OFFSETS) is None
    for byte in range(len(data)):
        flipped = bytearray(data)
        flipped[byte] ^= 4
        assert decode_index(flipped, KIND_OFFSETS) is None


def filled(open_log, make_batch, *, at=None):
    """A log of a few index intervals, whose timestamps sometimes step back."""
    log = open_log(at, segment_bytes=5 * INTERVAL_BYTES)
    for turn in range(100):
        time_ns = turn * 10 - (35 if turn % 7 == 6 else 0)
        batch = make_batch(log.log_end_offset, 2, size=INTERVAL_BYTES // 8, time_ns=time_ns)
        log.append(batch, read_header(batch))
    return log


def expected_offset(wanted):
    """The first record at or after a time, by walking all of ``filled``."""
    for turn in range(100):
        if turn * 10 - (35 if turn % 7 == 6 else 0) >= wanted:
            return turn * 2
    return 200


@pytest.mark.parametrize("corruption", ["none", "missing", "garbage", "too long"])
def test_reopened_indexes(open_log, make_batch, corruption):
    """Offsets and times are found with index files, without them and with useless ones."""
    log = filled(open_log, make_batch)
    before = [(s.index.positions, s.times.keys) for s in log.segments]
    at = log.checkpoint()
    log.flush()
    for segment in log.segments[:-1]:
        for suffix in (".index", ".timeindex"):
            path = segment.path.with_suffix(suffix)
            assert path.exists()
            if corruption == "missing":
                path.unlink()
            elif corruption == "garbage":
                path.write_bytes(b"\0" * 100)
            elif corruption == "too long":
                about = IndexFile(KIND_OFFSETS, 1 << 40, 0, 0)
                path.write_bytes(SparseIndex().encode(about))
    again = open_log(at, segment_bytes=5 * INTERVAL_BYTES)
    for offset in range(0, 200, 3):
        assert again.read(offset, 1).base_offset == offset // 2 * 2
    for wanted in range(-5, 1005, 7):
        assert again.offset_for_timestamp(wanted) == expected_offset(wanted)
    loaded = [segment.load_indexes() for segment in again.segments]
    assert [(index.positions, times.keys) for index, times in loaded] == before


@pytest.mark.parametrize("byte", [16, 17, 21, 28, 30], ids="offset{}".format)
@pytest.mark.parametrize("size", [500, INTERVAL_BYTES // 8, 2 * INTERVAL_BYTES])
def test_a_rebuilt_index_believes_no_corrupt_header(open_log, make_batch, byte, size):
    """Whichever of its offset and count is flipped: its neighbours stay readable."""
    count = max(8, 6 * INTERVAL_BYTES // size)
    log = open_log(segment_bytes=1 << 30)
    for _ in range(count):
        batch = make_batch(log.log_end_offset, 2, size=size // 2)
        log.append(batch, read_header(batch))
    log.roll()
    batch = make_batch(log.log_end_offset)
    log.append(batch, read_header(batch))
    at = log.checkpoint()
    log.flush()
    path = log.segments[0].path
    positions = [log.segments[0].locate(offset).position for offset in range(0, 2 * count, 2)]
    intact = path.read_bytes()
    marked = log.segments[0].load_indexes()[0].positions
    for victim in map(positions.index, marked):  # the others nobody asks for
        data = bytearray(intact)
        data[positions[victim] + byte] ^= 4
        path.write_bytes(data)
        for suffix in (".index", ".timeindex"):
            path.with_suffix(suffix).unlink(missing_ok=True)
        again = open_log(at, segment_bytes=1 << 30)
        for turn in range(count):
            if turn == victim:
                with pytest.raises(CorruptBatchError) as caught:
                    again.read(2 * turn, 1)
                assert caught.value.next_offset == 2 * turn + 2
            else:
                assert again.read(2 * turn, 1).base_offset == 2 * turn


def test_index_files_of_an_active_segment_lag(open_log, make_batch):
    """They are written when it has grown by a good deal, and reach as far as it was then."""
    log = open_log(segment_bytes=1 << 30)
    path = log.segments[-1].path.with_suffix(".index")

    def grow(length):
        batch = make_batch(log.log_end_offset, 1, size=length)
        log.append(batch, read_header(batch))
        log.checkpoint()
        log.flush()
        return path.stat().st_size if path.exists() else 0

    assert grow(INDEX_LAG_BYTES // 2) == 0
    written = grow(INDEX_LAG_BYTES // 2)
    assert written
    assert grow(INDEX_LAG_BYTES // 2) == written
    assert grow(INDEX_LAG_BYTES // 2) > written


@pytest.mark.parametrize("is_sealed", [False, True])
def test_index_files_tell_nothing_of_what_was_truncated(open_log, make_batch, is_sealed):
    """After a truncation the index has only the new batches, however old its files are."""
    log = open_log(segment_bytes=1 << 30)

    def grow(count, size):
        for _ in range(count):
            batch = make_batch(log.log_end_offset, 1, size=size)
            log.append(batch, read_header(batch))

    grow(40, INDEX_LAG_BYTES // 20)
    if is_sealed:
        log.roll()
    log.checkpoint()
    log.flush()
    log.truncate_to(5)
    grow(30, INDEX_LAG_BYTES // 14)
    at = log.checkpoint()
    log.flush()
    index, times = log.segments[-1].index, log.segments[-1].times
    [segment] = open_log(at, segment_bytes=1 << 30).segments
    found = segment.load_indexes()
    assert (found[0].positions, found[0].keys) == (index.positions, index.keys)
    assert (found[1].positions, found[1].keys) == (times.positions, times.keys)


def test_index_is_sparse(open_log, make_batch):
    """There is about one entry per interval, and one per large batch."""
    log = filled(open_log, make_batch)
    for segment in log.segments[:-1]:
        assert len(segment.index) <= segment.size // INTERVAL_BYTES + 1


def test_time_within_a_batch(open_log):
    """Inside a batch that spans the time the record is found; removed records never are."""
    import pyarrow as pa

    from strandline.record.codec import Stamp, encode_arrow

    log = open_log()
    rows = pa.record_batch({"value": [b"a", b"b", b"c", b"d"]})
    times = pa.array([10, 30, 20, 40], pa.int64())
    batch = bytes(encode_arrow(rows, Stamp(0, 0, 0), default_subject="s", timestamps_ns=times))
    log.append(batch, read_header(batch))
    assert [log.offset_for_timestamp(t) for t in (5, 10, 11, 30, 31, 41)] == [0, 0, 1, 1, 3, 4]
    log.delete_before(2)
    assert [log.offset_for_timestamp(t) for t in (5, 25, 41)] == [2, 3, 4]


def test_time_beyond_corruption(open_log, fill):
    """A corrupt batch is passed over when a time is looked up."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 6)
    log.checkpoint()
    data = bytearray(log.segments[0].path.read_bytes())
    data[2 * len(batches[0]) + 5] ^= 1
    log.segments[0].path.write_bytes(data)
    assert log.offset_for_timestamp(4) == 6
    assert log.offset_for_timestamp(2) == 2
