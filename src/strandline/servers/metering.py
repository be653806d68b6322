"""Quotas in force at one broker: the meters of its principals, shared by all front ends.

Rules: a principal has one meter, whichever way it comes. Where access is not checked nobody is
known, so nothing is metered and nothing is paid for it. A quota that was set or removed counts from
the next use on, and within a minute for who waits. Any thread may meter; waiting is for the front
end, in its own way.
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
"""Who is told to wait for so long asks again then, with a size of 0."""


@contextmanager
def counted(allowance: "Allowance | None") -> Iterator[None]:
    """What goes on inside is one connection of a principal, if it is known whose.

    Raises:
        QuotaExceededError: it would be one too many.
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
    """One connection on which several principals may call, each of whom it counts for.

    It counts from its first call on until the connection ends.
    """

    def __init__(self) -> None:
        self._of: set[Allowance] = set()

    def note(self, allowance: "Allowance") -> None:
        """Somebody calls on it.

        Raises:
            QuotaExceededError: with it, that principal has one connection too many.
        """
        if allowance not in self._of:
            allowance.open()
            self._of.add(allowance)

    def end(self) -> None:
        """The connection has ended."""
        while self._of:
            self._of.pop().close()


class Metered(Protocol):
    """What of a broker metering needs."""

    @property
    def clock(self) -> Clock:
        """Where the time comes from."""
        ...

    @property
    def telemetry(self) -> Telemetry:
        """Counters."""
        ...

    @property
    def image(self) -> MetadataImage:
        """The metadata as it is now."""
        ...


class Metering:
    """The meters of one broker.

    Args:
        broker: whose metadata holds the quotas.
        connections: counts the clients of all listeners.
    """

    def __init__(self, broker: Metered, connections: ConnectionLimit | None = None) -> None:
        self._broker = broker
        self.connections = connections or ConnectionLimit()
        self._lock = threading.Lock()
        self._allowances: dict[str, Allowance] = {}

    def of(self, caller: Caller) -> "Allowance | None":
        """What an asker may use; None where nobody is known."""
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
    """What one principal may use.

    Args:
        principal: its name.
        broker: whose metadata holds the quotas.
    """

    def __init__(self, principal: str, broker: Metered) -> None:
        self._principal = principal
        self._broker = broker
        self._lock = threading.Lock()
        self._meter = Meter()
        self._quotas: dict[str, Quota] | None = None

    @property
    def quota(self) -> Quota:
        """In force now."""
        with self._lock:
            return self._current().quota

    def publish(self, size: int) -> float:
        """Bytes were published; for how many seconds no more may be."""
        with self._lock:
            meter = self._current()
            if not meter.quota.publish_bytes_per_s:
                return 0.0
            wait_ms = meter.publish(size, self._now_ms())
            self._count("quota_published_bytes", size)
            return self._waits(wait_ms)

    def read(self, size: int) -> float:
        """Bytes are to be delivered; for how many seconds they may not be."""
        with self._lock:
            meter = self._current()
            if not meter.quota.read_bytes_per_s:
                return 0.0
            wait_ms = meter.read(size, self._now_ms())
            self._count("quota_read_bytes", size)
            return self._waits(wait_ms)

    def requests(self, count: int) -> float:
        """Requests came that cannot be refused; for how many seconds no more may be taken."""
        with self._lock:
            meter = self._current()
            if not meter.quota.requests_per_s:
                return 0.0
            return self._waits(meter.requests(count, self._now_ms()))

    def check_request(self) -> None:
        """Count one request.

        Raises:
            QuotaExceededError: it is one too many; the message says when to ask again.
        """
        with self._lock:
            wait_ms = self._current().request(self._now_ms())
        self._refuse(wait_ms, "requests_per_s")

    def check_publish(self, size: int) -> None:
        """Count bytes that are to be published by somebody who cannot be held up.

        Raises:
            QuotaExceededError: what was published before has used up the quota.
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
        """Return why a publish is refused now, which is counted; None: the quota allows it."""
        with self._lock:
            meter, now_ms = self._current(), self._now_ms()
            bytes_ms, requests_ms = meter.publish(0, now_ms), meter.requests(0, now_ms)
        if not bytes_ms and not requests_ms:
            return None
        if bytes_ms >= requests_ms:
            return self._refusal(bytes_ms, "publish_bytes_per_s")
        return self._refusal(requests_ms, "requests_per_s")

    def open(self) -> None:
        """Count a connection; ``close`` it when it ends.

        Raises:
            QuotaExceededError: it is one too many.
        """
        with self._lock:
            meter = self._current()
            is_free = meter.connect()
            if not is_free:
                self._count("quota_refusals", 1)
        if not is_free:
            raise QuotaExceededError(
                f"{self._principal} has {meter.connections} connections here, as many as its quota "
                "allows; close one first"
            )

    def close(self) -> None:
        """A connection that was counted has ended."""
        with self._lock:
            self._meter.disconnect()

    def _current(self) -> Meter:
        """The meter with the quota that is in force now; holding the lock."""
        quotas = self._broker.image.quotas
        if quotas is not self._quotas:
            self._quotas = quotas
            self._meter.limit(quotas.get(self._principal, UNLIMITED), self._now_ms())
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
            raise self._refusal(wait_ms, which)

    def _refusal(self, wait_ms: float, which: str) -> QuotaExceededError:
        self._count("quota_refusals", 1)
        return QuotaExceededError(
            f"{self._principal} has used up its quota of {which} at this broker; retry in "
            f"{max(1, round(wait_ms))} ms",
            wait_ms=max(1, round(wait_ms)),
        )

    def _count(self, name: str, amount: float) -> None:
        self._broker.telemetry.count_quota(name, self._principal, amount)
