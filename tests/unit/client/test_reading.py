"""Arguments of a read as a ticket."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from strandline.client.reading import bound_of, nanoseconds, read_request
from strandline.errors import InvalidRequestError, InvalidSubjectError, OffsetOutOfRangeError
from strandline.protocol.tickets import AtTimestamp


@pytest.mark.parametrize("place", ["earliest", "latest", 0, 17])
def test_places_are_taken_as_they_are(place):
    """Words and offsets need no translation."""
    assert bound_of(place) == place


def test_times_are_exact_and_zoned():
    """Microseconds survive; a time of another zone is the same moment."""
    moment = datetime(2026, 11, 21, 12, 0, 0, 123_457, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert nanoseconds(moment) == nanoseconds(elsewhere) == 1_795_262_400_123_457_000
    assert bound_of(moment) == AtTimestamp(timestamp_ns=1_795_262_400_123_457_000)


def test_a_naive_time_is_local_as_everywhere_in_python():
    """``datetime.now()`` means now."""
    naive = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - what is tested
    assert nanoseconds(naive) == int(naive.timestamp()) * 1_000_000_000


@pytest.mark.parametrize("place", ["soon", 1.5, True, None, b"earliest"])
def test_other_places_are_refused(place):
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
        ({"start": -1}, OffsetOutOfRangeError),
        ({"stop": -1}, OffsetOutOfRangeError),
        ({"subject": "a..b"}, InvalidSubjectError),
        ({"partition": -1}, InvalidRequestError),
        ({"starts": {}}, InvalidRequestError),
        ({"partition": 0, "starts": {0: 1}}, InvalidRequestError),
        ({"batch_bytes": 1}, InvalidRequestError),
        ({"records_max": -1}, InvalidRequestError),
    ],
)
def test_arguments_out_of_range_are_refused_without_a_broker(arguments, error):
    """The client knows the ticket's limits."""
    with pytest.raises(error):
        read_request("s", **arguments)


def test_an_empty_stream_name_is_refused():
    """Before it becomes somebody else's problem."""
    with pytest.raises(InvalidRequestError, match="stream"):
        read_request("")
