"""The first record at a time: by batches, and within the one that spans it."""

from functools import partial

import pyarrow as pa
import pytest

from strandline.errors import DecryptionError
from strandline.record.batch import read_header
from strandline.storage.time_index import first_record_at

plain = partial(first_record_at, decrypt=pa.py_buffer)


@pytest.fixture
def segment(open_log, make_batch):
    """Batches of three records with the times 100, 200 and 300."""
    log = open_log(segment_bytes=1 << 20)
    for number in range(3):
        batch = make_batch(3 * number, 3, time_ns=100 * (number + 1))
        log.append(batch, read_header(batch))
    return log.segments[0]


@pytest.mark.parametrize(
    ("wanted", "start", "found"),
    [
        (0, 0, 0),
        (100, 0, 0),
        (101, 0, 3),
        (300, 0, 6),
        (301, 0, None),
        (100, 1, 1),
        (100, 3, 3),
        (200, 4, 4),
        (300, 8, 8),
        (300, 9, None),
    ],
)
def test_the_first_record_after_both(segment, wanted, start, found):
    """Not before the offset, not before the time."""
    assert plain(segment, wanted, start=start) == found


def test_a_batch_that_cannot_be_opened_counts_as_late_enough(segment):
    """Reading there raises the error; nothing before the wanted offset is read for it."""

    def closed(view):
        raise DecryptionError("no key")

    assert first_record_at(segment, 200, start=0, decrypt=closed) == 3
    assert first_record_at(segment, 200, start=4, decrypt=closed) == 4
