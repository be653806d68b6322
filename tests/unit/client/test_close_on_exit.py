"""What ends with a ``with`` block never hides the block's own error."""

import pytest

from strandline.client.close_on_exit import close_on_exit
from strandline.errors import UnavailableError


def fail():
    raise UnavailableError("nobody answers")


def test_a_failure_to_end_is_raised_or_becomes_a_note():
    """Alone it is the error; beside the block's own it is told with that."""
    close_on_exit(lambda: None, None, otherwise="it is lost")
    with pytest.raises(UnavailableError):
        close_on_exit(fail, None, otherwise="it is lost")
    error = ValueError("the block's own")
    close_on_exit(fail, error, otherwise="it is lost")
    assert error.__notes__ == ["also, it is lost: nobody answers"]


def test_a_bug_is_not_hidden_either():
    """Only what the world can cause becomes a note."""
    with pytest.raises(ZeroDivisionError):
        close_on_exit(lambda: 1 // 0, ValueError("the block's own"), otherwise="it is lost")
