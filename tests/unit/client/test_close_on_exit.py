"""What ends with a ``with`` block never hides the block's own error."""

import pytest

from strandline.client.close_on_exit import ClosesOnExit
from strandline.errors import UnavailableError


class Ends(ClosesOnExit):
    """A context whose end does what it is told."""

    _failure_means = "it is lost"

    def __init__(self, end):
        self.end = end

    def _end_context(self, _):
        self.end()


def fail():
    raise UnavailableError("nobody answers")


def test_a_failure_to_end_is_raised_or_becomes_a_note():
    """Alone it is the error; beside the block's own it is told with that."""
    with Ends(lambda: None):
        pass
    with pytest.raises(UnavailableError), Ends(fail):
        pass
    with pytest.raises(ValueError, match="own") as caught, Ends(fail):
        raise ValueError("the block's own")
    assert caught.value.__notes__ == ["also, it is lost: nobody answers"]


def test_a_bug_is_not_hidden_either():
    """Only what the world can cause becomes a note."""
    with pytest.raises(ZeroDivisionError), Ends(lambda: 1 // 0):
        raise ValueError("the block's own")
