"""Corruption is repaired with exactly the batches that were there, and with nothing else."""

import pytest

from strandline.errors import CorruptBatchError, InvalidRecordError, LogPoisonedError
from strandline.record.codec import Stamp, encode_records
from strandline.storage.repair import repair_log


@pytest.fixture
def corrupt_log(open_log, fill):
    """A log of 60 batches of two records in segments, all on disk, and its batches."""
    log = open_log(segment_bytes=3000)
    batches = fill(log, 60)
    log.checkpoint()
    log.flush()
    return log, batches


def flip(log, offset, *, bits=0x40, at=80):
    """Flip bits in the file, ``at`` bytes into the batch of an offset."""
    found = log.read(offset, 1)
    with found.file.open("r+b") as file:
        file.seek(found.position + at)
        [byte] = file.read(1)
        file.seek(found.position + at)
        file.write(bytes([byte ^ bits]))


def corrupt(log, offset, *, at):
    """Flip a bit of a batch that may be corrupt already."""
    segment = next(s for s in log.segments if s.base_offset <= offset < s.next_offset)
    length = segment.size // ((segment.next_offset - segment.base_offset) // 2)
    place = (offset - segment.base_offset) // 2 * length + at
    with segment.path.open("r+b") as file:
        file.seek(place)
        [byte] = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("at", [0, 4, 8, 16, 71, 72, 90])
@pytest.mark.parametrize("offset", [0, 40, 118])
def test_a_batch_comes_back_as_it_was(corrupt_log, read_all, offset, at):
    """Whichever byte is hit, in a sealed or the active segment, reading gives all bytes again."""
    log, batches = corrupt_log
    flip(log, offset, at=at)
    with pytest.raises(CorruptBatchError):
        log.read(offset, 1)
    assert repair_log(log, [batches[offset // 2]])
    assert read_all(log) == b"".join(batches)


def test_what_was_repaired_is_on_disk(corrupt_log, disk, open_log, read_all):
    """A power loss right after it takes nothing back."""
    log, batches = corrupt_log
    flip(log, 40)
    assert repair_log(log, [batches[20]])
    log.close()
    disk.crash()
    assert read_all(open_log(segment_bytes=3000)) == b"".join(batches)


def test_corrupt_neighbours_come_back_together(corrupt_log, read_all):
    """A hole over several batches is filled at once."""
    log, batches = corrupt_log
    for offset in (40, 42, 44):
        flip(log, offset)
    with pytest.raises(CorruptBatchError) as caught:
        log.read(40, 1)
    assert (caught.value.first_offset, caught.value.next_offset) == (40, 46)
    with pytest.raises(InvalidRecordError, match="not what was at byte"):
        repair_log(log, batches[20:22])
    assert repair_log(log, batches[18:25]), "what is intact around it does no harm"
    assert read_all(log) == b"".join(batches)


def test_a_copy_of_the_whole_segment_comes_back(corrupt_log, read_all):
    """A segment of zeros is filled hole by hole, as far as each answer reaches."""
    log, batches = corrupt_log
    segment = log.segments[1]
    first = segment.base_offset // 2
    with segment.path.open("r+b") as file:
        file.write(bytes(segment.size))
    for _ in batches:
        try:
            log.read(first * 2, 1 << 20)
        except CorruptBatchError as corruption:
            lost = range(corruption.first_offset // 2, corruption.next_offset // 2)
        else:
            break
        assert repair_log(log, [batches[number] for number in lost])
        first = lost.stop
    assert read_all(log) == b"".join(batches)


def test_what_is_intact_is_left_alone(corrupt_log):
    """The range is repaired already: nothing is written."""
    log, batches = corrupt_log
    before = log.segments[0].path.read_bytes()
    other = encode_records([b"x"] * 2, ["a.b"], Stamp(0, 0, 1))
    assert not repair_log(log, [bytes(other)])
    assert not repair_log(log, [batches[0]])
    assert log.segments[0].path.read_bytes() == before


def test_what_differs_is_rejected(corrupt_log):
    """Another batch at the same offsets, a corrupt copy, a gap: the corruption stays visible."""
    log, batches = corrupt_log
    flip(log, 40)
    longer = bytes(encode_records([b"y" * 90] * 2, ["a.b"], Stamp(40, 0, 1)))
    with pytest.raises(InvalidRecordError, match="not what was at byte"):
        repair_log(log, [longer])
    with pytest.raises(CorruptBatchError, match="checksum"):
        repair_log(log, [batches[20][:-1] + b"\xff"])
    with pytest.raises(InvalidRecordError, match="no batch begins at offset 42"):
        repair_log(log, [batches[20], batches[22]])
    with pytest.raises(CorruptBatchError):
        log.read(40, 1)


@pytest.mark.parametrize("at", [[0, 71], [8, 30], [72], [90, 100]])
def test_what_is_certain_to_be_the_same_repairs_a_compacted_log(corrupt_log, read_all, at):
    """Behind the same header, with its checksum, or before the same records, it was that batch."""
    log, batches = corrupt_log
    for place in at:
        corrupt(log, 40, at=place)
    assert repair_log(log, [batches[20]], is_compacted=True)
    assert read_all(log) == b"".join(batches)


@pytest.mark.parametrize("at", [71, 72])
def test_neighbours_of_a_compacted_log_come_back_together(corrupt_log, read_all, at):
    """Each batch is compared with what was at its own place."""
    log, batches = corrupt_log
    for offset in (38, 40, 42):
        corrupt(log, offset, at=at)
    assert repair_log(log, batches[19:22], is_compacted=True)
    assert read_all(log) == b"".join(batches)


@pytest.mark.parametrize("at", [0, 90])
def test_another_batch_of_the_same_shape_does_not_repair_a_compacted_log(corrupt_log, at):
    """Copies compact on their own: the same offsets and length are not the same records."""
    log, batches = corrupt_log
    for offset in (38, 40):
        corrupt(log, offset, at=at)
    segment = next(s for s in log.segments if s.base_offset <= 38 < s.next_offset)
    before = segment.path.read_bytes()
    other = bytes(encode_records([b"y" * 20] * 2, ["a.b"], Stamp(40, 0, 40)))
    assert len(other) == len(batches[20])
    with pytest.raises(InvalidRecordError, match="records 40 to 41 fits, but may differ"):
        repair_log(log, [batches[19], other], is_compacted=True)
    assert segment.path.read_bytes() == before
    assert repair_log(log, [batches[19], other]), "copies that are not compacted are the same"


def test_a_compacted_log_is_not_repaired_where_nothing_is_left_to_compare(corrupt_log):
    """Corruption in header and records alike might have been another batch."""
    log, batches = corrupt_log
    corrupt(log, 40, at=20)
    corrupt(log, 40, at=90)
    with pytest.raises(InvalidRecordError, match="may differ"):
        repair_log(log, [batches[20]], is_compacted=True)


def test_a_failed_write_says_so(corrupt_log, disk):
    """Nothing is known of the bytes then; the caller has to reopen the log."""
    log, batches = corrupt_log
    flip(log, 40)
    disk.fail("sync")
    with pytest.raises(LogPoisonedError):
        repair_log(log, [batches[20]])


def test_there_is_no_place_for_what_a_shorter_file_has_lost(corrupt_log, open_log):
    """Repairing records behind the end of a shortened file fails with an error."""
    log, batches = corrupt_log
    segment = log.segments[1]
    lost = segment.next_offset - 2
    log.close()
    with segment.path.open("r+b") as file:
        file.truncate(segment.size - len(batches[lost // 2]))
    log = open_log(segment_bytes=3000)
    with pytest.raises(InvalidRecordError, match="cannot be repaired in place"):
        repair_log(log, [batches[lost // 2]])


def test_what_is_removed_meanwhile_is_not_repaired(corrupt_log, fill):
    """Retention may remove the segment before its copy arrives: a typed error reports that."""
    log, batches = corrupt_log
    flip(log, 0)
    log.delete_before(80)
    assert log.segments[0].base_offset > 0, "the first segment is gone"
    with pytest.raises(InvalidRecordError, match="offset 0 was deleted meanwhile"):
        repair_log(log, [batches[0]])
