"""When to try again after a lost connection or a refusal that will pass.

Pure: the caller tells the time and waits.

Policy: records are delivered at least once. What was sent and not acknowledged is sent again, in
order, until its delivery timeout; with numbers of an idempotent producer, or with message ids, the
broker stores it once all the same.
"""

from strandline.errors import (
    ClientClosedError,
    DisconnectedError,
    LogPoisonedError,
    NotEnoughReplicasError,
    NotLeaderError,
    QuotaExceededError,
    RequestTimeoutError,
    ShuttingDownError,
    StillLoadingError,
    StrandlineError,
    UnavailableError,
)

FIRST_S = 0.05
MOST_S = 1.0
RETRY_S_MAX = 5.0
LOGGED_AGAIN_S = 60.0


def is_connection_loss(error: StrandlineError) -> bool:
    """Whether sending again, over a new connection, is the right answer."""
    is_closed = isinstance(error, ClientClosedError)
    return isinstance(error, DisconnectedError | ShuttingDownError) and not is_closed


def is_refusal(error: StrandlineError) -> bool:
    """Whether nothing was done, for certain, as the broker asked cannot do it now."""
    return isinstance(
        error, NotLeaderError | NotEnoughReplicasError | ShuttingDownError | StillLoadingError
    )


def is_worth_a_retry(error: StrandlineError) -> bool:
    """Whether the same request may soon succeed, perhaps at another broker.

    A full disk or a failed one may take long to heal, so people hear of it at once.
    """
    is_plain = type(error) in (UnavailableError, QuotaExceededError)
    return is_plain or is_refusal(error) or is_connection_loss(error)


def is_passing(error: StrandlineError) -> bool:
    """Whether another attempt, perhaps elsewhere, may succeed."""
    return is_worth_a_retry(error) or isinstance(error, RequestTimeoutError)


def unknown_outcome(error: StrandlineError) -> StrandlineError:
    """The failure of a record that was sent before: a refusal says nothing of that sending."""
    is_indefinite = isinstance(error, DisconnectedError | RequestTimeoutError | LogPoisonedError)
    kind = type(error) if is_indefinite or type(error) is UnavailableError else RequestTimeoutError
    return kind(f"{error.message}; whether the record was stored is unknown")


class Backoff:
    """Pauses between attempts: doubling, limited, from the start again after a success."""

    def __init__(self, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s
        self.not_before_s = 0.0
        """Time of the next attempt."""

    def failed(self, now_s: float) -> None:
        """An attempt failed at ``now_s``."""
        self.not_before_s = now_s + self._next_s
        self._next_s = min(2 * self._next_s, self._most_s)

    def succeeded(self) -> None:
        """An attempt succeeded."""
        self._next_s = self._first_s
        self.not_before_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds to wait before the next attempt."""
        return max(0.0, self.not_before_s - now_s)


class RetrySchedule(Backoff):
    """When to do again what keeps failing, and when to log that it does: not each time."""

    def __init__(self) -> None:
        super().__init__(most_s=RETRY_S_MAX)
        self._logged_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether to try now."""
        return now_s >= self.not_before_s

    def is_news(self, now_s: float) -> bool:
        """Whether to log the failure at ``now_s``: the first one, and then once in a while."""
        if self._logged_s is not None and now_s - self._logged_s < LOGGED_AGAIN_S:
            return False
        self._logged_s = now_s
        return True

    def succeeded(self) -> None:
        """An attempt succeeded, or is not needed any longer."""
        super().succeeded()
        self._logged_s = None


class Patience:
    """How long failures may go on without a success in between.

    Args:
        timeout_s: so long.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._backoff = Backoff()
        self._deadline_s: float | None = None

    def succeeded(self) -> None:
        """An attempt succeeded."""
        self._backoff.succeeded()
        self._deadline_s = None

    def left_s(self, now_s: float) -> float:
        """How long an attempt that begins now may take; the first one begins the time."""
        self._deadline_s = self._deadline_s or now_s + self._timeout_s
        return max(0.0, self._deadline_s - now_s)

    def pause_s(self, error: StrandlineError, now_s: float) -> float:
        """How long to wait before the next attempt.

        Raises:
            StrandlineError: ``error`` itself, when the time is over.
        """
        self._deadline_s = self._deadline_s or now_s + self._timeout_s
        self._backoff.failed(now_s)
        if self._backoff.not_before_s >= self._deadline_s:
            raise error
        return self._backoff.wait_s(now_s)
