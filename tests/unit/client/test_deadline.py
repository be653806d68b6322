"""Deadlines: one for all attempts of a call, however deep, and none for what comes after it."""

import threading

import pytest

from strandline.client.deadline import limited, within


def test_requests_get_no_more_time_than_is_left():
    """Those inside of a call that is inside of another one, too; a shorter limit stays."""
    with within(5.0):
        assert limited(60.0) == pytest.approx(5.0, abs=1.0)
        with within(60.0):
            assert limited(60.0) <= 5.0
            assert limited(0.5) == 0.5
        with within(0.0):
            assert 0 < limited(60.0) < 0.1, "no request is made without any time"
    assert limited(60.0) == 60.0


def test_a_deadline_that_is_over_ends_with_its_call():
    """Also if the call fails, and other threads have none of it."""
    found = []

    def fail():
        thread = threading.Thread(target=lambda: found.append(limited(60.0)))
        thread.start()
        thread.join()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), within(0.0):
        fail()
    assert [*found, limited(60.0)] == [60.0, 60.0]
