"""Reading a log: whole intact batches, holes named, any number of threads, memory flat."""

import gc
import threading

import pytest

from strandline.errors import CorruptBatchError, LogPoisonedError, OffsetOutOfRangeError
from strandline.record.batch import check_batch, read_header
from strandline.storage.disk import Disk
from strandline.storage.log import Log
from strandline.storage.mapped_segments import MAPPED_SEGMENTS
from strandline.storage.offset_index import INTERVAL_BYTES
from strandline.storage.segment import Segment
from strandline.storage.segment_reads import AHEAD_BYTES, RetiredSegmentError


def seal(log, *, sealed):
    """Write everything, and seal it if asked."""
    if sealed:
        log.roll()
    log.checkpoint()
    log.flush()


class CountedBatches(list):
    """Batches that count how many of them are looked at."""

    looked_at = 0

    def __getitem__(self, number):
        self.looked_at += 1
        return super().__getitem__(number)


@pytest.mark.parametrize("sealed", [False, True])
def test_read_starts_with_the_batch_that_holds_the_offset(open_log, fill, sealed):
    """Any offset finds its batch, and one batch comes whatever the byte limit."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 300, count=3, size=200)
    seal(log, sealed=sealed)
    for offset in range(900):
        found = log.read(offset, 1)
        assert found.buffer == batches[offset // 3]
        assert (found.base_offset, found.next_offset) == (offset // 3 * 3, offset // 3 * 3 + 3)


def test_batches_that_are_in_memory_only_are_read_alone(open_log, fill):
    """However many there are, a read looks at those near the offset; also after a truncation."""
    log = open_log(segment_bytes=1 << 24)
    batches = fill(log, 2_000, count=1, size=200)
    log.truncate_to(1_500)
    batches[1_500:] = fill(log, 1_000, count=1, size=200)
    [segment] = log.segments
    pending = CountedBatches(segment._tail.pending)
    segment._tail = segment._tail._replace(pending=pending)
    for offset in range(0, 2_500, 7):
        assert log.read(offset, 1).buffer == batches[offset]
        several = bytes(log.read(offset, 3_000).buffer)
        assert several == b"".join(batches[offset:])[: len(several)]
        assert len(several) > 2_500 or offset > 2_490
    assert 0 < pending.looked_at < 2_500 / 7 * (INTERVAL_BYTES / len(batches[0]) + 20)


@pytest.mark.parametrize("bytes_max", [0, 100, 1000, 5000, 1 << 20])
def test_read_returns_whole_batches_up_to_the_limit(open_log, fill, read_all, bytes_max):
    """Slices have whole batches, within the limit or a single one."""
    log = open_log(segment_bytes=5000)
    batches = fill(log, 100)
    found = log.read(20, bytes_max)
    assert len(found.buffer) <= max(bytes_max, len(batches[10]))
    assert len(found.buffer) % 8 == 0
    check_batch(found.buffer)
    assert read_all(log, bytes_max=bytes_max) == b"".join(batches)


def test_read_stops_below_a_limit(open_log, fill):
    """Only batches whose base offset is below the limit are served."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 10)
    assert log.read(4, 10_000, below=8).buffer == b"".join(batches[2:4])
    assert log.read(4, 10_000, below=7).buffer == b"".join(batches[2:4])
    assert log.read(4, 10_000, below=4).buffer == b""
    assert log.read(4, 10_000, below=4).next_offset == 4


def test_read_at_and_beyond_the_ends(open_log, fill):
    """At the end there is nothing yet; outside the log is an error that names its bounds."""
    log = open_log()
    fill(log, 10)
    log.delete_before(3)
    end = log.read(20, 100)
    assert (end.buffer, end.next_offset) == (b"", 20)
    for offset in (-1, 2, 21):
        with pytest.raises(OffsetOutOfRangeError, match=r"3 up to .* 20"):
            log.read(offset, 100)


def test_sealed_segments_are_served_without_a_copy(open_log, fill):
    """Two reads of a sealed segment see the same memory, eight-byte aligned."""
    log = open_log()
    fill(log, 30)
    first, again = log.read(0, 10_000).buffer, log.read(0, 10_000).buffer
    assert first.obj is again.obj
    for offset in range(0, 60, 2):
        buffer = log.read(offset, 10).buffer
        import numpy as np

        assert np.frombuffer(buffer, dtype="u1").ctypes.data % 8 == 0


@pytest.mark.parametrize("sealed", [False, True])
def test_flip_in_every_byte_of_a_batch(open_log, fill, sealed):
    """Found, reported with file, position and offsets, not served; its neighbours are."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 5)
    seal(log, sealed=sealed)
    path = log.segments[0].path
    data = path.read_bytes()
    start, end = len(batches[0]) * 2, len(batches[0]) * 3
    for byte in range(start, end):
        flipped = bytearray(data)
        flipped[byte] ^= 1 << (byte % 8)
        path.write_bytes(flipped)
        log.segments[0]._hints.clear()
        log.segments[0].release()
        for offset in (4, 5):
            with pytest.raises(CorruptBatchError) as caught:
                log.read(offset, 10_000)
            error = caught.value
            assert (error.file, error.position) == (str(path), start)
            assert (error.first_offset, error.next_offset) == (4, 6)
        assert log.read(0, 10_000).buffer == b"".join(batches[:2])
        assert log.read(6, 10_000).buffer == b"".join(batches[3:])


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("where", ["first", "last", "all", "two apart", "header and next"])
def test_holes_anywhere(open_log, fill, sealed, where):
    """Reading on from ``next_offset`` after each hole serves exactly the intact batches."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 9)
    seal(log, sealed=sealed)
    corrupt = {
        "first": {0},
        "last": {8},
        "all": set(range(9)),
        "two apart": {2, 5},
        "header and next": {3, 4},
    }[where]
    data = bytearray(log.segments[0].path.read_bytes())
    for number in corrupt:
        data[number * len(batches[0]) + 8] ^= 0x18  # the length: the next batch must be searched
    log.segments[0].path.write_bytes(data)
    offset, found, holes = 0, b"", []
    while offset < log.log_end_offset:
        try:
            part = log.read(offset, 400)
            found += part.buffer
            offset = part.next_offset
        except CorruptBatchError as error:
            holes.append((error.first_offset, offset, error.next_offset))
            offset = error.next_offset
    assert found == b"".join(b for n, b in enumerate(batches) if n not in corrupt)
    assert all(first <= offset < following for first, offset, following in holes)


@pytest.mark.parametrize("corrupt_length", [False, True])
def test_record_that_holds_a_batch_is_not_served_as_one(open_log, make_batch, corrupt_length):
    """A batch stored inside a record does not show up when the record around it is corrupt."""
    log = open_log(segment_bytes=1 << 20)
    outer = make_batch(1, size=400)
    at = (outer.index(b"1:") + 7) & ~7
    inner = make_batch(9, 1)
    outer = outer[:at] + inner + outer[at + len(inner) :]
    for batch in (make_batch(0), outer, make_batch(2)):
        log.append(batch, read_header(batch))
    if corrupt_length:
        log.checkpoint()
        contents = bytearray(log.segments[0].path.read_bytes())
        contents[len(make_batch(0)) + 8] ^= 0x18
        log.segments[0].path.write_bytes(contents)
    with pytest.raises(CorruptBatchError) as caught:
        log.read(1, 1000)
    assert caught.value.next_offset == 2


def test_corruption_behind_a_remembered_place(open_log, fill):
    """A sequential reader meets corruption that appeared after its last read."""
    log = open_log(segment_bytes=1 << 20)
    batches = fill(log, 6)
    seal(log, sealed=False)
    assert log.read(0, len(batches[0])).next_offset == 2
    data = bytearray(log.segments[0].path.read_bytes())
    data[len(batches[0]) + 100] ^= 1
    log.segments[0].path.write_bytes(data)
    with pytest.raises(CorruptBatchError):
        log.read(2, 10_000)
    assert log.read(2, 10_000, verify=False).base_offset == 2


def test_notes_about_places_do_not_outlive_a_cut(open_log, make_batch):
    """A remembered place means nothing once other batches may lie there."""
    log = open_log(segment_bytes=1 << 20)
    pair = make_batch(2, 2, size=40)
    three = next(b for size in range(40) if len(b := make_batch(2, 3, size=size)) == len(pair))
    for batch in (make_batch(0, 2, size=40), pair):
        log.append(batch, read_header(batch))
    assert log.read(2, 1000).next_offset == 4
    log.truncate_to(2)
    for batch in (three, make_batch(5)):
        log.append(batch, read_header(batch))
    assert log.read(4, 1000).base_offset == 2


class SeenOpen(Segment):
    """A sealed segment that readers see in an older state for their first ``looks`` accesses."""

    __slots__ = ("looks",)

    @property
    def sealed(self):
        return self.looks.pop() if self.looks else True

    @sealed.setter
    def sealed(self, value):
        pass


def test_a_reader_that_saw_a_segment_open_is_told_when_it_is_gone(tmp_path, make_batch):
    """Between its look and its read the segment was sealed, synced and deleted by others."""
    segment = SeenOpen(tmp_path, 0, disk=Disk())
    segment.looks = [False] * 10
    batch = make_batch(0, 2)
    segment.append(batch, read_header(batch))
    segment.write_pending()
    segment.looks = []
    segment.sync()
    segment.remove_files()
    segment.release()
    segment.looks = [False]
    with pytest.raises(RetiredSegmentError):
        segment.view(0, len(batch))


def test_readers_on_many_threads(tmp_path, make_batch):
    """Readers see whole batches in order while the owner appends, rolls, truncates and deletes."""
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=4000, segment_age_ms=0)
    failures: list[Exception] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                offset = log.log_start_offset
                for _ in range(200):
                    try:
                        found = log.read(offset, 3000)
                    except OffsetOutOfRangeError:
                        break  # the owner removed or cut what was about to be read
                    at = 0
                    while at < len(found.buffer):
                        at += check_batch(found.buffer, at).length
                    offset = found.next_offset
        except Exception as error:  # noqa: BLE001 - the test thread reports any
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(600):
        batch = make_batch(log.log_end_offset, 2, size=turn % 300)
        log.append(batch, read_header(batch))
        if turn % 97 == 0:
            log.delete_before(max(log.log_start_offset, log.log_end_offset - 100))
        if turn % 61 == 0:
            log.checkpoint()
            log.flush()
        if turn % 173 == 0:
            log.truncate_to(max(log.log_end_offset - 5, log.log_start_offset))
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_maps_and_memory_stay_few(open_log, fill, read_all, monkeypatch):
    """Reading through many segments keeps only a few of them mapped, and none of them open."""
    monkeypatch.setattr(MAPPED_SEGMENTS, "maps_max", 8)
    log = open_log()
    batches = fill(log, 200)
    log.checkpoint()
    log.flush()
    assert read_all(log) == b"".join(batches)
    gc.collect()
    assert sum(s._map is not None for s in log.segments) <= 8
    assert sum(s._file is not None for s in log.segments) <= 1, "the active one"


def test_sequential_reads_ask_ahead(tmp_path, make_batch):
    """The system is asked for the next stretch once per stretch, and for the next segment."""
    asked: list[tuple[int, int]] = []

    class Asked(Disk):
        def will_need(self, fd, position, length):
            asked.append((position, length))

    log = Log.open(tmp_path / "log", disk=Asked(), segment_bytes=3 * AHEAD_BYTES, segment_age_ms=0)
    batch = make_batch(0, size=AHEAD_BYTES // 8)
    while len(log.segments) < 3:
        batch = make_batch(log.log_end_offset, size=AHEAD_BYTES // 8)
        log.append(batch, read_header(batch))
    offset = 0
    while offset < log.log_end_offset:
        offset = log.read(offset, 1 << 20).next_offset
    assert 4 <= len(asked) <= 12
    assert asked[0][0] > 0
    assert (0, 2 * AHEAD_BYTES) in asked


def test_advice_about_a_file_that_is_deleted_just_then_is_not_given(tmp_path, make_batch):
    """A reader that has its batch gets it, though retention took the next segment away."""
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=2 * AHEAD_BYTES, segment_age_ms=0)
    batches = [make_batch(offset, size=AHEAD_BYTES * 3 // 4) for offset in range(3)]
    for batch in batches:
        log.append(batch, read_header(batch))
    seal(log, sealed=True)
    deleted = log.segments[1]
    deleted.release()
    deleted.path.unlink()
    assert log.read(1, 1).buffer == batches[1], "it enters a stretch that is the segment's last"
    with pytest.raises(LogPoisonedError):
        log.read(2, 1)


def test_records_that_are_missing_are_corruption_where_nothing_was_compacted(open_log, fill):
    """A file that was truncated between two batches, or is missing, is reported."""
    log = open_log(segment_bytes=1000)
    batches = fill(log, 30)
    seal(log, sealed=True)
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    cut, gone = log.segments[1].path, log.segments[3].path
    last = len(batches[bases[2] // 2 - 1])
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size - last)
    gone.unlink()
    log = open_log(segment_bytes=1000)
    for first, following in ((bases[2] - 2, bases[2]), (bases[3], bases[4])):
        assert log.read_dense(first - 2, 1).buffer == batches[first // 2 - 1]
        assert log.read(first, 1).base_offset == following, "as if compacted"
        with pytest.raises(CorruptBatchError, match="missing") as caught:
            log.read_dense(first, 1)
        assert (caught.value.first_offset, caught.value.next_offset) == (first, following)
    assert log.read_dense(log.log_end_offset, 1).buffer == b""


def test_a_segment_of_before_is_as_durable_as_it_was(open_log, fill, disk):
    """Nothing of it is synced, written or indexed again."""
    log = open_log(segment_bytes=1 << 20)
    fill(log, 10)
    seal(log, sealed=True)
    [first, _] = log.segments
    again = Segment.sealed_on_disk(
        log.directory, 0, disk=disk, size=first.size, next_offset=first.next_offset
    )
    assert first.is_durable
    assert again.is_durable
    assert again.is_indexed
    assert (again.size, again.next_offset) == (first.size, 20)
