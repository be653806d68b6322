"""Recovery: checkpoint, redo, torn tails, corruption, deleted logs, full disks."""

import errno
import shutil

import pytest

from strandline.errors import (
    CorruptBatchError,
    DiskFullError,
    LogPoisonedError,
    ShuttingDownError,
)
from strandline.record.batch import read_header
from strandline.storage.checkpoint import (
    Checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from strandline.storage.faulty_disk import keep_all
from strandline.storage.log import Log
from strandline.storage.log_generation import GENERATION_NAME, write_generation
from strandline.storage.recovery import LogPlan, recover
from strandline.storage.repair import repair_log
from strandline.types import LogId

FILE_BYTES = 64 << 10
A, B = LogId(1), LogId(2)


class Data:
    """A data directory with two logs, each of whose batches goes to a log and the journal."""

    def __init__(self, path, disk, make_batch):
        self.path, self.disk, self.make_batch = path, disk, make_batch
        self.ids = [A, B]
        self.written = {A: [], B: []}
        self.now = self.recover()

    def recover(self, **options):
        self.now = None
        plans = {i: LogPlan(self.path / "logs" / str(i), 2000, 0) for i in self.ids}
        self.now = recover(self.path, plans, disk=self.disk, file_bytes=FILE_BYTES, **options)
        return self.now

    def turn(self, *ids, count=1, size=50, sync=True):
        parts = []
        for log_id in ids:
            log = self.now.logs[log_id]
            batch = self.make_batch(log.log_end_offset, count, size=size)
            log.append(batch, read_header(batch))
            self.written[log_id].append(batch)
            parts.append((log_id, batch))
        self.now.journal.append(parts)
        if sync:
            self.now.journal.sync()

    def without_journal(self, log_id, *sizes):
        """Batches that go to their log only, which is synced."""
        log = self.now.logs[log_id]
        assert log.can_do_without_journal
        for size in sizes:
            batch = self.make_batch(log.log_end_offset, 1, size=size)
            log.append(batch, read_header(batch))
            self.written[log_id].append(batch)
        log.write_pending()
        log.sync_written()

    def checkpoint(self):
        pending = self.now.checkpointer.begin(self.now.logs)
        self.now.checkpointer.write(pending)
        self.now.checkpointer.finish(pending)

    def die(self, keep=None):
        self.now = None
        if keep is None:
            self.disk.crash()
        else:
            self.disk.crash(keep)
        return self.recover().report

    def check(self, log_id, batches=None):
        log = self.now.logs[log_id]
        wanted = self.written[log_id] if batches is None else batches
        offset, found = int(log.log_start_offset), b""
        while offset < log.log_end_offset:
            part = log.read(offset, 1000)
            found += part.buffer
            offset = part.next_offset
        assert found == b"".join(wanted)


@pytest.fixture
def data(tmp_path, disk, make_batch):
    """An empty data directory, open."""
    return Data(tmp_path / "data", disk, make_batch)


def test_synced_group_commits_survive_a_power_loss(data):
    """Everything synced is there, across segments, though no segment was ever synced."""
    for turn in range(60):
        data.turn(A, *([B] if turn % 3 == 0 else []))
    report = data.die()
    assert report.records_replayed == 80
    assert report.bytes_replayed > 0
    assert (report.corruption, report.torn_bytes, report.checkpointed) == ([], 0, True)
    data.check(A)
    data.check(B)


def test_only_what_follows_the_checkpoint_is_replayed(data):
    """A checkpoint spares the journal before it; recovery itself ends with one."""
    for _ in range(30):
        data.turn(A, B)
    data.checkpoint()
    for _ in range(5):
        data.turn(A)
    assert data.die().records_replayed == 5
    assert data.die().records_replayed == 0
    data.check(A)
    data.check(B)


def test_kill_leaves_nothing_to_rewrite(data):
    """After a kill the segments are as they were: batches are counted, files not changed."""
    for _ in range(30):
        data.turn(A)
    data.now.checkpointer.begin(data.now.logs)
    before = {p: p.read_bytes() for p in (data.path / "logs" / "1").glob("*.log")}
    report = data.recover().report
    assert report.records_replayed == 30
    assert {p: p.read_bytes() for p in (data.path / "logs" / "1").glob("*.log")} == before
    data.check(A)


def test_recovering_twice_changes_nothing(data):
    """A power loss in the middle of a recovery is followed by the same recovery."""
    for _ in range(40):
        data.turn(A, B)
    data.now = None
    data.disk.crash()
    data.disk.fail("sync", code=errno.EIO)
    with pytest.raises(LogPoisonedError):
        data.recover()
    data.die()
    data.check(A)
    data.check(B)


def test_torn_last_group_commit_is_cut_and_counted(data):
    """A torn group commit vanishes from all its logs; synced ones stay."""
    data.turn(A, B)
    data.turn(A, B, sync=False)
    cut = 100
    journal = [w for w in data.disk.unsynced if w.path.suffix == ".journal"][-1]
    report = data.die(lambda w: [(0, cut)] if w == journal else [])
    assert report.torn_bytes > 0
    assert report.corruption == []
    data.check(A, data.written[A][:1])
    data.check(B, data.written[B][:1])


def test_unsynced_group_commit_that_survived_whole_is_kept(data):
    """An unacknowledged group commit may survive; then it is complete in every log."""
    data.turn(A, B)
    data.turn(A, B, sync=False)
    data.die(keep_all)
    data.check(A)
    data.check(B)


def test_deleted_logs_are_not_resurrected(data):
    """Journal entries of a log without a stream are skipped."""
    for _ in range(5):
        data.turn(A, B)
    data.now.logs.pop(B).delete()
    data.ids = [A]
    report = data.die()
    assert report.corruption == []
    assert list(data.now.logs) == [A]
    assert not (data.path / "logs" / "2").exists()
    data.check(A)


def test_log_created_after_the_checkpoint(data):
    """A log that the checkpoint lacks is rebuilt from the journal."""
    data.turn(A)
    data.checkpoint()
    new = LogId(3)
    data.ids.append(new)
    data.recover()
    data.written[new] = []
    for _ in range(5):
        data.turn(new)
    data.die()
    data.check(new)


@pytest.mark.parametrize("is_checkpointed", [True, False], ids=["checkpoint", "journal"])
@pytest.mark.parametrize("begins_at", [0, 7], ids=["anew", "later"])
@pytest.mark.parametrize("turns", [0, 1, 60])
@pytest.mark.parametrize("keep", [None, keep_all], ids=["power-loss", "kill"])
def test_a_log_made_again_under_its_id_is_not_mixed_with_the_one_before(
    data, is_checkpointed, begins_at, turns, keep
):
    """Entries of the old log in journal and checkpoint never appear in the new one."""
    for _ in range(50):
        data.turn(A, B)
    if is_checkpointed:
        data.checkpoint()
        for _ in range(5):
            data.turn(A, B)
    data.now.logs.pop(B).delete()
    data.turn(A)
    directory = data.path / "logs" / str(B)
    write_generation(directory, data.now.journal.sync(), disk=data.disk)
    new = Log.open(directory, disk=data.disk, segment_bytes=2000, segment_age_ms=0)
    if begins_at:
        new.restart_at(begins_at)
    data.now.logs[B], data.written[B] = new, []
    for _ in range(turns):
        data.turn(A, B, count=2, size=33)
    report = data.die(keep)
    assert report.corruption == []
    data.check(A)
    data.check(B)
    log = data.now.logs[B]
    assert (log.log_start_offset, log.log_end_offset) == (begins_at, begins_at + 2 * turns)
    data.turn(B)
    assert data.die().corruption == []
    data.check(B)


def test_a_corrupt_generation_is_reported(data):
    """The owner of older records is then unknown: that is reported, and all are replayed."""
    shutil.rmtree(data.path / "logs" / str(A))
    write_generation(data.path / "logs" / str(A), data.now.journal.sync(), disk=data.disk)
    (data.path / "logs" / str(A) / GENERATION_NAME).write_bytes(b"1 00000000\n")
    data.turn(A)
    [corruption] = data.die().corruption
    assert corruption.file.name == GENERATION_NAME
    data.check(A)


def test_truncation_before_the_end_is_redone(data):
    """Journaled batches below the end mean a truncation: the later ones win."""
    for _ in range(40):
        data.turn(A)
    data.checkpoint()
    for keep in (39, 20, 3):
        data.now.logs[A].truncate_to(keep)
        del data.written[A][keep:]
        for _ in range(3):
            data.turn(A, size=33)
    report = data.die()
    assert report.corruption == []
    data.check(A)


@pytest.mark.parametrize("sizes", [(400,), (400, 10), (10, 400), (50,), (10,), (10, 10, 10, 300)])
@pytest.mark.parametrize("keep", [None, keep_all])
def test_a_log_cut_below_its_checkpoint_and_grown_again(data, sizes, keep):
    """Batches that replaced truncated ones before a crash are kept."""
    data.turn(A, B)
    for _ in range(3):
        data.turn(A)
    data.checkpoint()
    data.now.logs[A].truncate_to(2)
    del data.written[A][2:]
    for size in sizes:
        data.turn(A, size=size)
    data.now.logs[A].segments[-1].write_pending()
    for _ in range(2):
        report = data.die(keep)
        assert report.corruption == [] or len(sizes) == 1, "one record less than the checkpoint had"
        data.check(A)
        data.check(B)
        data.turn(A)


def test_a_corrupt_header_before_the_checkpoint_takes_no_offset_back(data):
    """The last record that was durable is corrupt: its offset is not given to another."""
    for _ in range(5):
        data.turn(A)
    data.checkpoint()
    end = data.now.logs[A].log_end_offset
    path = data.now.logs[A].segments[-1].path
    flip(path, path.stat().st_size - len(data.written[A][-1]))
    data.die(keep_all)
    assert data.now.logs[A].log_end_offset == end


def test_removed_prefix_stays_removed(data):
    """Removing records and their segments after the checkpoint survives, corruption-free."""
    data.turn(A)
    data.checkpoint()
    for _ in range(60):
        data.turn(A)
    data.now.logs[A].delete_before(50)
    report = data.die()
    assert report.corruption == []
    assert data.now.logs[A].log_start_offset == 50
    data.check(A, data.written[A][50:])


@pytest.mark.parametrize("between", [0, 1])
def test_what_is_synced_in_its_segments_needs_no_journal(data, between):
    """Batches before, between and after journaled ones survive, over several segments."""
    data.turn(A)
    for _ in range(3):
        data.without_journal(A, *[300] * 9)
        for _ in range(between):
            data.turn(A)
    for _ in range(2):
        report = data.die()
        assert report.corruption == []
        data.check(A)
    data.turn(A)
    data.check(A)


def test_a_cut_log_needs_the_journal_until_the_next_checkpoint(data):
    """The journal still has the truncated batches, which must not replace the new ones."""
    data.turn(A)
    data.turn(A)
    log = data.now.logs[A]
    log.truncate_to(1)
    del data.written[A][1:]
    assert not log.can_do_without_journal
    pending = data.now.checkpointer.begin(data.now.logs)
    data.now.checkpointer.write(pending)
    assert not log.can_do_without_journal
    data.now.checkpointer.finish(pending)
    data.without_journal(A, 70)
    assert data.die().corruption == []
    data.check(A)


def test_a_cut_between_the_steps_of_a_checkpoint_counts(data):
    """The checkpoint that was begun before does not include it."""
    data.turn(A)
    data.turn(A)
    pending = data.now.checkpointer.begin(data.now.logs)
    data.now.logs[A].truncate_to(1)
    data.now.checkpointer.write(pending)
    data.now.checkpointer.finish(pending)
    assert not data.now.logs[A].can_do_without_journal


def test_a_log_that_no_checkpoint_knows_needs_the_journal(tmp_path, disk):
    """Otherwise a recovery would not know its beginning."""
    log = Log.open(tmp_path / "new", disk=disk, segment_bytes=2000, segment_age_ms=0)
    assert not log.can_do_without_journal
    log.close()
    with pytest.raises(ShuttingDownError):
        log.sync_written()


@pytest.mark.parametrize("journaled", [0, 1])
def test_the_segment_it_starts_in_is_found_without_the_journal(data, journaled):
    """Everything the checkpoint knew was removed since, and more that no journal has."""
    data.turn(A)
    data.checkpoint()
    data.without_journal(A, *[300] * 15)
    for _ in range(journaled):
        data.turn(A)
    data.now.logs[A].delete_before(10)
    assert data.die().corruption == []
    assert data.now.logs[A].log_start_offset == 10
    data.check(A, [b for b in data.written[A] if read_header(b).next_offset > start_of(data, A)])


def start_of(data, log_id):
    """The base offset of its first segment."""
    return data.now.logs[log_id].segments[0].base_offset


def test_a_removed_segment_that_comes_back_takes_nothing_with_it(data):
    """Names removed before a power loss may be there again, and those after them not."""
    for _ in range(30):
        data.turn(A)
    data.checkpoint()
    first, *others = data.now.logs[A].segments
    path, paths = first.path, [segment.path for segment in others]
    for _ in range(30):
        data.turn(A)
    data.now.logs[A].delete_before(50)
    data.now = None
    data.disk.crash()
    assert path.exists()
    for path in paths:
        path.unlink()
    assert data.recover().report.corruption == []
    assert data.now.logs[A].log_start_offset == 50
    data.check(A, data.written[A][50:])


@pytest.mark.parametrize("keep", [None, keep_all])
def test_a_log_cut_below_its_last_segment_has_no_hole(data, keep):
    """The checkpoint's segment is removed: the previous one ends at the truncation."""
    for _ in range(30):
        data.turn(A, size=100)
    assert len(data.now.logs[A].segments) > 2
    data.checkpoint()
    data.now.logs[A].truncate_to(3)
    del data.written[A][3:]
    data.die(keep)
    assert data.now.logs[A].log_end_offset == 3
    data.check(A)


def flip(path, position):
    """Flip a bit on disk."""
    contents = bytearray(path.read_bytes())
    contents[position] ^= 2
    path.write_bytes(contents)


def journal_position(data, batch):
    """The journal file that holds a batch, and where."""
    for path in sorted((data.path / "journal").glob("*.journal")):
        found = path.read_bytes().find(batch)
        if found >= 0:
            return path, found
    raise AssertionError


@pytest.mark.parametrize("part", ["batch", "table"])
def test_corruption_in_the_journal_is_healed_from_the_segment(data, part):
    """A kill and a flipped bit in the journal: reported, and the segment's copy is kept."""
    for _ in range(10):
        data.turn(A, B, sync=True)
    data.now.checkpointer.begin(data.now.logs)  # as much as hands the gathered batches over
    path, position = journal_position(data, data.written[A][4])
    data.now = None
    flip(path, position + 80 if part == "batch" else position - 20)
    report = data.recover().report
    assert report.corruption == [] or report.corruption[0].file == path
    assert part == "batch" or len(report.corruption) == 1
    data.check(A)
    data.check(B)


def test_corrupt_batch_in_the_journal_and_no_segment(data):
    """With no other copy the batch is a hole at its offsets; all others are served."""
    for _ in range(10):
        data.turn(A, B, count=2)
    path, position = journal_position(data, data.written[A][4])
    data.now = None
    data.disk.crash()
    flip(path, position + 80)
    report = data.recover().report
    (corruption,) = report.corruption
    assert corruption.file == path
    assert "not restored" in corruption.why
    log = data.now.logs[A]
    assert log.log_end_offset == 20
    with pytest.raises(CorruptBatchError) as caught:
        log.read(8, 100)
    assert (caught.value.first_offset, caught.value.next_offset) == (8, 10)
    assert log.read(0, 10_000).buffer == b"".join(data.written[A][:4])
    assert log.read(10, 10_000).base_offset == 10
    data.check(B)
    data.turn(A)
    assert data.die().corruption == []


@pytest.mark.parametrize("byte", [8, 17, 29, 31], ids=["length", "base", "delta", "far-delta"])
def test_what_a_corrupt_batch_says_of_itself_takes_no_other_with_it(data, byte):
    """Its offsets may be corrupt, too: the next batch is still served."""
    for _ in range(10):
        data.turn(A, B, count=2)
    path, position = journal_position(data, data.written[A][4])
    data.now = None
    data.disk.crash()
    flip(path, position + byte)
    corruption = data.recover().report.corruption
    assert any("not restored" in found.why for found in corruption)
    log = data.now.logs[A]
    assert log.log_end_offset == 20
    assert log.read(0, 10_000, below=8).buffer == b"".join(data.written[A][:4])
    assert log.read(10, 10_000).buffer == b"".join(data.written[A][5:])
    data.check(B)
    data.turn(A)
    assert data.die().corruption == []


@pytest.mark.parametrize("byte", [17, 29, 31], ids=["base", "delta", "far-delta"])
def test_two_corrupt_batches_are_both_restored_from_segments(data, byte):
    """A wrong length in the first does not skip the second one."""
    for _ in range(30):
        data.turn(A)
    data.now.checkpointer.begin(data.now.logs)
    places = [(journal_position(data, data.written[A][n]), at) for n, at in ((4, byte), (7, 1))]
    data.now = None
    for (path, position), at in places:
        flip(path, position + at)
    corruption = data.recover().report.corruption
    assert all("restored from the segment" in found.why for found in corruption)
    data.check(A)


@pytest.mark.parametrize("number", [1, 25], ids=["older", "newer"])
def test_an_intact_batch_in_the_wrong_place_is_not_taken_for_the_right_one(data, number):
    """A disk wrote it there in place of another: that one is missing, and no other."""
    for _ in range(30):
        data.turn(A, B)
    path, position = journal_position(data, data.written[A][20])
    data.now = None
    data.disk.crash()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data.written[A][number])
    corruption = data.recover().report.corruption
    assert any("not restored" in found.why for found in corruption)
    log = data.now.logs[A]
    assert log.log_end_offset == 30
    kept = [log.read(offset, 1).buffer for offset in (*range(20), *range(21, 30))]
    assert kept == data.written[A][:20] + data.written[A][21:]
    assert log.read(20, 1).base_offset == 21
    data.check(B)


def test_corrupt_entry_and_no_segment(data):
    """An entry lost altogether leaves a gap in its logs that is reported for each."""
    for _ in range(10):
        data.turn(A, B)
    path, position = journal_position(data, data.written[A][4])
    data.now = None
    data.disk.crash()
    flip(path, position - 20)
    report = data.recover().report
    assert report.corruption[0].file == path
    assert sum("records 4 to 4 are lost" in corruption.why for corruption in report.corruption) == 2
    for log_id in (A, B):
        log = data.now.logs[log_id]
        assert log.log_end_offset == 10
        assert log.read(4, 100).base_offset == 5


def test_corruption_in_the_last_entry_is_healed_from_the_segment(data):
    """A corrupt last entry looks like a torn one: intact batches on disk decide."""
    for _ in range(5):
        data.turn(A)
    data.now.checkpointer.begin(data.now.logs)
    path, position = journal_position(data, data.written[A][4])
    data.now = None
    flip(path, position - 20)
    data.recover()
    data.check(A)


def test_corrupt_checkpoint_is_done_without(data):
    """A checkpoint that cannot be read is reported; segments and journal give everything."""
    for _ in range(40):
        data.turn(A, B)
    data.checkpoint()
    for _ in range(5):
        data.turn(A)
    data.now.checkpointer.begin(data.now.logs)
    data.now = None
    flip(data.path / "checkpoint.json", 20)
    report = data.recover().report
    assert report.corruption[0].file == data.path / "checkpoint.json"
    data.check(A)
    data.check(B)


def test_lost_checkpoint_and_journal(data):
    """With only the segments left, their intact batches are served."""
    for _ in range(40):
        data.turn(A)
    data.checkpoint()
    data.now = None
    (data.path / "checkpoint.json").unlink()
    for path in (data.path / "journal").iterdir():
        path.unlink()
    data.recover()
    data.check(A)


def test_full_disk_after_a_kill_still_opens(data):
    """If nothing has to be written the broker starts on a full disk, without a checkpoint."""
    for _ in range(10):
        data.turn(A)
    data.now.checkpointer.begin(data.now.logs)
    data.now = None
    data.disk.full = True
    report = data.recover().report
    assert not report.checkpointed
    data.check(A)
    data.disk.full = False
    data.checkpoint()
    data.turn(A)
    data.die()
    data.check(A)


def test_full_disk_when_records_must_be_written(data):
    """If records are only in the journal and cannot be written, that is said, nothing lost."""
    for _ in range(10):
        data.turn(A)
    data.now = None
    data.disk.crash()
    data.disk.full = True
    with pytest.raises(DiskFullError):
        data.recover()
    data.disk.full = False
    data.recover()
    data.check(A)


def test_checkpoint_on_a_full_disk_changes_nothing(data):
    """A checkpoint that finds no space leaves the one before it and the journal."""
    for _ in range(10):
        data.turn(A)
    data.checkpoint()
    for _ in range(10):
        data.turn(A)
    data.disk.full = True
    with pytest.raises(DiskFullError):
        data.checkpoint()
    data.die()
    data.check(A)


def test_progress_is_told(data, disk):
    """A long replay reports how many bytes are done."""
    for _ in range(600):
        data.turn(A, sync=False)
    data.now.journal.sync()
    data.now = None
    told = []
    plans = {A: LogPlan(data.path / "logs" / "1", 2000, 0)}
    recover(data.path, plans, disk=disk, file_bytes=FILE_BYTES, on_progress=told.append)
    assert len(told) == 2
    assert told[0] < told[1]


def test_checkpoint_file_round_trip_and_every_flip(tmp_path, disk):
    """A checkpoint loads as saved; any flipped bit is noticed."""
    assert load_checkpoint(tmp_path, disk=disk) is None
    checkpoint = Checkpoint(sequence=77)
    save_checkpoint(tmp_path, checkpoint, disk=disk)
    assert load_checkpoint(tmp_path, disk=disk) == checkpoint
    path = tmp_path / "checkpoint.json"
    good = path.read_bytes()
    for byte in range(len(good) - 1):
        flip(path, byte)
        with pytest.raises(CorruptBatchError):
            load_checkpoint(tmp_path, disk=disk)
        path.write_bytes(good)
    save_checkpoint(tmp_path, Checkpoint(version=9), disk=disk)
    with pytest.raises(CorruptBatchError, match="version 9"):
        load_checkpoint(tmp_path, disk=disk)


def test_a_log_that_is_recreated_has_its_note_from_the_beginning(data):
    """A crash in between leaves no directory that would pass for the old log's."""
    for _ in range(5):
        data.turn(A, B)
    data.now.logs.pop(B).delete()
    data.disk.fail("rename")
    directory = data.path / "logs" / str(B)
    with pytest.raises(LogPoisonedError):
        write_generation(directory, data.now.journal.sync(), disk=data.disk)
    assert not directory.exists()


def test_a_log_that_is_recreated_keeps_what_takes_the_sequences_of_lost_entries(data):
    """An entry that no sync covered is lost, and its sequence is given to another."""
    data.now.logs.pop(B).delete()
    for _ in range(3):
        data.turn(A, sync=False)
    directory = data.path / "logs" / str(B)
    write_generation(directory, data.now.journal.sync(), disk=data.disk)
    data.written[B] = []
    data.die()
    data.turn(B)
    data.die()
    data.check(B)


def test_what_a_crash_left_never_happens_though_the_file_after_it_is_lost(data):
    """A torn entry is wiped, since the next file, which would bound it, may be lost."""
    data.turn(A)
    data.turn(A, size=1500, sync=False)
    data.turn(A, sync=False)

    def keep_all_but_the_second(write):
        is_cut = len(write.data) > 1000 and write.path.suffix == ".journal"
        return ((0, 500),) if is_cut else ((0, len(write.data)),)

    for log in data.now.logs.values():
        assert log.pending_bytes or not log.log_end_offset, "only the journal has them"
    data.die(keep_all_but_the_second)
    del data.written[A][1:]
    data.check(A)
    data.turn(B, sync=False)
    data.now = None
    data.recover()
    assert data.now.journal.last_sequence == 2
    data.die()
    assert data.now.journal.last_sequence == 2
    data.check(A)
    data.check(B)


def test_what_is_found_is_durable_though_the_disk_is_full(data):
    """A killed broker left records in the system's memory; they count from now on."""
    data.turn(A, size=1500)
    data.turn(A, size=1500)
    log = data.now.logs[B]
    batch = data.make_batch(log.log_end_offset, 1, size=50)
    log.append(batch, read_header(batch))
    data.written[B].append(batch)
    for each in data.now.logs.values():
        each.write_pending()
    data.disk.full = True
    assert not data.recover().report.checkpointed
    data.check(B)
    data.die()
    data.check(B)


def test_a_start_inside_what_was_lost_leaves_no_gap_in_a_segment(data):
    """A later scan without a checkpoint would stop at a gap."""
    data.turn(A)
    data.checkpoint()
    for _ in range(2):
        data.turn(A)
    data.now.logs[A].delete_before(2)
    data.die()
    data.check(A, data.written[A][2:])
    data.now.logs[A].roll()
    data.checkpoint()
    data.die()
    data.check(A, data.written[A][2:])


def test_a_recovery_that_is_cut_short_finds_its_own_segments(data):
    """It had continued in other segments than the checkpoint's, whose file is missing."""
    data.turn(A)
    data.now.logs[A].roll()
    data.checkpoint()
    for size in (350, 1400, 50):
        data.turn(A, size=size)
    data.now = None
    data.disk.fail("rename")
    with pytest.raises(LogPoisonedError):
        data.recover()
    assert data.recover().report.corruption == []
    data.check(A)


def test_offsets_of_corrupt_batches_before_an_empty_segment_are_not_used_again(data):
    """They stay reported as corrupt, and can be repaired like any other."""
    for _ in range(3):
        data.turn(A)
    data.now.logs[A].roll()
    data.checkpoint()
    sealed = data.now.logs[A].segments[0]
    flip(sealed.path, sealed.size - 1)
    data.die()
    log = data.now.logs[A]
    assert log.log_end_offset == 3
    with pytest.raises(CorruptBatchError, match="records 2 to 2 are corrupt"):
        log.read(2, 1000)
    assert repair_log(log, data.written[A][2:])
    data.turn(A)
    data.check(A)


def lose_the_active_file(data):
    """Remove the active file while the broker is down; the journal continues after it."""
    for _ in range(20):
        data.turn(A)
    data.checkpoint()
    data.turn(A)
    active = data.now.logs[A].segments[-1]
    assert active.base_offset > 0
    data.now = None
    data.disk.crash()
    active.path.unlink()
    return active.base_offset


def test_the_only_copy_continues_behind_a_segment_that_is_gone(data):
    """The lost records are reported; later ones in the journal are kept."""
    first = lose_the_active_file(data)
    report = data.recover().report
    assert [each.why for each in report.corruption] == [f"records {first} to 19 are lost"]
    assert data.now.logs[A].log_end_offset == 21
    del data.written[A][first:20]
    data.check(A)
    data.turn(A)
    assert data.die().corruption == []
    data.check(A)


def test_the_only_copy_uses_no_offset_twice_though_nothing_follows_what_is_gone(data):
    """A checkpoint after the loss includes it, too."""
    for _ in range(20):
        data.turn(A)
    data.checkpoint()
    active = data.now.logs[A].segments[-1]
    data.now = None
    data.disk.crash()
    active.path.unlink()
    report = data.recover().report
    assert f"records {active.base_offset} to 19 are lost" in report.corruption[0].why
    assert data.now.logs[A].log_end_offset == 20
    data.turn(A)
    assert data.die().corruption == []
    del data.written[A][active.base_offset : 20]
    data.check(A)


def test_the_only_copy_that_is_gone_altogether_begins_behind_it(data):
    """Its first offset is one that was never acknowledged."""
    for _ in range(3):
        data.turn(A)
    data.checkpoint()
    data.now = None
    data.disk.crash()
    shutil.rmtree(data.path / "logs" / str(A))
    report = data.recover().report
    assert [each.why for each in report.corruption] == ["records 0 to 2 are lost"]
    log = data.now.logs[A]
    assert log.log_end_offset == 3
    with pytest.raises(CorruptBatchError, match="records 0 to 2 are missing"):
        log.read_dense(0, 1000)
    data.turn(A)
    assert data.die().corruption == []
    data.check(A, data.written[A][3:])


@pytest.mark.parametrize("is_journal_corrupt", [False, True], ids=["lost", "corrupt"])
def test_the_only_copy_keeps_the_segment_behind_one_that_is_gone(data, is_journal_corrupt):
    """Its records are served though the journal no longer has them."""
    for _ in range(3):
        data.turn(A)
    data.checkpoint()
    log = data.now.logs[A]
    log.roll()
    data.turn(A)
    log.roll()
    data.turn(A)
    log.write_pending()
    log.sync_written()
    gone = log.segments[0].path
    journal, position = journal_position(data, data.written[A][3])
    data.now = log = None
    data.disk.crash()
    gone.unlink()
    if is_journal_corrupt:
        flip(journal, position - 20)
        last, position = journal_position(data, data.written[A][4])
        flip(last, position - 20)
    else:
        journal.unlink()
    report = data.recover().report
    assert "records 0 to 2 are lost" in [each.why for each in report.corruption]
    data.check(A, data.written[A][3:])
    data.turn(A)
    assert data.die().corruption == []
    data.check(A, data.written[A][3:])


@pytest.mark.parametrize("size", [0, 100], ids=["empty", "corrupt"])
def test_the_only_copy_continues_in_a_segment_file_without_an_intact_batch(data, size):
    """It begins after the lost records, and is used for new batches."""
    for _ in range(3):
        data.turn(A)
    data.checkpoint()
    gone = data.now.logs[A].segments[0].path
    data.now = None
    data.disk.crash()
    gone.unlink()
    gone.with_name(f"{3:020}.log").write_bytes(b"x" * size)
    report = data.recover().report
    assert [each.why for each in report.corruption] == ["records 0 to 2 are lost"]
    data.turn(A)
    assert data.die().corruption == []
    data.check(A, data.written[A][3:])


def test_one_copy_of_several_ends_where_a_segment_is_gone(data):
    """Its leader has the lost records and all later ones."""
    first = lose_the_active_file(data)
    report = data.recover(are_only_copies=False).report
    assert [each.why for each in report.corruption] == [f"records {first} to 19 are lost"]
    assert data.now.logs[A].log_end_offset == first
    del data.written[A][first:]
    data.check(A)


@pytest.mark.parametrize("turns_before", [0, 30], ids=["fresh", "recycled"])
def test_a_group_commit_torn_at_every_byte(data, tmp_path, turns_before):
    """Whatever part of the last write survives, each log has it or not, and continues.

    Behind it, in a file that was used before, lie old turns of the same shape.
    """
    for _ in range(turns_before):
        data.turn(A, B, size=9)
    data.recover()
    for _ in range(3):
        data.turn(A, B, size=9)
    data.turn(A, B, size=9, sync=False)
    [turn] = [w for w in data.disk.unsynced if w.path.suffix == ".journal"]
    data.now = None
    data.disk.crash()
    before = shutil.copytree(data.path, tmp_path / "before")
    written = {log_id: list(batches) for log_id, batches in data.written.items()}
    for cut in range(len(turn.data) + 1):
        data.disk.forget()
        shutil.rmtree(data.path)
        shutil.copytree(before, data.path)
        with turn.path.open("r+b") as file:
            file.seek(turn.position)
            file.write(turn.data[:cut])
        assert data.recover().report.corruption == []
        [end] = {data.now.logs[log_id].log_end_offset for log_id in (A, B)}
        assert end == turns_before + 4 or (end == turns_before + 3 and cut < len(turn.data))
        for log_id in (A, B):
            data.written[log_id] = written[log_id][:end]
            data.check(log_id)
        data.turn(A, B)
        assert data.die().corruption == []
        data.check(A)
        data.check(B)
