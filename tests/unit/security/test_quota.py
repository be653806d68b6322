"""Quotas: never more than the rate allows, whatever the sizes and times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidRequestError
from strandline.security.quota import (
    BURST_S,
    UNLIMITED,
    WAIT_MS_MAX,
    Bucket,
    Meter,
    Quota,
    check_quota,
)

RATES = st.integers(1, 10**9)
PAUSES_MS = st.floats(0, 10_000)
SHARES = st.floats(0, 2.0) | st.floats(0, 1_000.0)
"""Of what a second brings, taken at once; a thousand seconds' worth are a large batch's."""


@given(rate=RATES, steps=st.lists(st.tuples(PAUSES_MS, SHARES), max_size=50))
def test_what_waits_as_told_never_exceeds_the_rate(rate, steps):
    """At most rate * t + burst bytes pass, if callers wait as asked."""
    bucket, now_ms = Bucket(rate, 0.0), 0.0
    taken = 0.0
    for pause_ms, share in steps:
        now_ms += pause_ms
        size = share * rate
        taken += size
        wait_ms = bucket.take(size, now_ms)
        now_ms += wait_ms
        while wait_ms >= WAIT_MS_MAX:
            wait_ms = bucket.take(0, now_ms)
            now_ms += wait_ms
        assert taken <= (rate * now_ms / 1e3 + max(1.0, rate * BURST_S)) * (1 + 1e-9) + 1e-3


@given(rate=RATES, pauses=st.lists(PAUSES_MS, max_size=100))
def test_requests_never_exceed_the_rate(rate, pauses):
    """Requests that were granted by any moment are at most rate * t + burst."""
    bucket, now_ms, granted = Bucket(rate, 0.0), 0.0, 0
    for pause_ms in pauses:
        now_ms += pause_ms
        granted += bucket.ask(now_ms) == 0.0
        assert granted <= rate * now_ms / 1e3 + max(1.0, rate * BURST_S) + 1e-6


@given(rate=RATES, spent=st.integers(1, 5))
def test_who_waits_as_told_is_served(rate, spent):
    """A rejected request is granted after the given wait, and not much earlier."""
    bucket = Bucket(rate, 0.0)
    bucket.take(spent * max(1.0, rate * BURST_S), 0.0)
    wait_ms = bucket.ask(0.0)
    assert wait_ms > 0
    assert bucket.ask(wait_ms * 0.99) > 0
    assert bucket.ask(wait_ms * 1.01) == 0.0


@given(rate=RATES, times=st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_a_clock_that_stands_or_stumbles_gives_nothing(rate, times):
    """Time that goes backwards brings no tokens: at most the burst and the latest time's worth."""
    bucket, granted = Bucket(rate, 0.0), 0
    for now_ms in times:
        granted += bucket.ask(now_ms) == 0.0
    assert granted <= rate * max(times) / 1e3 + max(1.0, rate * BURST_S) + 1e-6


def test_a_debt_is_paid_a_minute_at_a_time():
    """A large overdraft is repaid in full; callers ask again each minute."""
    bucket = Bucket(1000, 0.0)
    assert bucket.take(151_000, 0.0) == WAIT_MS_MAX
    assert bucket.take(0, 60_000.0) == WAIT_MS_MAX
    assert bucket.take(0, 120_000.0) == 30_000.0
    assert bucket.take(0, 150_000.0) == 0.0


def test_an_unlimited_meter_lets_everything_through():
    """Without a quota nothing waits, whatever the amounts."""
    meter = Meter()
    assert meter.publish(10**15, 0.0) == meter.read(10**15, 0.0) == meter.request(0.0) == 0.0
    assert all(meter.connect() for _ in range(1000))


def test_each_limit_stands_for_itself():
    """Publishing, reading and requests have buckets of their own."""
    meter = Meter()
    meter.limit(Quota(publish_bytes_per_s=1000, read_bytes_per_s=500, requests_per_s=1), 0.0)
    assert meter.publish(1000, 0.0) == 0.0
    assert meter.publish(1000, 0.0) == 1000.0
    assert meter.read(500, 0.0) == 0.0
    assert meter.read(500, 0.0) == 1000.0
    assert meter.request(0.0) == 0.0
    assert meter.request(0.0) == 1000.0


def test_a_change_of_one_limit_leaves_the_others_as_they_are():
    """Setting a quota again does not refill the buckets of unchanged limits."""
    meter = Meter()
    meter.limit(Quota(publish_bytes_per_s=1000, requests_per_s=1), 0.0)
    meter.publish(2000, 0.0)
    meter.request(0.0)
    meter.limit(Quota(publish_bytes_per_s=1000, requests_per_s=5), 0.0)
    assert meter.publish(0, 0.0) == 1000.0
    assert meter.request(0.0) == 0.0
    meter.limit(UNLIMITED, 0.0)
    assert meter.publish(10**9, 0.0) == 0.0


def test_connections_are_counted_before_there_is_a_quota():
    """A quota set later counts the connections that there were, and ends none of them."""
    meter = Meter()
    assert meter.connect()
    assert meter.connect()
    meter.limit(Quota(connections=2), 0.0)
    assert not meter.connect()
    meter.disconnect()
    assert meter.connect()
    assert meter.connections == 2


@pytest.mark.parametrize(
    "quota", [Quota(), Quota(publish_bytes_per_s=-1), Quota(connections=1 << 51)]
)
def test_a_quota_that_is_none_is_rejected(quota):
    """No limit, a negative one, and an impossible one are rejected with the field."""
    with pytest.raises(InvalidRequestError):
        check_quota(quota)
