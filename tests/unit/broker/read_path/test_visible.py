"""Reading what readers may see, against a log whose batches are hidden in any pattern."""

import itertools
from types import SimpleNamespace

import pytest

from strandline.broker.read_path.visible import read_visible, stored_time
from strandline.errors import CorruptBatchError
from strandline.record.batch import Attributes
from strandline.record.codec import Stamp, decode_batches, encode_records
from strandline.record.visible import always_committed


class FakeLog:
    """A log of batches of one record each, those in ``hidden`` markers; a read takes a few."""

    def __init__(self, count, hidden, *, batches_a_read=2):
        self.batches_a_read, self.reads = batches_a_read, []
        self.batches = [
            bytes(
                encode_records(
                    [b"%d" % offset],
                    ["s"],
                    Stamp(
                        offset,
                        0,
                        1000 + offset,
                        attributes=int(Attributes.MARKER) if offset in hidden else 0,
                    ),
                )
            )
            for offset in range(count)
        ]

    def read(self, offset, bytes_max, *, below, verify=True):
        self.reads.append(offset)
        end = min(offset + self.batches_a_read, below, len(self.batches))
        data = b"".join(self.batches[offset:end])
        return SimpleNamespace(buffer=memoryview(data), next_offset=max(offset, end))


def offsets(buffer):
    return [
        offset
        for batch in decode_batches(bytes(buffer), columns=["offset"])
        for offset in batch["offset"].to_pylist()
    ]


@pytest.mark.parametrize("below", [4, 6])
@pytest.mark.parametrize("hidden", [*itertools.combinations(range(6), 2), (0, 1, 2, 3), range(6)])
def test_a_reader_gets_what_is_visible_and_no_empty_read_before_the_end(hidden, below):
    """Reads that find nothing visible go on; what they return is in order."""
    log, found, offset = FakeLog(6, hidden), [], 0
    while buffer := read_visible(log, offset, 1, below=below, is_committed=always_committed):
        found += offsets(buffer)
        offset = found[-1] + 1
        assert len(log.reads) < 20
    assert found == [each for each in range(below) if each not in hidden]
    assert len(log.reads) < 12


def test_one_read_may_have_several_stretches():
    """What is hidden lies between them, or around them."""
    for hidden in ((2,), (1, 4), (0, 2, 5), (3, 4)):
        log = FakeLog(6, hidden, batches_a_read=6)
        found = read_visible(log, 0, 1 << 20, below=6, is_committed=always_committed)
        assert offsets(found) == [each for each in range(6) if each not in hidden]
        assert log.reads == [0]


def test_the_time_of_a_batch_is_read_from_its_header():
    """None where there is none yet, or it cannot be read: reading it says why."""
    log = FakeLog(3, ())
    assert stored_time(log, 1, below=3) == 1001
    assert stored_time(log, 3, below=3) is None

    def corrupt(*_, **__):
        raise CorruptBatchError("bad")

    log.read = corrupt
    assert stored_time(log, 1, below=3) is None
