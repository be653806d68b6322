"""Subject indexes of a log: right without files, with them, and with useless ones."""

import pytest

from strandline.record.batch import read_header
from strandline.record.codec import Stamp, encode_records
from strandline.storage import log_subjects
from strandline.storage.subject_index import BLOCK_BYTES, check_subjects

RECORDS = 400
SEGMENT = 8 << 10


def batch(offset, *, count=2, salt=0):
    """Records of the subjects s.0 to s.6 in turn, and one of its own each."""
    subjects = [f"s.{(offset + n) % 7}" if n else f"own.{offset}.{salt}" for n in range(count)]
    return encode_records([b"v" * 50] * count, subjects, Stamp(offset, 1, offset))


def fill(log, until=RECORDS, *, salt=0):
    """Append batches of two records up to an offset."""
    while log.log_end_offset < until:
        made = batch(log.log_end_offset, salt=salt)
        log.append(made, read_header(made))


def found(log, *patterns):
    """The offsets that all indexes find, and whether there is one of each segment."""
    offsets = []
    for segment in log.segments:
        parts = log.subjects.look(segment, lambda index: index.offsets(index.find(patterns)))
        if parts is None:
            return None
        offsets += [offset for part in parts for offset in part.tolist()]
    return offsets


def wanted(subject):
    """The offsets of one of the seven subjects."""
    return [n for n in range(RECORDS) if n % 2 and f"s.{n % 7}" == subject]


def files(log):
    """The index files there are."""
    return sorted(log.directory.glob("*.subjects"))


def test_offsets_are_found_while_the_log_grows(open_log):
    """The active segment's index goes on from where it was."""
    log = open_log(segment_bytes=SEGMENT)
    for until in (2, 10, 12, 200, RECORDS):
        fill(log, until)
        assert found(log, "s.3") == [n for n in wanted("s.3") if n < until]
    assert found(log, "own.*.0") == list(range(0, RECORDS, 2))
    assert len(files(log)) == len(log.segments) - 1, "each sealed segment has a file by now"


@pytest.mark.parametrize("damage", ["none", "missing", "header", "block", "short", "another"])
def test_a_useless_file_is_replaced(open_log, damage):
    """A reopened log finds the same, whatever has become of the files."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    before = found(log, "s.1", "own.4.0")
    at = log.checkpoint()
    log.flush()
    intact = {path: path.read_bytes() for path in files(log)}
    for path, data in intact.items():
        if damage == "missing":
            path.unlink()
        elif damage == "header":
            path.write_bytes(data[:20] + b"\xff" + data[21:])
        elif damage == "block":
            path.write_bytes(data[:-1] + b"\xff")
        elif damage == "short":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "another":
            path.write_bytes(intact[files(log)[0]])
    again = open_log(at, segment_bytes=SEGMENT)
    assert found(again, "s.1", "own.4.0") == before
    found(again, ">")  # looks at every block
    assert {path: path.read_bytes() for path in files(again)} == intact


def test_a_truncated_log_forgets_subjects(open_log):
    """Of segments that were cut and have grown to the same size again, nothing old is found."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    found(log, ">")
    log.undo_to(201)
    fill(log, salt=7)
    assert found(log, "own.*.0") == list(range(0, 200, 2))
    assert found(log, "own.*.7") == list(range(200, RECORDS, 2))
    assert found(log, "s.2") == wanted("s.2")


def test_the_file_of_a_cut_segment_is_not_believed(open_log):
    """Also if its removal did not survive a power loss: the last batch is another."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    found(log, ">")
    path = log.segments[2].path.with_suffix(".subjects")
    old = path.read_bytes()
    log.undo_to(log.segments[2].base_offset + 2)
    fill(log, salt=7)
    found(log, ">")
    assert path.read_bytes() != old
    assert len(path.read_bytes()) == len(old), "nothing but the last batch can tell"
    expected = found(log, "own.*.7")
    path.write_bytes(old)
    again = open_log(log.checkpoint(), segment_bytes=SEGMENT)
    assert found(again, "own.*.7") == expected


def test_removed_segments_take_their_files_along(open_log):
    """Retention leaves no index behind."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    found(log, ">")
    log.delete_before(300)
    bases = {segment.path.stem for segment in log.segments[:-1]}
    assert {path.stem for path in files(log)} == bases
    assert found(log, "s.3")[-1] == wanted("s.3")[-1]


def test_a_corrupt_segment_has_no_index_until_it_is_repaired(open_log):
    """Its readers have to meet the corruption; once it is repaired there is an index again."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    segment = log.segments[1]
    place = segment.locate(segment.base_offset + 4).position
    intact = bytes(segment.view(place, read_header(segment.view(place, 100)).length))
    segment.put_back(intact[:-9] + b"\xff" + intact[-8:], place)
    assert log.subjects.look(segment, lambda index: index.records) is None
    assert log.subjects.look(log.segments[0], lambda index: index.records) is not None
    segment.put_back(intact, place)
    assert found(log, "s.3") == wanted("s.3")


def test_a_released_index_is_mapped_again(open_log):
    """Memory is bounded: a segment that nobody uses has no index in memory."""
    log = open_log(segment_bytes=SEGMENT)
    fill(log)
    log.checkpoint()
    log.flush()
    before = found(log, "s.3")
    for segment in log.segments[:-1]:
        segment.release()
        assert segment.subjects is None
    assert found(log, "s.3") == before


def test_an_index_file_is_whole(open_log):
    """The files that are written pass a check of every byte, and have several blocks."""
    log = open_log(segment_bytes=1 << 20)
    fill(log, 9000)
    log.roll()
    log.subjects.prepare(log.segments[0])
    [path] = files(log)
    assert len(path.read_bytes()) > BLOCK_BYTES
    assert check_subjects(path.read_bytes()) is not None


def test_a_quiet_active_segment_gets_a_file(open_log, monkeypatch):
    """A log that is opened again goes on from it, though the segment has grown since."""
    monkeypatch.setattr(log_subjects, "WORTH_STORING_BYTES", 1000)
    log = open_log(segment_bytes=1 << 20)
    fill(log, 200)
    log.index_subjects(0)
    assert files(log) == [], "it has just grown"
    log.index_subjects(0)
    [path] = files(log)
    assert check_subjects(path.read_bytes()).records == 200
    fill(log)
    again = open_log(log.checkpoint(), segment_bytes=1 << 20)
    assert found(again, "s.3") == found(log, "s.3") == wanted("s.3")
    again.roll()
    assert found(again, "s.3") == wanted("s.3")
    assert check_subjects(path.read_bytes()).records == RECORDS


@pytest.mark.parametrize("position", [100, 300])
def test_the_file_of_an_active_segment_that_was_cut(open_log, monkeypatch, position):
    """It serves what is before the cut, and nothing else."""
    monkeypatch.setattr(log_subjects, "WORTH_STORING_BYTES", 1000)
    log = open_log(segment_bytes=1 << 20)
    fill(log, 200)
    log.index_subjects(0)
    log.index_subjects(0)
    fill(log)
    found(log, ">")
    log.undo_to(position)
    fill(log, salt=7)
    for each in (log, open_log(log.checkpoint(), segment_bytes=1 << 20)):
        assert found(each, "own.*.7") == list(range(position, RECORDS, 2))
        assert found(each, "own.*.0") == list(range(0, position, 2))
