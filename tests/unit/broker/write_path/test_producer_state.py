"""The state of idempotent producers: in memory, read back from a log, and for how long."""

import pyarrow as pa
import pytest

from strandline.broker.write_path.producer_state import (
    MEMORY_NS,
    ProducerStates,
    load_producers,
    note_batches,
)
from strandline.errors import OutOfOrderSequenceError, ProducerFencedError
from strandline.record.batch import read_header
from strandline.record.codec import NOBODY, Stamp, encode_arrow
from strandline.storage.log import Log
from strandline.types import ProducerStamp

SECOND = 1_000_000_000


@pytest.fixture
def log(tmp_path, disk):
    return Log.open(tmp_path / "log", disk=disk, segment_bytes=4 << 10, segment_age_ms=10**9)


def batch_of(offset, count, *, producer=NOBODY, time_ns=SECOND):
    rows = pa.record_batch({"value": [b"v" * 50] * count})
    stamp = Stamp(offset, 0, time_ns, producer=producer)
    return encode_arrow(rows, stamp, default_subject="s")


def store(log, count, **of):
    batch = batch_of(log.log_end_offset, count, **of)
    log.append(batch, read_header(batch))


def noted(*batches, **limits):
    """Producers that have stored (id, epoch, sequence, count) from offset 0 on."""
    producers, offset = ProducerStates(**limits), 0
    for *stamp, count in batches:
        producers.note(ProducerStamp(*stamp), count, offset=offset, now_ns=SECOND)
        offset += count
    return producers


def test_the_next_batch_is_new_and_an_earlier_one_is_known():
    """A batch that was stored is answered with its first offset, also as part of a larger one."""
    producers = noted((7, 0, 0, 5), (8, 0, 0, 3), (7, 0, 5, 2), (7, 0, 7, 1))
    assert producers.check(ProducerStamp(7, 0, 8), 100) is None
    assert producers.check(ProducerStamp(7, 0, 0), 5) == 0
    assert producers.check(ProducerStamp(7, 0, 5), 2) == 8
    assert producers.check(ProducerStamp(7, 0, 7), 1) == 10
    assert producers.check(ProducerStamp(8, 0, 0), 3) == 5


@pytest.mark.parametrize("sequence", [9, 1 << 30])
def test_a_gap_is_rejected_with_what_would_be_next(sequence):
    """Nothing is stored behind a batch that is missing."""
    with pytest.raises(OutOfOrderSequenceError, match="the next one is 8"):
        noted((7, 0, 0, 8)).check(ProducerStamp(7, 0, sequence), 1)


def test_a_batch_that_is_stored_in_part_is_rejected():
    """Senders never split a batch differently on a retry, so this is not a retry."""
    with pytest.raises(OutOfOrderSequenceError):
        noted((7, 0, 0, 8)).check(ProducerStamp(7, 0, 5), 4)


def test_a_later_epoch_fences_the_earlier_ones():
    """It begins at 0; batches of the old one are always rejected."""
    producers = noted((7, 3, 0, 8))
    assert producers.check(ProducerStamp(7, 4, 0), 1) is None
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 4 at sequence 8, not 0"):
        producers.check(ProducerStamp(7, 4, 8), 1)
    with pytest.raises(ProducerFencedError, match="by epoch 3"):
        producers.check(ProducerStamp(7, 2, 0), 1)


def test_a_producer_that_is_not_known_begins_at_0():
    """In any epoch; with a larger sequence it is unknown what came before."""
    assert ProducerStates().check(ProducerStamp(7, 12, 0), 1) is None
    with pytest.raises(OutOfOrderSequenceError, match="not known here"):
        ProducerStates().check(ProducerStamp(7, 0, 1), 1)


def test_unstored_batches_are_forgotten():
    """Also the end of an epoch before them becomes the end again."""
    producers = noted((7, 0, 0, 5), (8, 0, 0, 5), (7, 0, 5, 5), (7, 1, 0, 5))
    assert producers.forget_from(10)
    assert producers.check(ProducerStamp(7, 0, 5), 1) is None
    assert producers.forget_from(3)
    assert producers.check(ProducerStamp(7, 0, 3), 1) is None
    assert producers.check(ProducerStamp(8, 0, 0), 1) is None
    assert len(producers) == 1


def test_forgetting_more_than_is_remembered_is_reported():
    """The caller then asks the log."""
    producers = noted((7, 0, 0, 1), (8, 0, 0, 1), (7, 0, 1, 1), (8, 0, 1, 2), ranges_max=1)
    assert producers.forget_from(4)
    assert not producers.forget_from(3)


def test_the_silent_are_forgotten_by_the_partitions_own_time():
    """After ten minutes in which others stored records, or when there are too many others."""
    producers = noted((7, 0, 0, 1))
    producers.note(ProducerStamp(8, 0, 0), 1, offset=1, now_ns=SECOND + MEMORY_NS)
    assert len(producers) == 2
    producers.note(ProducerStamp(8, 0, 1), 1, offset=2, now_ns=SECOND + MEMORY_NS + 1)
    assert len(producers) == 1
    many = noted((1, 0, 0, 1), (2, 0, 0, 1), (1, 0, 1, 1), (3, 0, 0, 1), producers_max=2)
    assert many.check(ProducerStamp(1, 0, 2), 1) is None
    with pytest.raises(OutOfOrderSequenceError):
        many.check(ProducerStamp(2, 0, 1), 1)


def test_the_log_tells_all_of_it_again(log):
    """Over several segments, with unnumbered batches in between."""
    for number in range(40):
        store(log, 5, producer=ProducerStamp(7, 1, number * 5))
        store(log, 3)
        store(log, 1, producer=ProducerStamp(8, 0, number))
    assert len(log.segments) > 3
    producers = load_producers(log, 2 * MEMORY_NS)
    assert len(producers) == 2
    assert producers.check(ProducerStamp(7, 1, 200), 1) is None
    assert producers.check(ProducerStamp(7, 1, 190), 5) == 38 * 9
    assert producers.check(ProducerStamp(8, 0, 39), 1) == 39 * 9 + 8


def test_the_log_is_read_as_far_back_as_somebody_is_remembered(log):
    """By the time of its last record, however long ago that was."""
    store(log, 1, producer=ProducerStamp(6, 0, 0), time_ns=1)
    for number in range(100):
        time_ns = SECOND + MEMORY_NS + number
        store(log, 5, producer=ProducerStamp(7, 0, 5 * number), time_ns=time_ns)
    producers = load_producers(log, SECOND + 100 * MEMORY_NS)
    assert producers.check(ProducerStamp(7, 0, 500), 1) is None
    assert len(load_producers(log, 2 * MEMORY_NS)) == len(producers) == 1


def test_an_empty_log_knows_nobody(log):
    """Nor does one that begins late."""
    assert len(load_producers(log, SECOND)) == 0
    log.restart_at(50)
    assert len(load_producers(log, SECOND)) == 0


def test_a_corrupt_batch_is_passed_over(log):
    """Batches behind it are found, and its producers begin again."""
    store(log, 5, producer=ProducerStamp(6, 0, 0))
    for number in range(40):
        store(log, 5, producer=ProducerStamp(7, 0, 5 * number))
    log.flush()
    first = log.segments[0]
    with first.path.open("r+b") as file:
        file.write(b"\xff" * 72)
    log.close()
    again = Log.open(first.path.parent, disk=log._disk, segment_bytes=4 << 10, segment_age_ms=10**9)
    assert again.log_end_offset > 50
    producers = load_producers(again, SECOND)
    assert producers.check(ProducerStamp(7, 0, again.log_end_offset - 5), 1) is None
    assert len(producers) == 1


def test_copies_are_noted_by_their_headers():
    """A replica knows what its leader knew, from several batches in one piece."""
    producers = ProducerStates()
    copies = b"".join(
        [
            batch_of(0, 2, producer=ProducerStamp(7, 0, 0)),
            batch_of(2, 3),
            batch_of(5, 4, producer=ProducerStamp(7, 0, 2)),
        ]
    )
    note_batches(producers, copies, SECOND)
    assert producers.check(ProducerStamp(7, 0, 2), 4) == 5
    assert producers.check(ProducerStamp(7, 0, 6), 1) is None
