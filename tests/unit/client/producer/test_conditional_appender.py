"""A record with an expected offset, while its partition has no leader."""

import time
from types import SimpleNamespace

import pytest

from strandline.client.producer.accumulator import ProducerRecord
from strandline.client.producer.conditional_appender import ConditionalAppender
from strandline.errors import NotLeaderError

RECORD = ProducerRecord(b"v", None, None, None, None)


class Leaderless:
    """Brokers of a stream whose partition has no leader; counts how often they are asked."""

    def __init__(self):
        self.named_broker = self.turned = 0

    def routes(self, _stream):
        self.named_broker += 1
        return SimpleNamespace()

    def leaders(self, _routes):
        return {0: ""}

    known_routes = routes

    @property
    def metadata(self):
        return self

    def forget(self, _stream):
        """Nothing is kept."""

    def ask_another(self):
        self.turned += 1


def test_a_leader_that_is_away_is_asked_for_with_pauses():
    """A handful of times a second, each time of another broker, until the time is over."""
    with pytest.raises(NotLeaderError):  # Arrow's first batch of a process takes a second
        ConditionalAppender(Leaderless(), timeout_s=0.01).append("s", 0, RECORD, expected_offset=3)
    brokers = Leaderless()
    appender = ConditionalAppender(brokers, timeout_s=1.0)
    began_s = time.monotonic()
    with pytest.raises(NotLeaderError, match="no leader now"):
        appender.append("s", 0, RECORD, expected_offset=3)
    assert 0.5 <= time.monotonic() - began_s < 10
    assert 2 <= brokers.named_broker <= 12
    assert brokers.turned == brokers.named_broker - 1
