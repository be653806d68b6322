"""Removed segments free their space and descriptors, even while they are being read."""

import os
from pathlib import Path

import pytest

from strandline.record.batch import read_header
from strandline.storage.compaction import Compactor
from strandline.storage.disk import EMPTIED_BYTES_MIN, Disk
from strandline.storage.log import Log
from strandline.storage.mapped_segments import MappedSegments
from strandline.storage.segment_reads import RetiredSegmentError

SEGMENT_BYTES = 2 * EMPTIED_BYTES_MIN


def held_files(directory: Path) -> list[str]:
    """Files of a directory that this process has open or mapped, removed ones included."""
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    lines = Path("/proc/self/maps").read_text().splitlines()
    names = [*opened, *(line.split(maxsplit=5)[-1] for line in lines)]
    return [name for name in names if str(directory) in name]


@pytest.fixture
def full_log(tmp_path, make_batch):
    """A log of five large segments, all of them written and synced."""
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=SEGMENT_BYTES, segment_age_ms=0)
    while len(log.segments) < 5:
        batch = make_batch(log.log_end_offset, size=SEGMENT_BYTES // 4, keys=[b"k"])
        log.append(batch, read_header(batch))
    log.mark_checkpointed(log.checkpoint())
    log.flush()
    return log


def compact(log: Log) -> None:
    """Keep the newest record only."""
    compactor = Compactor(log, disk=Disk(), tombstone_delay_ms=0)
    end = log.log_end_offset
    prepared = compactor.prepare(below=end, tombstones_below=end, now_ns=10**18)
    compactor.apply(prepared)


REMOVALS = {
    "delete_before": lambda log: log.delete_before(log.log_end_offset),
    "truncate_to": lambda log: log.truncate_to(1),
    "restart": lambda log: log.restart_at(log.log_end_offset + 1),
    "compaction": compact,
    "delete": lambda log: log.delete(),
}


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_no_removed_file_stays_open_or_mapped(full_log, tmp_path, remove):
    """Readers have mapped every segment, and one has taken the segments to read them later."""
    taken = full_log.segments
    offset = 0
    while offset < full_log.log_end_offset:
        offset = full_log.read(offset, 1).next_offset
    assert len(held_files(tmp_path)) >= 5
    remove(full_log)
    assert [name for name in held_files(tmp_path) if "deleted" in name] == []
    assert taken


@pytest.mark.parametrize("remove", REMOVALS.values(), ids=REMOVALS)
def test_what_a_reader_holds_outlives_the_removal(full_log, tmp_path, remove):
    """Its bytes stay as they are, and the space comes back with the last of them."""
    held = full_log.read(2, 1).buffer
    wanted = bytes(held)
    remove(full_log)
    assert held == wanted
    assert [name for name in held_files(tmp_path) if "deleted" in name] != []
    del held
    assert [name for name in held_files(tmp_path) if "deleted" in name] == []


@pytest.mark.parametrize("remove", ["delete_before", "restart", "delete"])
def test_the_space_does_not_wait_for_another_process(full_log, remove):
    """A reader on this machine has the file open: it finds it empty, and asks the broker."""
    other = os.open(full_log.segments[0].path, os.O_RDONLY)
    try:
        REMOVALS[remove](full_log)
        assert os.fstat(other).st_size == 0
    finally:
        os.close(other)


def test_a_file_with_another_name_is_not_emptied(full_log, tmp_path):
    """A backup by hard links keeps its contents."""
    backup = tmp_path / "backup"
    os.link(full_log.segments[0].path, backup)
    size = backup.stat().st_size
    full_log.delete_before(full_log.log_end_offset)
    assert backup.stat().st_size == size


def test_a_segment_removed_while_it_is_read_is_looked_for_again(full_log, monkeypatch):
    """The read continues with the log's present segments."""
    first, look = full_log.segments[0], Log._read

    def remove_first(log, layout, offset, bytes_max, **more):
        if layout.segments[0] is first:
            log.delete_before(layout.segments[1].base_offset)
            first.view(0, 1)
        return look(log, layout, offset, bytes_max, **more)

    monkeypatch.setattr(Log, "_read", remove_first)
    start = full_log.segments[1].base_offset
    assert full_log.read(start, 1).base_offset == start
    with pytest.raises(RetiredSegmentError):
        first.view(0, 1)


def test_files_removed_later_are_gone_from_the_log_at_once(full_log):
    """The caller decides when files are removed; readers no longer see them before that."""
    later = []
    full_log.reclaim_with(later.append)
    path = full_log.segments[0].path
    full_log.delete_before(full_log.log_end_offset)
    assert len(full_log.segments) == 1
    assert path.exists()
    for removal in later:
        removal()
    assert not path.exists()


def test_a_removed_segment_takes_no_file_from_the_next_one_of_its_name(tmp_path, make_batch):
    """It was in memory only, and the log has grown again before the removal was carried out."""
    later = []
    log = Log.open(tmp_path / "log", disk=Disk(), segment_bytes=1000, segment_age_ms=0)
    log.reclaim_with(later.append)
    batches = [make_batch(offset, size=600) for offset in range(2)]
    for batch in batches:
        log.append(batch, read_header(batch))
    log.undo_to(0)
    for batch in batches:
        log.append(batch, read_header(batch))
    log.write_pending()
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    for removal in later:
        removal()
    assert [segment.path.exists() for segment in log.segments] == [True, True]


class Release:
    """A segment that counts how often it was released."""

    def __init__(self):
        self.count = 0

    def release(self):
        self.count += 1


def test_the_segment_read_the_longest_ago_gives_up_its_map():
    """There are never more maps than are allowed."""
    mapped = MappedSegments(maps_max=2)
    first, second, third = Release(), Release(), Release()
    for segment in (first, second, first, third):
        mapped.note_use(segment)
    assert (first.count, second.count, third.count) == (0, 1, 0)
    assert len(mapped) == 2


def test_a_segment_that_nobody_reads_gives_up_its_map():
    """One sweep later, unless it was read meanwhile."""
    mapped = MappedSegments()
    idle, busy = Release(), Release()
    mapped.note_use(idle)
    mapped.note_use(busy)
    mapped.sweep()
    mapped.note_use(busy)
    mapped.sweep()
    assert (idle.count, busy.count) == (1, 0)
    assert len(mapped) == 1


def test_a_segment_counts_once_however_often_it_is_read():
    """Before and after a sweep it is the same map; one that was unmapped does not count."""
    mapped = MappedSegments(maps_max=2)
    first, second = Release(), Release()
    mapped.note_use(first)
    mapped.sweep()
    mapped.note_use(first)
    assert len(mapped) == 1
    mapped.note_use(second)
    mapped.sweep()
    mapped.note_use(second)
    assert (first.count, second.count, len(mapped)) == (0, 0, 2)
    for each in (first, second):
        mapped.forget(each)
    mapped.sweep()
    mapped.sweep()
    assert (first.count, second.count, len(mapped)) == (0, 0, 0)
