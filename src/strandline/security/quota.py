"""Quotas: how much of a broker one principal may use, as pure arithmetic on time that is given.

What has a rate is metered by a bucket of tokens. It is full at first, holds what one second brings,
and is refilled as time passes. Bytes are taken even when the bucket does not hold them: it goes
into debt, and whoever took them waits until it is paid, so that whatever the sizes, what was let
through in ``t`` seconds is never more than ``rate * t + burst``. A request is refused instead. No
debt is forgiven, however large: whoever sends little and rarely but much at a time would pay less.

Rules: no I/O and no clock, times are monotonic milliseconds and never go backwards; nothing here
is safe to use from several threads. Must not know who enforces what, nor how anybody waits.
"""

from typing import Final

import msgspec

from strandline.errors import InvalidRequestError

BURST_S: Final = 1.0
"""How many seconds' worth may be used at once after a pause."""
LIMIT_MAX: Final = 1 << 50
WAIT_MS_MAX: Final = 60_000.0
"""Who is told to wait for so long asks again then: the quota may have been raised meanwhile."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one principal at each broker; 0 means no limit."""

    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    connections: int = 0


UNLIMITED: Final = Quota()


def check_quota(quota: Quota) -> None:
    """Refuse a quota that limits nothing, or by what is no limit.

    Raises:
        InvalidRequestError: naming the field.
    """
    for name in Quota.__struct_fields__:
        value = getattr(quota, name)
        if not 0 <= value <= LIMIT_MAX:
            raise InvalidRequestError(f"{name} is 0 to {LIMIT_MAX}, not {value}")
    if quota == UNLIMITED:
        raise InvalidRequestError("this quota limits nothing; to lift one, remove it")


class Bucket:
    """Tokens that come at a rate, up to a burst.

    Args:
        rate: tokens a second, above 0.
        now_ms: the time; the bucket is full.
    """

    __slots__ = ("_burst", "_per_ms", "_since_ms", "_tokens")

    def __init__(self, rate: float, now_ms: float) -> None:
        assert rate > 0, "no bucket without a rate"
        self._per_ms = rate / 1e3
        self._burst = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._since_ms = now_ms

    def take(self, amount: float, now_ms: float) -> float:
        """Take tokens, there or not; for how many milliseconds whoever took them has to wait.

        After ``WAIT_MS_MAX`` it has to ask again, by taking none.
        """
        self._refill(now_ms)
        self._tokens -= amount
        return min(WAIT_MS_MAX, max(0.0, -self._tokens / self._per_ms))

    def ask(self, now_ms: float) -> float:
        """Take one token if there is one; else after how many milliseconds there will be."""
        self._refill(now_ms)
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._per_ms
        self._tokens -= 1.0
        return 0.0

    def _refill(self, now_ms: float) -> None:
        passed_ms = max(0.0, now_ms - self._since_ms)
        self._tokens = min(self._burst, self._tokens + passed_ms * self._per_ms)
        self._since_ms = max(self._since_ms, now_ms)


class Meter:
    """Usage of one principal at one broker.

    Connections are counted always, so that a quota set later knows of those there are; bytes and
    requests only while a quota limits them.
    """

    __slots__ = ("_publish", "_read", "_requests", "connections", "quota")

    def __init__(self) -> None:
        self.quota = UNLIMITED
        self.connections = 0
        self._publish: Bucket | None = None
        self._read: Bucket | None = None
        self._requests: Bucket | None = None

    def limit(self, quota: Quota, now_ms: float) -> None:
        """Another quota is in force; buckets whose rate has not changed go on as they are."""
        before, self.quota = self.quota, quota
        if quota.publish_bytes_per_s != before.publish_bytes_per_s:
            self._publish = _bucket(quota.publish_bytes_per_s, now_ms)
        if quota.read_bytes_per_s != before.read_bytes_per_s:
            self._read = _bucket(quota.read_bytes_per_s, now_ms)
        if quota.requests_per_s != before.requests_per_s:
            self._requests = _bucket(quota.requests_per_s, now_ms)

    def publish(self, size: int, now_ms: float) -> float:
        """Bytes were published; milliseconds until more may be."""
        return self._publish.take(size, now_ms) if self._publish is not None else 0.0

    def read(self, size: int, now_ms: float) -> float:
        """Bytes are to be delivered; milliseconds until they may be."""
        return self._read.take(size, now_ms) if self._read is not None else 0.0

    def request(self, now_ms: float) -> float:
        """One request: 0 if it may be served, else milliseconds after which it may."""
        return self._requests.ask(now_ms) if self._requests is not None else 0.0

    def requests(self, count: int, now_ms: float) -> float:
        """Requests that cannot be refused one by one; milliseconds until more may come."""
        return self._requests.take(count, now_ms) if self._requests is not None else 0.0

    def connect(self) -> bool:
        """Count a connection; False, and not counted, if it is one too many."""
        limit = self.quota.connections
        if limit and self.connections >= limit:
            return False
        self.connections += 1
        return True

    def disconnect(self) -> None:
        """A counted connection is gone."""
        assert self.connections > 0, "counted when it came"
        self.connections -= 1


def _bucket(rate: int, now_ms: float) -> Bucket | None:
    return Bucket(rate, now_ms) if rate else None
