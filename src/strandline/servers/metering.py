"""Meters of the principals at one broker, shared by all servers.

Rules: a principal has one meter for all protocols. Without access control there are no principals,
so nothing is metered, at no cost. A changed quota applies at the next use; callers that are waiting
notice it within a minute. Any thread may use a meter; each server decides how it waits.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from strandline.broker.access import Caller
from strandline.clock import Clock
from strandline.core.metadata.image import MetadataImage
from strandline.errors import QuotaExceededError
from strandline.security.quota import UNLIMITED, WAIT_MS_MAX, Meter, Quota
from strandline.servers.connections import ConnectionLimit
from strandline.telemetry import Telemetry

MS_PER_S = 1e3
WAIT_S_MAX = WAIT_MS_MAX / MS_PER_S
"""The longest wait; the caller then asks again, with a size of 0."""


@contextmanager
def counted(allowance: "Allowance | None") -> Iterator[None]:
    """Count one connection of a principal for the duration of the context.

    Raises:
        QuotaExceededError: the principal has too many connections.
    """
    if allowance is None:
        yield
        return
    allowance.open()
    try:
        yield
    finally:
        allowance.close()


class Presence:
    """The principals that use a connection, each counted from its first call until the end."""

    def __init__(self) -> None:
        self._of: set[Allowance] = set()

    def note(self, allowance: "Allowance") -> None:
        """Count the connection for a principal that calls on it.

        Raises:
            QuotaExceededError: the principal has too many connections.
        """
        if allowance not in self._of:
            allowance.open()
            self._of.add(allowance)

    @property
    def principals(self) -> list[str]:
        """The principals that have called on this connection; any thread."""
        return sorted(allowance.principal for allowance in list(self._of))

    def end(self) -> None:
        """Stop counting the connection, because it has ended."""
        while self._of:
            self._of.pop().close()


class Metered(Protocol):
    """The parts of a broker that metering needs."""

    @property
    def clock(self) -> Clock:
        """The source of time."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """The broker's metrics."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The current metadata."""
        ...


class Metering:
    """The meters of one broker.

    Args:
        broker: the broker whose metadata holds the quotas.
        connections: the limit of connections over all listeners.
    """

    def __init__(self, broker: Metered, connections: ConnectionLimit | None = None) -> None:
        self._broker = broker
        self.connections = connections or ConnectionLimit()
        self._lock = threading.Lock()
        self._allowances: dict[str, Allowance] = {}

    def of(self, caller: Caller) -> "Allowance | None":
        """Return the caller's allowance; None without access control."""
        principal = caller.principal
        if principal.is_anonymous:
            return None
        with self._lock:
            found = self._allowances.get(principal.name)
            if found is None:
                found = Allowance(principal.name, self._broker)
                self._allowances[principal.name] = found
            return found


class Allowance:
    """The use of a broker by one principal.

    Args:
        principal: the principal's name.
        broker: the broker whose metadata holds the quotas.
    """

    def __init__(self, principal: str, broker: Metered) -> None:
        self.principal = principal
        self._broker = broker
        self._lock = threading.Lock()
        self._meter = Meter()
        self._quotas: dict[str, Quota] | None = None

    @property
    def quota(self) -> Quota:
        """The quota that applies now."""
        with self._lock:
            return self._current().quota

    def publish(self, size: int) -> float:
        """Count published bytes; return for how many seconds no more may be published."""
        with self._lock:
            meter = self._current()
            if not meter.quota.publish_bytes_per_s:
                return 0.0
            wait_ms = meter.publish(size, self._now_ms())
            self._count("quota_published_bytes", size)
            return self._waits(wait_ms)

    def read(self, size: int) -> float:
        """Count bytes to deliver; return for how many seconds they must be held back."""
        with self._lock:
            meter = self._current()
            if not meter.quota.read_bytes_per_s:
                return 0.0
            wait_ms = meter.read(size, self._now_ms())
            self._count("quota_read_bytes", size)
            return self._waits(wait_ms)

    def requests(self, count: int) -> float:
        """Count requests that cannot be rejected; return how many seconds to accept no others."""
        with self._lock:
            meter = self._current()
            if not meter.quota.requests_per_s:
                return 0.0
            return self._waits(meter.requests(count, self._now_ms()))

    def check_request(self) -> None:
        """Count one request.

        Raises:
            QuotaExceededError: there were too many requests; the message says when to retry.
        """
        with self._lock:
            wait_ms = self._current().request(self._now_ms())
        self._refuse(wait_ms, "requests_per_s")

    def check_publish(self, size: int) -> None:
        """Count bytes to publish for a client that cannot be slowed down.

        Raises:
            QuotaExceededError: earlier publishes have used up the quota.
        """
        with self._lock:
            meter = self._current()
            if not meter.quota.publish_bytes_per_s:
                return
            wait_ms = meter.publish(0, self._now_ms())
            if not wait_ms:
                meter.publish(size, self._now_ms())
                self._count("quota_published_bytes", size)
        self._refuse(wait_ms, "publish_bytes_per_s")

    def refused_publish(self) -> QuotaExceededError | None:
        """Return and count the error for a publish above the quota; None if the quota allows it."""
        with self._lock:
            meter, now_ms = self._current(), self._now_ms()
            bytes_ms, requests_ms = meter.publish(0, now_ms), meter.requests(0, now_ms)
        if not bytes_ms and not requests_ms:
            return None
        if bytes_ms >= requests_ms:
            return self._quota_error(bytes_ms, "publish_bytes_per_s")
        return self._quota_error(requests_ms, "requests_per_s")

    def open(self) -> None:
        """Count a connection; call ``close`` when it ends.

        Raises:
            QuotaExceededError: the principal has too many connections.
        """
        with self._lock:
            meter = self._current()
            is_free = meter.connect()
            if not is_free:
                self._count("quota_rejections", 1)
        if not is_free:
            raise QuotaExceededError(
                f"{self.principal} has {meter.connections} connections here, as many as its quota "
                "allows; close one first"
            )

    def close(self) -> None:
        """Stop counting a connection."""
        with self._lock:
            self._meter.disconnect()

    def _current(self) -> Meter:
        """Return the meter with the quota that applies now; the caller holds the lock."""
        quotas = self._broker.image.quotas
        if quotas is not self._quotas:
            self._quotas = quotas
            self._meter.limit(quotas.get(self.principal, UNLIMITED), self._now_ms())
        return self._meter

    def _now_ms(self) -> float:
        return self._broker.clock.monotonic_ms()

    def _waits(self, wait_ms: float) -> float:
        wait_s = wait_ms / MS_PER_S
        if wait_s:
            self._count("quota_wait_seconds", wait_s)
        return wait_s

    def _refuse(self, wait_ms: float, which: str) -> None:
        if wait_ms:
            raise self._quota_error(wait_ms, which)

    def _quota_error(self, wait_ms: float, which: str) -> QuotaExceededError:
        self._count("quota_rejections", 1)
        return QuotaExceededError(
            f"{self.principal} has used up its quota of {which} at this broker; retry in "
            f"{max(1, round(wait_ms))} ms",
            wait_ms=max(1, round(wait_ms)),
        )

    def _count(self, name: str, amount: float) -> None:
        self._broker.telemetry.count_quota(name, self.principal, amount)
