"""A repeated warning is logged at once, and then rarely."""

from strandline.broker.log_throttle import INTERVAL_S, TEXTS_MAX, LogThrottle


def test_a_text_is_said_at_once_and_then_rarely():
    """Each text on its own; after a reset it is logged at once again."""
    log_throttle = LogThrottle()
    assert log_throttle.is_due("full", 5.0)
    assert not log_throttle.is_due("full", 5.0 + INTERVAL_S / 2)
    assert log_throttle.is_due("slow", 6.0)
    assert log_throttle.is_due("full", 5.0 + INTERVAL_S)
    assert not log_throttle.is_due("full", 6.0 + INTERVAL_S)
    log_throttle.forget("full")
    assert log_throttle.is_due("full", 6.0 + INTERVAL_S)


def test_texts_of_strangers_take_no_more_than_a_little_memory():
    """The one that was said longest ago makes room."""
    log_throttle = LogThrottle()
    for number in range(TEXTS_MAX + 1):
        assert log_throttle.is_due(str(number), 0.0)
    assert len(log_throttle._said) == TEXTS_MAX
    assert not log_throttle.is_due("1", 1.0)
    assert log_throttle.is_due("0", 1.0)
