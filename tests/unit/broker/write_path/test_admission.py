"""The limits that all partitions share, and what becomes of what is rejected."""

import pyarrow as pa
import pytest

from strandline.broker.write_path.admission import RECORD_OVERHEAD_BYTES, Admission
from strandline.clock import ManualClock
from strandline.config import LimitsConfig
from strandline.errors import (
    InvalidRecordError,
    NotLeaderError,
    RecordTooLargeError,
    UnavailableError,
)
from strandline.record.codec import BATCH_RECORDS_MAX

LIMITS = LimitsConfig(record_bytes=1000, batch_bytes=5000, pending_bytes=10_000)


@pytest.fixture
def admission():
    return Admission(LIMITS, clock=ManualClock(), wake=lambda: None)


@pytest.mark.parametrize(
    ("size", "pending", "kind"),
    [
        (1000 + RECORD_OVERHEAD_BYTES, 10_000, None),
        (1001 + RECORD_OVERHEAD_BYTES, 0, RecordTooLargeError),
        (1, 10_001, UnavailableError),
        (9999, 10_001, UnavailableError),
    ],
)
def test_a_record_is_accepted_up_to_its_limits(admission, size, pending, kind):
    """One that waits too long behind others is told to retry, whatever its size."""
    admission.pending_bytes = pending
    error = admission.record_error(size)
    assert (type(error) if error else None) is kind
    if kind is RecordTooLargeError:
        assert (
            error.message
            == "record of 1001 bytes; limits.record_bytes is 1000: make it smaller, or raise that"
        )


def test_a_batch_has_a_limit_of_bytes_and_a_numbered_one_of_records(admission):
    """A numbered batch is stored as one."""
    assert admission.size_error(5000) is None
    assert type(admission.size_error(5001)) is RecordTooLargeError
    large = pa.RecordBatch.from_pydict({"value": [bytes(5001)]})
    assert type(admission.batch_error(large, is_numbered=False)) is RecordTooLargeError
    many = {count: pa.RecordBatch.from_pydict({"v": pa.nulls(count)}) for count in (0, 1)}
    for more in many:
        batch = pa.RecordBatch.from_pydict({"v": pa.nulls(BATCH_RECORDS_MAX + more)})
        assert admission.batch_error(batch, is_numbered=False) is None
        error = admission.batch_error(batch, is_numbered=True)
        assert (type(error) if error else None) is (InvalidRecordError if more else None)


def test_a_rejection_is_counted_and_told(admission, caplog):
    """To the publisher, or to the log now and then; a leader elsewhere stores the message."""
    told = []

    class Sink:
        def rejected(self, token, error):
            told.append((token, error))

    error = RecordTooLargeError("too large")
    admission.reject(error, Sink(), "t", stream="s", records=3)
    assert told == [("t", error)]
    assert admission.rejects == {error.code: 3}
    admission.reject(NotLeaderError("elsewhere"), None, None, stream="s")
    assert not caplog.records
    for _ in range(3):
        admission.reject(error, None, None, stream="s")
    assert len(caplog.records) == 1
    admission.reject(error, None, None, stream="t")
    assert len(caplog.records) == 2
    assert admission.rejects == {error.code: 7, NotLeaderError.code: 1}
