"""The journal: one entry for each group commit, recycling, poisoning, full disks, and replay."""

import collections
import errno
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import DiskFullError, LogPoisonedError
from strandline.record.codec import Stamp, encode_records
from strandline.storage.disk import Disk
from strandline.storage.faulty_disk import keep_all
from strandline.storage.journal import Journal
from strandline.storage.journal_file import (
    ENTRY_MAGIC,
    FILE_HEADER_BYTES,
    entry_struct,
    read_entry,
)
from strandline.types import LogId

FILE_BYTES = 8192


@pytest.fixture
def open_journal(tmp_path, disk):
    """Opens the test's journal."""

    def open_(after_sequence=0, *, file_bytes=FILE_BYTES):
        return Journal.open(
            tmp_path / "journal", disk=disk, file_bytes=file_bytes, after_sequence=after_sequence
        )

    return open_


def contents(journal, after=0):
    """Sequence and parts of every entry that is replayed."""
    return [
        (entry.sequence, [(log_id, bytes(part)) for log_id, part in entry.parts])
        for entry in journal.replay(after)
    ]


def test_the_disk_begins_with_what_a_sync_will_wait_for(
    open_journal, make_batch, disk, monkeypatch
):
    """Each part of a file once; of a poisoned journal none."""
    begun = []
    monkeypatch.setattr(disk, "write_back", lambda _, *part: begun.append(part))
    journal = open_journal()
    journal.begin_sync()
    assert begun == []
    journal.append([(LogId(1), make_batch(0))])
    end = journal._position
    for _ in range(2):
        journal.begin_sync()
        assert begun == [(0, end)]
    journal.append([(LogId(1), make_batch(1))])
    journal.begin_sync()
    assert begun == [(0, end), (end, journal._position - end)]
    journal.append([(LogId(1), make_batch(2, 1, size=FILE_BYTES))])  # another file
    journal.begin_sync()
    assert begun[2] == (0, journal._position)
    journal.append([(LogId(1), make_batch(3))])
    journal.poison()
    journal.begin_sync()
    assert len(begun) == 3


def test_entries_come_back_in_order(open_journal, make_batch):
    """Entries are replayed with their sequences, log ids and bytes."""
    journal = open_journal()
    batch, other = make_batch(0), make_batch(7, 3)
    assert journal.append([(LogId(1), batch)]) == 1
    assert journal.append([(LogId(2), other), (LogId(1), batch), (LogId(2), other)]) == 2
    assert journal.append([]) == 3
    again = open_journal()
    assert contents(again) == [
        (1, [(1, batch)]),
        (2, [(2, other), (1, batch), (2, other)]),
        (3, []),
    ]
    assert contents(open_journal(), after=1)[0][0] == 2
    assert again.last_sequence == 3
    assert again.corruption == []


def test_one_sync_covers_all_entries(open_journal, make_batch, disk):
    """Any number of entries need one sync; a second without new entries needs none."""
    journal = open_journal()
    for _ in range(5):
        journal.append([(LogId(1), make_batch(0))])
    before = disk.syncs
    assert (journal.last_sequence, journal.synced_sequence) == (5, 0)
    journal.sync()
    journal.sync()
    assert disk.syncs == before + 1
    assert journal.synced_sequence == 5


def test_sync_elsewhere_is_reported_back(open_journal, make_batch, disk):
    """A sync on another thread covers what was written when it began."""
    journal = open_journal()
    assert journal.sync_target() == (-1, 0)
    journal.append([(LogId(1), make_batch(0))])
    fd, sequence = journal.sync_target()
    journal.append([(LogId(1), make_batch(1))])
    disk.fdatasync(fd)
    journal.mark_synced(sequence)
    assert journal.synced_sequence == 1
    journal.poison()
    journal.mark_synced(2)
    assert journal.synced_sequence == 1


def test_unsynced_entries_are_lost_with_power_and_synced_ones_are_not(
    open_journal, make_batch, disk
):
    """After a power loss the journal has exactly the synced entries."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    journal.append([(LogId(1), make_batch(1))])
    del journal
    disk.crash()
    assert [sequence for sequence, _ in contents(open_journal())] == [1]


def test_rolling_syncs_the_old_file_first(open_journal, make_batch, disk):
    """Entries spread over several files survive as a row: none before a survivor is missing."""
    journal = open_journal()
    batch = make_batch(0, size=1000)
    for _ in range(20):
        journal.append([(LogId(1), batch)])
    synced = journal.synced_sequence
    assert 0 < synced < 20
    del journal
    disk.crash()
    assert [sequence for sequence, _ in contents(open_journal())] == list(range(1, synced + 1))


def test_recycled_files_do_not_bring_old_entries_back(open_journal, make_batch, disk):
    """Files are recycled without being cleared, and only new entries are replayed."""
    journal = open_journal()
    batch = make_batch(0, size=500)
    for _ in range(30):
        journal.append([(LogId(1), batch)])
    journal.sync()
    journal.recycle(journal.last_sequence)
    assert journal.spares > 0
    checkpoint = journal.last_sequence
    for _ in range(3):
        journal.append([(LogId(2), make_batch(0))])
    journal.sync()
    again = open_journal(checkpoint)
    assert [sequence for sequence, _ in contents(again)] == [31, 32, 33]
    assert again.corruption == []
    assert again.torn_bytes == 0


def test_recycling_keeps_what_is_still_needed(open_journal, make_batch):
    """Only files wholly at or before the checkpoint are reused."""
    journal = open_journal()
    for _ in range(30):
        journal.append([(LogId(1), make_batch(0, size=500))])
    journal.sync()
    total = journal.bytes_since_recycle
    journal.recycle(10)
    assert 0 < journal.bytes_since_recycle <= total
    assert [s for s, _ in contents(open_journal(10))] == list(range(11, 31))
    journal.recycle(30)
    assert journal.bytes_since_recycle == 0


def test_steady_state_creates_no_files(open_journal, make_batch, tmp_path):
    """With regular checkpoints the journal creates no new files."""
    journal = open_journal()
    for turn in range(400):
        journal.append([(LogId(1), make_batch(0, size=500))])
        if turn % 20 == 19:
            journal.sync()
            journal.recycle(journal.last_sequence)
        if turn == 100:
            files = sorted((tmp_path / "journal").iterdir())
    assert sorted((tmp_path / "journal").iterdir()) == files


def test_a_file_is_wanted_where_no_checkpoint_frees_one_in_time(open_journal, make_batch):
    """At the start; and when the last file is half full while others wait for a checkpoint."""
    journal = open_journal(file_bytes=FILE_BYTES * 8)
    assert journal.needs_spare
    journal.allocate_spare()
    assert not journal.needs_spare
    journal.append([(LogId(1), make_batch(0))])
    assert journal.needs_spare, "nothing is full that could be used again"
    journal.allocate_spare()
    while not journal.full_files:
        journal.append([(LogId(1), make_batch(0, size=FILE_BYTES))])
    assert not journal.needs_spare, "a checkpoint frees the one that is full"
    before = journal._position
    journal.append([(LogId(1), make_batch(0, size=FILE_BYTES))])
    overhead = journal._position - before - FILE_BYTES
    rest = FILE_BYTES * 4 - journal._position - overhead
    journal.append([(LogId(1), make_batch(0, size=rest))])
    assert journal._position == FILE_BYTES * 4, "half full"
    assert not journal.needs_spare
    journal.append([(LogId(1), make_batch(0))])
    assert journal.needs_spare, "it does not come"
    journal.sync()
    journal.recycle(journal.last_sequence)
    assert not journal.needs_spare
    assert not journal.full_files


def test_entry_larger_than_a_file_gets_a_larger_file(open_journal, make_batch, tmp_path):
    """An entry of any size is stored; its outsized file is not kept as a spare."""
    journal = open_journal()
    batch = make_batch(0, size=3 * FILE_BYTES)
    journal.append([(LogId(1), batch)])
    journal.append([(LogId(1), make_batch(1))])
    assert contents(open_journal())[0] == (1, [(1, batch)])
    journal.sync()
    journal.recycle(1)
    assert all(f.stat().st_size == FILE_BYTES for f in (tmp_path / "journal").iterdir())


def test_no_space_for_a_file_is_not_fatal(open_journal, make_batch, disk, tmp_path):
    """Creating a file on a full disk fails before anything is written and works later."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    disk.full = True
    journal.append([(LogId(1), make_batch(1))])
    journal.sync()
    with pytest.raises(DiskFullError):
        collections.deque(
            (journal.append([(LogId(1), make_batch(2, size=500))]) for _ in range(100)), maxlen=0
        )
    last = journal.last_sequence
    assert not journal.poisoned
    assert len(list((tmp_path / "journal").iterdir())) == 1
    with pytest.raises(DiskFullError):
        journal.allocate_spare()
    disk.full = False
    assert journal.append([(LogId(1), make_batch(2, size=500))]) == last + 1
    journal.sync()
    assert len(contents(open_journal())) == last + 1


def test_spare_made_ahead_is_used(open_journal, make_batch, disk):
    """A spare file made beforehand lets a roll succeed even on a full disk."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0, size=3000))])
    journal.allocate_spare()
    disk.full = True
    journal.append([(LogId(1), make_batch(0, size=3000))])
    assert journal.spares == 0


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_failed_write_or_sync_poisons(open_journal, make_batch, disk, operation):
    """After a failure everything raises, syncs included, until the journal is reopened."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    if operation == "sync":
        journal.append([(LogId(1), make_batch(1))])
    disk.fail(operation, code=errno.EIO)
    calls = [journal.sync, lambda: journal.append([(LogId(1), make_batch(1))])]
    if operation == "write":
        calls.reverse()
    for call in (*calls, *calls):
        with pytest.raises(LogPoisonedError):
            call()
    assert journal.poisoned
    assert journal.synced_sequence == 1
    assert contents(open_journal())[0] == (1, [(1, make_batch(0))])


def test_full_disk_inside_a_file_poisons(open_journal, make_batch, disk):
    """A file's space was taken when it was made: no space there means the disk lies."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    disk.fail("write", code=errno.ENOSPC)
    with pytest.raises(LogPoisonedError):
        journal.append([(LogId(1), make_batch(1))])


def test_failing_header_or_allocation_poisons(open_journal, make_batch, disk):
    """An error that is not about space poisons wherever it comes."""
    for after in (0, 1):
        journal = open_journal()
        disk.fail("write", code=errno.EIO, after=after)
        with pytest.raises(LogPoisonedError):
            journal.append([(LogId(1), make_batch(1))])
        assert journal.poisoned


def test_close_syncs_and_rejects_more(open_journal, make_batch, disk):
    """Closing makes everything durable; a closed journal rejects entries."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.close()
    with pytest.raises(LogPoisonedError):
        journal.append([(LogId(1), make_batch(0))])
    disk.crash()
    assert len(contents(open_journal())) == 1


def test_torn_last_entry_at_every_byte(open_journal, make_batch, disk, tmp_path):
    """Truncated anywhere, an unsynced entry vanishes as a whole, and earlier ones stay."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    journal.append([(LogId(1), make_batch(1)), (LogId(2), make_batch(0, 2))])
    (write,) = disk.unsynced
    del journal
    disk.crash()
    path = tmp_path / "journal" / "000001.journal"
    before = path.read_bytes()
    for cut in range(len(write.data) + 1):
        torn = bytearray(before)
        torn[write.position : write.position + cut] = write.data[:cut]
        path.write_bytes(torn)
        again = open_journal()
        whole = cut == len(write.data)
        assert [s for s, _ in contents(again)] == ([1, 2] if whole else [1])
        assert again.corruption == []
        assert again.torn_bytes <= len(write.data)
        assert again.append([(LogId(1), make_batch(1))]) == again.last_sequence
        del again
        (tmp_path / "journal" / "000002.journal").unlink()


def test_entry_after_a_torn_one_never_comes_back(open_journal, make_batch, disk):
    """Of two unsynced entries the first is lost: the second stays lost, also after a restart."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    journal.append([(LogId(1), make_batch(1))])
    journal.append([(LogId(1), make_batch(2))])
    lost, _ = disk.unsynced
    del journal
    disk.crash(lambda write: () if write == lost else keep_all(write))
    journal = open_journal()
    assert len(contents(journal)) == 1
    assert journal.torn_bytes > 0
    # One of the very same size goes where the lost one was, as seen by sequence.
    assert journal.append([(LogId(1), make_batch(1, size=20))]) == 2
    journal.sync()
    del journal
    disk.crash()
    again = open_journal()
    assert [s for s, _ in contents(again)] == [1, 2]
    assert again.corruption == []


@pytest.mark.parametrize("is_wiped_late", [False, True])
def test_what_never_happened_is_wiped_at_the_opening(
    open_journal, make_batch, disk, tmp_path, is_wiped_late
):
    """Entries after a torn one would count once the next file is recycled."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    for number in range(1, 4):
        journal.append([(LogId(1), make_batch(number))])
    torn, *_ = disk.unsynced
    del journal
    disk.crash(lambda write: () if write == torn else keep_all(write))
    first = tmp_path / "journal" / "000001.journal"
    left = first.read_bytes()
    assert make_batch(3) in left, "the crash left what came behind the torn one"
    journal = open_journal()
    assert [journal.append([(LogId(2), make_batch(n))]) for n in range(2)] == [2, 3]
    journal.sync()
    del journal
    disk.crash()
    if is_wiped_late:  # by the next opening, which knows where the next file begins
        first.write_bytes(left)
        assert [sequence for sequence, _ in contents(open_journal())] == [1, 2, 3]
    (tmp_path / "journal" / "000002.journal").unlink()
    again = open_journal(3)
    assert (contents(again, 3), again.last_sequence, again.corruption) == ([], 3, [])


def test_corruption_in_the_middle_is_reported_and_later_entries_replayed(
    open_journal, make_batch, tmp_path
):
    """A flipped bit in a synced entry costs that entry only, and is named by file and position."""
    journal = open_journal()
    for offset in range(6):
        journal.append([(LogId(1), make_batch(offset))])
        journal.sync()
    del journal
    path = tmp_path / "journal" / "000001.journal"
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[FILE_HEADER_BYTES + 8 : FILE_HEADER_BYTES + 12], "little")
    for byte in range(48):
        position = FILE_HEADER_BYTES + 2 * length
        flipped = bytearray(data)
        flipped[position + byte] ^= 0x10
        path.write_bytes(flipped)
        again = open_journal()
        assert [s for s, _ in contents(again)] == [1, 2, 4, 5, 6]
        (corruption,) = again.corruption
        assert (corruption.file, corruption.position) == (path, position)
        assert again.last_sequence == 6


def test_entries_without_checksums_in_their_table_count(open_journal, make_batch, tmp_path):
    """The last entry of an earlier version, which has no checksums, is read."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    journal.sync()
    del journal
    path = tmp_path / "journal" / "000001.journal"
    page = path.read_bytes()[:FILE_HEADER_BYTES]
    nonce = int.from_bytes(page[24:32], "little")
    batch = make_batch(0)
    head = bytearray(entry_struct(1).size)
    entry_struct(1).pack_into(
        head, 0, ENTRY_MAGIC, 0, len(head) + len(batch), 1, 1, 0, nonce, 1, len(batch)
    )
    struct.pack_into("<I", head, 4, crc32c(bytes(head[8:])))
    path.write_bytes((page + bytes(head) + batch).ljust(FILE_BYTES, b"\0"))
    assert contents(open_journal()) == [(1, [(LogId(1), batch)])]


def test_corruption_across_files_is_reported(open_journal, make_batch, tmp_path):
    """Entries missing at the end of a file are missed because the next file began after them."""
    journal = open_journal()
    for offset in range(12):
        journal.append([(LogId(1), make_batch(offset, size=1000))])
    journal.sync()
    del journal
    path = tmp_path / "journal" / "000001.journal"
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 1000 :] = bytes(len(data) - FILE_HEADER_BYTES - 1000)
    path.write_bytes(data)
    again = open_journal()
    found = [s for s, _ in contents(again)]
    assert found[0] > 1 or found[1] > 2
    assert found[-1] == 12
    assert again.corruption[0].file == path


def test_corrupt_file_header_costs_no_entry(open_journal, make_batch, tmp_path):
    """Entries are found without their file's header; its corruption is reported."""
    journal = open_journal()
    for offset in range(3):
        journal.append([(LogId(1), make_batch(offset))])
        journal.sync()
    del journal
    path = tmp_path / "journal" / "000001.journal"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)
    again = open_journal()
    assert [s for s, _ in contents(again)] == [1, 2, 3]
    assert [(d.file, d.position) for d in again.corruption] == [(path, 0)]


def test_half_made_files_are_removed(open_journal, make_batch, tmp_path):
    """A file whose creation a crash interrupted is removed."""
    journal = open_journal()
    journal.append([(LogId(1), make_batch(0))])
    (tmp_path / "journal" / "000009.journal").write_bytes(b"\0" * 100)
    (tmp_path / "journal" / "notes.txt").write_text("not a journal")
    again = open_journal()
    assert len(contents(again)) == 1
    assert not (tmp_path / "journal" / "000009.journal").exists()
    again.append([(LogId(1), make_batch(0))])
    assert (tmp_path / "journal" / "000010.journal").exists()


def test_record_cannot_pose_as_an_entry(open_journal, make_batch, tmp_path):
    """A record that holds the bytes of a perfect entry is not taken for one after corruption."""
    forged = bytearray(48)
    entry_struct(1).pack_into(forged, 0, ENTRY_MAGIC, 0, 48, 1, 2, 1, 77, 1, 0)
    struct.pack_into("<I", forged, 4, crc32c(bytes(forged[8:])))
    assert read_entry(memoryview(forged), 0, 77) is not None
    at = make_batch(0).index(b"0:")
    stamp = Stamp(1, 0, 1)
    batch = bytes(encode_records([bytes(-at % 8) + bytes(forged)], ["a.b"], stamp))
    assert batch.index(forged) % 8 == 0
    journal = open_journal()
    for part in (make_batch(0), batch, make_batch(2)):
        journal.append([(LogId(1), part)])
        journal.sync()
    del journal
    path = tmp_path / "journal" / "000001.journal"
    data = bytearray(path.read_bytes())
    data[data.index(batch) - 40] ^= 0xFF
    path.write_bytes(data)
    assert [s for s, _ in contents(open_journal())] == [1, 3]


@given(junk=st.binary(min_size=0, max_size=3000), at=st.integers(0, 6000))
def test_any_bytes_open(tmp_path_factory, junk, at):
    """Whatever a journal file holds, opening and replaying it ends without an error."""
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "000001.journal").write_bytes((bytes(at) + junk).ljust(5000, b"\0"))
    journal = Journal.open(directory, disk=Disk(), file_bytes=FILE_BYTES)
    assert contents(journal) == []
