"""When a client tries again, and after which errors."""

import pytest

from strandline.client.deadline import within
from strandline.client.retry_policy import (
    RetryBackoff,
    RetryDeadline,
    call_with_retries,
    is_passing,
)
from strandline.errors import (
    DisconnectedError,
    DiskFullError,
    InvalidRequestError,
    NotLeaderError,
    QuotaExceededError,
    RequestTimeoutError,
    ShuttingDownError,
    StillLoadingError,
    UnavailableError,
    all_error_classes,
)


def test_pauses_double_up_to_a_limit_and_start_over():
    """A broker that is away is asked less and less often, one that came back at once."""
    backoff = RetryBackoff(first_s=0.1, most_s=0.3)
    assert backoff.wait_s(0.0) == 0.0
    waits = []
    for _ in range(4):
        backoff.failed(10.0)
        waits.append(round(backoff.wait_s(10.0), 3))
    assert waits == [0.1, 0.2, 0.3, 0.3]
    assert backoff.wait_s(99.0) == 0.0
    backoff.succeeded()
    assert backoff.wait_s(10.0) == 0.0
    backoff.failed(10.0)
    assert round(backoff.wait_s(10.0), 3) == 0.1


@pytest.mark.parametrize(
    ("error", "is_loss"),
    [
        (DisconnectedError("d"), True),
        (ShuttingDownError("s"), True),
        (DiskFullError("f"), False),
        (RequestTimeoutError("t"), False),
        (InvalidRequestError("i"), False),
    ],
)
def test_only_a_lost_connection_is_met_by_sending_again(error, is_loss):
    """A full disk or an invalid request is raised at once."""
    assert error.is_connection_loss is is_loss


@pytest.mark.parametrize(
    ("error", "worth", "refused"),
    [
        (NotLeaderError("n"), True, True),
        (ShuttingDownError("s"), True, True),
        (StillLoadingError("l"), True, True),
        (DisconnectedError("d"), True, False),
        (UnavailableError("u"), True, False),
        (QuotaExceededError("q", wait_ms=5), True, False),
        (DiskFullError("f"), False, False),
        (RequestTimeoutError("t"), False, False),
        (InvalidRequestError("i"), False, False),
    ],
)
def test_some_rejections_pass_and_some_leave_no_doubt(error, worth, refused):
    """A broker that does not lead did nothing; one that went away may have."""
    assert error.passes_soon is worth
    assert error.is_rejection is refused


def test_patience_ends_unless_there_is_a_success():
    """Consecutive failures are retried for a limited time; a success restarts it."""
    retry_deadline, error = RetryDeadline(timeout_s=1.0), NotLeaderError("remote_error")
    assert retry_deadline.pause_s(error, 10.0) > 0
    assert retry_deadline.pause_s(error, 10.5) > 0
    retry_deadline.succeeded()
    assert retry_deadline.pause_s(error, 12.0) > 0
    with pytest.raises(NotLeaderError):
        retry_deadline.pause_s(error, 13.0)


def test_a_timeout_passes_for_a_read_and_not_for_an_append():
    """A read may be repeated; the outcome of an append is unknown."""
    assert is_passing(RequestTimeoutError("slow"))
    assert not RequestTimeoutError("slow").passes_soon


def failing(*errors):
    """An attempt that raises these, one after another, and then succeeds."""
    left = list(errors)

    def attempt():
        if left:
            raise left.pop(0)
        return "done"

    return attempt, left


def test_a_call_is_repeated_until_it_succeeds_and_something_may_be_changed_before():
    """Such as the broker that is asked next."""
    attempt, left = failing(NotLeaderError("n"), DisconnectedError("d"))
    asked = []
    found = call_with_retries(
        attempt,
        timeout_s=60,
        should_retry=is_passing,
        before_retry=lambda: asked.append("another"),
    )
    assert (found, left, asked) == ("done", [], ["another"] * 2)


def test_a_permanent_error_is_raised_at_once():
    """An invalid request is not retried."""
    attempt, left = failing(InvalidRequestError("i"), NotLeaderError("n"))
    with pytest.raises(InvalidRequestError):
        call_with_retries(attempt, timeout_s=60, should_retry=is_passing)
    assert len(left) == 1


def test_no_attempt_begins_after_the_deadline_of_the_caller():
    """Its time counts, even where the call itself would try for longer."""
    attempt, left = failing(*[NotLeaderError("n")] * 100)
    with within(0.2), pytest.raises(NotLeaderError):
        call_with_retries(attempt, timeout_s=60, should_retry=is_passing)
    assert len(left) > 90


def test_every_error_class_says_consistently_when_it_is_retried():
    """Temporary errors are retriable; errors without effect or connection are temporary."""
    for kind in all_error_classes():
        assert kind.retriable or not kind.passes_soon, kind
        assert kind.passes_soon or not (kind.is_rejection or kind.is_connection_loss), kind
