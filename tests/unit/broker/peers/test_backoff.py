"""Waiting before the next call."""

from strandline.broker.peers.backoff import ReconnectBackoff


def test_waits_double_up_to_the_longest():
    """Each wait is twice the last, then stays."""
    backoff = ReconnectBackoff(0.05, 1.0)
    waits = [backoff.next_s(1.0) for _ in range(7)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_waits_are_spread():
    """Half of each wait is random, so that brokers do not call in step."""
    assert ReconnectBackoff(0.1, 1.0).next_s(0.0) == 0.05


def test_only_a_connection_that_lasted_resets_it():
    """A peer that hangs up at once is called ever more slowly; one that was up, at once."""
    backoff = ReconnectBackoff(0.05, 1.0)
    backoff.next_s(1.0, lasted_s=0.01)
    assert backoff.next_s(1.0, lasted_s=0.01) == 0.1
    assert backoff.next_s(1.0, lasted_s=5.0) == 0.05
