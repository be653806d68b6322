"""Outcomes of commands, as every broker records and raises them."""

import pytest

from strandline.core.metadata.outcome import (
    CommandOutcome,
    CommandRejectedError,
    CommandRejection,
    refused,
)
from strandline.errors import (
    InvalidRequestError,
    StrandlineError,
    UnavailableError,
    UnknownStreamError,
)


def test_an_applied_command_raises_nothing():
    """Also if some of its partitions were left out."""
    rejected = CommandRejection("s", 3, "stale_partition", "late")
    outcome = CommandOutcome(value=7, rejected=(rejected,))
    assert outcome.is_applied
    outcome.raise_if_rejected()
    assert rejected.name == ("s", 3)


@pytest.mark.parametrize("kind", [UnknownStreamError, UnavailableError, InvalidRequestError])
def test_a_rejected_command_raises_the_error_that_rejected_it(kind):
    """With the same message, on any broker."""
    outcome = refused(kind("what is wrong"))
    assert not outcome.is_applied
    assert (outcome.code, outcome.reason) == (kind.code, "")
    with pytest.raises(kind, match="what is wrong") as caught:
        outcome.raise_if_rejected()
    assert type(caught.value) is kind


def test_a_code_of_a_later_version_is_some_error():
    """It is not taken for success."""
    outcome = CommandOutcome(code="from_the_future", message="new")
    with pytest.raises(StrandlineError, match="new") as caught:
        outcome.raise_if_rejected()
    assert type(caught.value) is StrandlineError


def test_a_command_that_does_not_apply_keeps_its_reason():
    """People read the message, programs the reason."""
    outcome = refused(CommandRejectedError("stale_group", "the group has changed"))
    assert outcome == CommandOutcome(
        code=InvalidRequestError.code, reason="stale_group", message="the group has changed"
    )
