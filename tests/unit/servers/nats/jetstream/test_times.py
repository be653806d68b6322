"""Times as Go's clients write and read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.servers.nats.jetstream.times import format_time, ms_of, parse_time


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_618_423_246_797_250, "2026-11-25T14:53:43.24679725Z"),
        (1_500_000_000_000_000_001, "2017-07-14T02:40:00.000000001Z"),
        (-62_135_596_799_000_000_000, "0001-01-01T00:00:01Z"),
        (253_402_300_799_000_000_000, "9999-12-31T23:59:59Z"),
    ],
)
def test_times_have_nanoseconds_and_no_zeros_at_the_end(time_ns, text):
    """As nats-server writes them."""
    assert format_time(time_ns) == text
    assert parse_time(text) == time_ns


def test_zones_and_missing_fractions_are_read():
    """RFC 3339 allows both."""
    assert parse_time("1970-01-01T02:00:00+02:00") == 0
    assert parse_time("1969-12-31 20:30:00-03:30") == 0
    assert parse_time("1970-01-01t00:00:00.5z") == 500_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-13-01T00:00:00Z",
        "2026-01-01",
        "1e9",
        "0" * 99,
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+00:60",
        "2026-01-01T00:00:00+24:60",
    ],
)
def test_what_is_no_time_is_rejected(text):
    """Also what looks like one, or would be in another millennium."""
    with pytest.raises(ValueError, match=r"time|month|year"):
        parse_time(text)


@given(st.integers(-62_135_596_800_000_000_000, 253_402_300_799_999_999_999))
def test_every_time_is_read_back(time_ns):
    """To the nanosecond."""
    assert parse_time(format_time(time_ns)) == time_ns


def test_durations_are_rounded_up():
    """A limit of less than a millisecond is one."""
    assert [ms_of(each) for each in (0, 1, 1_000_000, 1_000_001)] == [0, 1, 1, 2]
