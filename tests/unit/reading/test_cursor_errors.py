"""Errors of a partition under a cursor: each goes on, moves the cursor or ends the read."""

import pytest

from strandline.api.tickets import ReadRequest
from strandline.errors import CorruptBatchError, DataLossError, OffsetOutOfRangeError
from strandline.reading.cursor import Cursor, PartitionRange
from strandline.types import Offset, PartitionName


class FailingPartition:
    """Fails once with an error, and has nothing after it."""

    name = PartitionName("s", 0)
    last_stable_offset = Offset(20)

    def __init__(self, error, log_start_offset):
        self.log_start_offset = log_start_offset
        self._errors = [error]

    def read(self, offset, bytes_max, *, below=None):
        if self._errors:
            raise self._errors.pop()
        return b""

    def find_runs(self, pattern):
        return None


def corrupt(next_offset):
    """What a log raises that knows where the next intact batch begins, or does not."""
    error = CorruptBatchError("flipped bits")
    if next_offset is not None:
        error.next_offset = next_offset
    return error


OUT_OF_RANGE = OffsetOutOfRangeError("no such offset")


@pytest.mark.parametrize(
    ("error", "log_start_offset", "may_move", "skip_corrupt", "expected"),
    [
        (OUT_OF_RANGE, 10, True, False, OffsetOutOfRangeError),  # it is there: retention is not why
        (OUT_OF_RANGE, 9, True, False, OffsetOutOfRangeError),
        (OUT_OF_RANGE, 11, False, False, DataLossError),
        (OUT_OF_RANGE, 11, True, False, 11),
        (OUT_OF_RANGE, 20, True, False, 20),
        (corrupt(12), 0, True, False, CorruptBatchError),
        (corrupt(None), 0, True, True, CorruptBatchError),
        (corrupt(10), 0, True, True, CorruptBatchError),  # the same again, for ever
        (corrupt(9), 0, True, True, CorruptBatchError),
        (corrupt(11), 0, True, True, 11),
        (corrupt(20), 0, True, True, 20),
    ],
)
def test_an_error_ends_the_read_or_moves_it(
    error, log_start_offset, may_move, skip_corrupt, expected
):
    """A cursor at offset 10: it never goes back, and never tries again where it cannot go on."""
    partition = FailingPartition(error, log_start_offset)
    request = ReadRequest(stream="s", skip_corrupt=skip_corrupt)
    extent = PartitionRange(partition, Offset(10), None, may_move)
    cursor = Cursor(request, extent, names=["offset"])
    if isinstance(expected, int):
        cursor._read(1000)
        assert cursor.position == expected
        return
    with pytest.raises(expected):
        cursor._read(1000)
    assert cursor.position == 10
