"""Numbers and moments as users have them."""

import threading
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from strandline.client.arguments import (
    check_number,
    milliseconds,
    nanoseconds,
    offsets_by_number,
    offsets_by_partition,
    wait,
    whole_number,
)
from strandline.errors import InvalidRequestError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_numbers_of_arrays_are_numbers(value):
    """They become Python's own, which is what goes over the wire."""
    assert (whole_number(value, "partition"), type(whole_number(value, "x"))) == (3, int)


@pytest.mark.parametrize("value", [True, np.True_, 3.0, "3", None])
def test_what_is_no_whole_number_is_rejected(value):
    """By the name of what it was given as."""
    with pytest.raises(InvalidRequestError, match="partition must be a whole number"):
        whole_number(value, "partition")


@pytest.mark.parametrize(
    "moment",
    [datetime(2026, 7, 1, 12), datetime(2026, 7, 1, 12, tzinfo=UTC)],  # noqa: DTZ001
)
def test_times_of_data_frames_are_times(moment):
    """One without a zone is in UTC, whoever made it."""
    expected = moment.replace(tzinfo=UTC).timestamp() * 1e9
    assert nanoseconds(pd.Timestamp(moment)) == nanoseconds(moment) == expected


def test_what_is_no_moment_is_rejected():
    """Text has no time zone, and no one format."""
    with pytest.raises(InvalidRequestError, match="2026-01-01"):
        nanoseconds("2026-01-01")


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        (pd.NaT, "a time must be a datetime, got NaT"),
        (datetime.min, "timestamp out of range: .*1678 to 2261"),  # noqa: DTZ901 - it is what is tested
        (datetime.max.replace(tzinfo=UTC), "timestamp out of range: .*9999"),
    ],
)
def test_what_no_record_can_have_as_its_time_is_rejected(moment, reason):
    """As what it is: pandas' NaT passes for a datetime."""
    with pytest.raises(InvalidRequestError, match=reason):
        nanoseconds(moment)


@pytest.mark.parametrize("value", ["5", None, float("nan"), 0.5, [2]])
def test_what_is_no_number_or_too_small_is_rejected(value):
    """By its name, and with the least that works."""
    check_number(float("inf"), "linger_ms", least=1)
    with pytest.raises(InvalidRequestError, match="linger_ms must be a number of at least 1"):
        check_number(value, "linger_ms", least=1)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), "5", None])
def test_times_are_positive_and_finite(seconds):
    """A transaction of no time at all was begun, and refused its records for another reason."""
    with pytest.raises(InvalidRequestError, match="timeout_s must be a positive number of seconds"):
        milliseconds(seconds, "timeout_s")


@pytest.mark.parametrize("seconds", ["5", None, float("nan"), [2]])
def test_what_is_no_wait_is_rejected(seconds):
    """One that is over is none, and one for ever is as long as a lock of Python's may wait."""
    assert [wait(s, "t") for s in (-1, 0, 2, np.float32(0.5))] == [0.0, 0.0, 2.0, 0.5]
    assert wait(float("inf"), "t") < threading.TIMEOUT_MAX
    with pytest.raises(InvalidRequestError, match="timeout_s must be a number of seconds, got"):
        wait(seconds, "timeout_s")


@pytest.mark.parametrize("offsets", [5, None, [3], {0: "3"}, {"0": 3}])
def test_what_are_no_offsets_by_number_is_rejected(offsets):
    """With an example of what is meant."""
    assert offsets_by_number({np.int64(0): 3}, "starts") == {0: 3}
    with pytest.raises(InvalidRequestError, match=r"beyond must be offsets by|whole number"):
        offsets_by_number(offsets, "beyond")


@pytest.mark.parametrize("offsets", [{(None, 0): 1}, {(b"s", 0): 1}, {"s": 1}, [("s", 0)], None])
def test_what_are_no_offsets_of_partitions_is_rejected(offsets):
    """Where they are given, with an example of what is meant."""
    with pytest.raises(InvalidRequestError, match=r"offsets must be by stream|text"):
        offsets_by_partition(offsets)


def test_times_are_whole_milliseconds():
    """The shortest is one."""
    assert [milliseconds(s, "t") for s in (1e-9, 0.25, np.float64(2), 3)] == [1, 250, 2000, 3000]
