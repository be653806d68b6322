"""Quotas in force: one meter a principal whichever way it comes, changed at run time."""

import threading

import pytest

from strandline.broker.access import Access, Caller
from strandline.clock import ManualClock
from strandline.config import BrokerConfig
from strandline.core.metadata.apply import apply
from strandline.core.metadata.commands import RemoveQuota, SetQuota
from strandline.core.metadata.image import MetadataImage
from strandline.errors import QuotaExceededError
from strandline.security.policy import Identity
from strandline.security.principal import ANONYMOUS, Principal
from strandline.security.quota import Quota
from strandline.servers.metering import Metering, Presence
from strandline.telemetry import Telemetry


class Place:
    """The parts of a broker that metering needs."""

    def __init__(self):
        self.clock = ManualClock()
        self.telemetry = Telemetry()
        self.image = MetadataImage()
        self.metering = Metering(self)

    def limit(self, **limits):
        self.image = apply(self.image, SetQuota("shop", Quota(**limits)))

    def of(self, principal):
        access = Access(BrokerConfig(), self)
        return self.metering.of(Caller(access, Identity(principal)))

    @property
    def shop(self):
        return self.of(Principal("shop"))


@pytest.fixture
def place():
    return Place()


def test_nobody_is_metered_where_nobody_is_known(place):
    """Without access control there is no principal, so nothing to pay for."""
    assert place.of(ANONYMOUS) is None


def test_a_principal_has_one_meter(place):
    """Whatever it opened, and whenever it asks."""
    assert place.shop is place.shop
    assert place.shop is not place.of(Principal("other"))


def test_without_a_quota_nothing_waits_and_nothing_is_counted(place):
    """Only principals with a quota have metrics."""
    assert place.shop.publish(10**12) == place.shop.read(10**12) == place.shop.requests(10**6) == 0
    place.shop.check_request()
    place.shop.check_publish(10**12)
    assert not place.telemetry.quota_published_bytes
    assert not place.telemetry.quota_rejections


def test_a_quota_counts_as_soon_as_it_is_set_and_no_longer_than_it_is(place):
    """Existing connections follow at once."""
    shop = place.shop
    shop.publish(5000)
    place.limit(publish_bytes_per_s=1000)
    assert shop.publish(1000) == 0
    assert shop.publish(500) == pytest.approx(0.5)
    place.image = apply(place.image, RemoveQuota("shop"))
    assert shop.publish(10**9) == 0


def test_what_waits_is_told_how_long_and_counted(place):
    """A principal's metrics: bytes, and the time it was asked to wait."""
    place.limit(publish_bytes_per_s=1000, read_bytes_per_s=1000)
    place.shop.publish(3000)
    place.shop.read(2000)
    figures = place.telemetry
    assert figures.quota_published_bytes == {"shop": 3000}
    assert figures.quota_read_bytes == {"shop": 2000}
    assert figures.quota_wait_seconds["shop"] == pytest.approx(3.0)


def test_a_rejected_request_says_when_to_ask_again(place):
    """And is served then."""
    place.limit(requests_per_s=2)
    place.shop.check_request()
    place.shop.check_request()
    with pytest.raises(QuotaExceededError, match="retry in") as caught:
        place.shop.check_request()
    assert caught.value.retriable
    assert caught.value.wait_ms == 500
    place.clock.advance_ms(500)
    place.shop.check_request()
    assert place.telemetry.quota_rejections == {"shop": 1}


def test_a_publish_that_cannot_be_held_up_is_rejected_while_there_is_debt(place):
    """Passed bytes are counted completely; the next ones wait until they are repaid."""
    place.limit(publish_bytes_per_s=1000)
    place.shop.check_publish(2500)
    with pytest.raises(QuotaExceededError):
        place.shop.check_publish(1)
    place.clock.advance_ms(1_600)
    place.shop.check_publish(1)
    assert place.telemetry.quota_published_bytes == {"shop": 2501}


def test_one_connection_too_many_is_rejected(place):
    """Until another is closed."""
    place.limit(connections=1)
    place.shop.open()
    with pytest.raises(QuotaExceededError, match="1 connections"):
        place.shop.open()
    place.shop.close()
    place.shop.open()


def test_a_shared_connection_counts_once_for_each_who_calls_on_it(place):
    """From a principal's first call to its end; a rejected call does not count."""
    place.limit(connections=1)
    first, second = Presence(), Presence()
    for allowance in (place.shop, place.of(Principal("other")), place.shop):
        first.note(allowance)
    for _ in range(2):
        with pytest.raises(QuotaExceededError, match="1 connections"):
            second.note(place.shop)
    second.end()
    with pytest.raises(QuotaExceededError):
        Presence().note(place.shop)
    first.end()
    second.note(place.shop)


def test_threads_share_a_bucket_without_losing_a_token(place):
    """Front ends meter on many threads; each byte is taken once."""
    place.limit(publish_bytes_per_s=1)
    shop = place.shop

    def publish():
        for _ in range(2000):
            shop.publish(1)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert place.telemetry.quota_published_bytes == {"shop": 8000}
