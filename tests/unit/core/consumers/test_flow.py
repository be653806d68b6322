"""Flow control of a push consumer: when it asks, and how much it sends before the answer."""

import pytest

from strandline.core.consumers.flow import WINDOW_BYTES_FIRST, WINDOW_BYTES_MAX, FlowWindow

HALF = WINDOW_BYTES_FIRST // 2


@pytest.fixture
def window():
    return FlowWindow()


def test_a_request_follows_once_more_than_half_is_on_its_way(window):
    """Exactly half of the window needs none."""
    assert not window.sent(HALF)
    assert window.request == 0
    assert window.sent(1)
    assert window.request == 1
    assert not window.sent(1), "one request waits at a time"
    assert window.request == 1


def test_a_window_is_full_when_more_than_it_is_on_its_way(window):
    """A record is sent as long as no more than the window is."""
    window.sent(WINDOW_BYTES_FIRST)
    assert not window.is_full
    window.sent(1)
    assert window.is_full
    window.check()


def test_an_answer_confirms_what_was_sent_before_its_request(window):
    """What was sent after it is still on its way; the window doubles."""
    assert window.sent(HALF + 1)
    window.sent(100)
    assert window.answered(1)
    assert (window.sent_bytes, window.window_bytes) == (100, 2 * WINDOW_BYTES_FIRST)
    assert window.request == 0
    assert not window.answered(0), "nobody waits for an answer"


def test_an_answer_to_an_earlier_request_counts_for_nothing(window):
    """Also after the receiver was replaced, whose late answers have numbers of their own."""
    window.sent(HALF + 1)
    assert not window.answered(2)
    assert window.sent_bytes == HALF + 1
    window.reset()
    assert (window.sent_bytes, window.request) == (0, 0)
    assert not window.sent(HALF)
    assert window.sent(1)
    assert window.request == 2
    assert not window.answered(1)
    assert window.answered(2)
    assert window.sent_bytes == 0


def test_a_window_grows_to_its_limit(window):
    """And a new receiver begins with a small one."""
    sizes = []
    for request in range(1, 8):
        assert window.sent(window.window_bytes // 2 + 1)
        assert window.answered(request)
        sizes.append(window.window_bytes)
    assert sizes[:4] == [WINDOW_BYTES_FIRST << n for n in range(1, 5)]
    assert set(sizes[3:]) == {WINDOW_BYTES_MAX}
    window.reset()
    assert window.window_bytes == WINDOW_BYTES_FIRST


@pytest.mark.parametrize("behind", [-1, 0, 1])
def test_a_huge_record_behind_a_request_does_not_keep_the_window_full(window, behind):
    """What comes after the request and fills a window by itself is confirmed with it."""
    window.sent(HALF + 1)
    size = WINDOW_BYTES_FIRST + behind
    window.sent(size)
    assert window.answered(1)
    assert window.sent_bytes == (size if behind < 0 else 0)


def test_a_run_ends_at_a_request_or_a_full_window(window):
    """The count is of what was sent; the rest waits."""
    assert window.send_run([10, 20]) == (2, False)
    assert window.sent_bytes == 30
    assert window.send_run([HALF, 5, 5]) == (1, True)
    assert window.send_run([5, 5]) == (2, False)
    assert window.send_run([WINDOW_BYTES_FIRST - 100, 200, 7]) == (1, False)
    assert window.is_full
    assert window.send_run([]) == (0, False)
    assert window.send_run([1]) == (0, False)
