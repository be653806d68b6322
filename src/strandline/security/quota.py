"""Quotas of a principal at one broker, computed from times that the caller passes.

Rates are limited by token buckets. A bucket starts full, holds the tokens of one second, and is
refilled as time passes. Bytes are taken even if there are too few tokens: the balance becomes
negative, and the caller waits until it is 0 again. So for any sizes, no more than ``rate * t +
burst`` bytes pass in ``t`` seconds. A request without a token is rejected. A negative balance is
never reset, or clients that send rarely, but much at a time, could exceed the rate.

Rules: no I/O and no clock; times are monotonic milliseconds and never go backwards; not
thread-safe. This module does not know the code that enforces quotas, nor how that waits.
"""

from typing import Final

import msgspec

from strandline.errors import InvalidRequestError

BURST_S: Final = 1.0
"""A bucket holds the tokens of so many seconds, usable at once after a pause."""
LIMIT_MAX: Final = 1 << 50
WAIT_MS_MAX: Final = 60_000.0
"""The longest wait in one step; the caller then asks again: the quota may have been raised."""


class Quota(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one principal at each broker; 0 means no limit."""

    publish_bytes_per_s: int = 0
    read_bytes_per_s: int = 0
    requests_per_s: int = 0
    connections: int = 0


UNLIMITED: Final = Quota()


def check_quota(quota: Quota) -> None:
    """Reject a quota without any limit, or with an invalid one.

    Raises:
        InvalidRequestError: the quota is invalid; the message names the field.
    """
    for name in Quota.__struct_fields__:
        value = getattr(quota, name)
        if not 0 <= value <= LIMIT_MAX:
            raise InvalidRequestError(f"{name} is {value}; it must be 0 to {LIMIT_MAX}")
    if quota == UNLIMITED:
        names = ", ".join(Quota.__struct_fields__)
        raise InvalidRequestError(f"no limit is given; set one of {names}, or remove the quota")


class Bucket:
    """A token bucket.

    Args:
        rate: tokens per second, above 0.
        now_ms: the current time; the bucket starts full.
    """

    __slots__ = ("_burst", "_per_ms", "_since_ms", "_tokens")

    def __init__(self, rate: float, now_ms: float) -> None:
        assert rate > 0, "no bucket without a rate"
        self._per_ms = rate / 1e3
        self._burst = max(1.0, rate * BURST_S)
        self._tokens = self._burst
        self._since_ms = now_ms

    def take(self, amount: float, now_ms: float) -> float:
        """Take tokens even if there are too few; return how many milliseconds the caller must wait.

        The result is at most ``WAIT_MS_MAX``; the caller then calls again with 0 tokens.
        """
        self._refill(now_ms)
        self._tokens -= amount
        return min(WAIT_MS_MAX, max(0.0, -self._tokens / self._per_ms))

    def ask(self, now_ms: float) -> float:
        """Take a token and return 0, or return the milliseconds until there is one."""
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
    """The usage of one principal at one broker.

    Connections are always counted, so that a quota that is set later includes those already open.
    Bytes and requests are counted only while a quota limits them.
    """

    __slots__ = ("_publish", "_read", "_requests", "connections", "quota")

    def __init__(self) -> None:
        self.quota = UNLIMITED
        self.connections = 0
        self._publish: Bucket | None = None
        self._read: Bucket | None = None
        self._requests: Bucket | None = None

    def limit(self, quota: Quota, now_ms: float) -> None:
        """Apply another quota; a bucket whose rate has not changed keeps its state."""
        before, self.quota = self.quota, quota
        if quota.publish_bytes_per_s != before.publish_bytes_per_s:
            self._publish = _bucket(quota.publish_bytes_per_s, now_ms)
        if quota.read_bytes_per_s != before.read_bytes_per_s:
            self._read = _bucket(quota.read_bytes_per_s, now_ms)
        if quota.requests_per_s != before.requests_per_s:
            self._requests = _bucket(quota.requests_per_s, now_ms)

    def publish(self, size: int, now_ms: float) -> float:
        """Count published bytes; return the milliseconds until more may be published."""
        return self._publish.take(size, now_ms) if self._publish is not None else 0.0

    def read(self, size: int, now_ms: float) -> float:
        """Count bytes to deliver; return the milliseconds until they may be delivered."""
        return self._read.take(size, now_ms) if self._read is not None else 0.0

    def request(self, now_ms: float) -> float:
        """Count a request; return 0 if it may be served, else the milliseconds to wait."""
        return self._requests.ask(now_ms) if self._requests is not None else 0.0

    def requests(self, count: int, now_ms: float) -> float:
        """Count requests that cannot be rejected; return the milliseconds until more may come."""
        return self._requests.take(count, now_ms) if self._requests is not None else 0.0

    def connect(self) -> bool:
        """Count a connection; if it exceeds the quota, return False and do not count it."""
        limit = self.quota.connections
        if limit and self.connections >= limit:
            return False
        self.connections += 1
        return True

    def disconnect(self) -> None:
        """Count the end of a connection."""
        assert self.connections > 0, "counted when it came"
        self.connections -= 1


def _bucket(rate: int, now_ms: float) -> Bucket | None:
    return Bucket(rate, now_ms) if rate else None
