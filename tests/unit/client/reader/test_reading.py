"""Arguments of a read as a ticket."""

import time
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pyarrow as pa
import pytest

from strandline.api.tickets import AtTimestamp
from strandline.cli.parsing import parse_offset
from strandline.client.reader.reading import arrow_reader, bound_of, nanoseconds, read_request
from strandline.errors import InvalidRequestError, InvalidSubjectError, OffsetOutOfRangeError
from strandline.spark.offset_options import parse_timestamp


@pytest.mark.parametrize("place", ["earliest", "latest", 0, 17])
def test_places_are_taken_as_they_are(place):
    """Words and offsets need no translation."""
    assert bound_of(place) == place


def test_times_are_exact_and_zoned():
    """Microseconds survive; a time of another zone is the same moment."""
    moment = datetime(2026, 11, 21, 12, 0, 0, 123_457, tzinfo=UTC)
    remote_error = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert nanoseconds(moment) == nanoseconds(remote_error) == 1_795_262_400_123_457_000
    assert bound_of(moment) == AtTimestamp(timestamp_ns=1_795_262_400_123_457_000)


class Nowhere(tzinfo):
    """A zone that does not know its distance to UTC, which makes a time as good as zone-less."""

    def utcoffset(self, _):
        return None


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC"])
def test_a_time_without_a_zone_is_in_utc_at_every_door(zone, monkeypatch):
    """Client, command line and Spark mean the same moment, wherever their machines are."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        text = "2026-01-02T03:04:05"
        plain = datetime.fromisoformat(text)
        expected = int(plain.replace(tzinfo=UTC).timestamp()) * 1_000_000_000
        assert nanoseconds(plain) == nanoseconds(plain.replace(tzinfo=Nowhere())) == expected
        request = read_request("s", start=plain, timestamp_from=plain, timestamp_to=plain)
        assert request.start == AtTimestamp(timestamp_ns=expected)
        assert request.timestamp_from_ns == request.timestamp_to_ns == expected
        assert bound_of(parse_offset(text)) == AtTimestamp(timestamp_ns=expected)
        assert parse_timestamp(text) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("place", ["soon", 1.5, True, None, b"earliest"])
def test_other_places_are_rejected(place):
    """The error lists what a place may be."""
    with pytest.raises(InvalidRequestError, match="earliest"):
        bound_of(place)


def test_keys_may_be_text():
    """As in ``append``, text is UTF-8."""
    assert read_request("s", keys=["é", b"\xff"]).keys == ["é".encode(), b"\xff"]
    assert read_request("s", keys=[]).keys == []
    assert read_request("s").keys is None


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"starts": {0: -1}}, OffsetOutOfRangeError),
        ({"stop": -1}, OffsetOutOfRangeError),
        ({"subject": "a..b"}, InvalidSubjectError),
        ({"partition": -1}, InvalidRequestError),
        ({"starts": {}}, InvalidRequestError),
        ({"start": -(1 << 64)}, InvalidRequestError),
        ({"partition": 0, "starts": {0: 1}}, InvalidRequestError),
        ({"batch_bytes": 1}, InvalidRequestError),
        ({"records_max": -1}, InvalidRequestError),
    ],
)
def test_arguments_out_of_range_are_rejected_without_a_broker(arguments, error):
    """The client knows the ticket's limits."""
    with pytest.raises(error):
        read_request("s", **arguments)


@pytest.mark.parametrize(
    ("arguments", "is_plain"),
    [
        ({}, True),
        ({"records_max": 5}, True),
        ({"stop": 9}, True),
        ({"follow": True, "stop": 9}, True),
        ({"follow": True, "records_max": 5}, True),
        ({"follow": True}, False),
    ],
)
def test_a_read_that_ends_is_a_reader_of_pyarrow_s(arguments, is_plain):
    """Libraries take it as it is; one that has no end can be closed while somebody waits for it."""
    reader = arrow_reader(
        read_request("s", **arguments), pa.schema([]), iter(()), cancel=lambda: None
    )
    assert isinstance(reader, pa.RecordBatchReader) == is_plain
    reader.close()


def test_an_empty_stream_name_is_rejected():
    """Before it becomes somebody else's problem."""
    with pytest.raises(InvalidRequestError, match="stream"):
        read_request("")
