"""Reports by members of consumer groups that they have lost their coordinator.

Rules: a member's report counts once, for one epoch. When no new report has come for the timeout,
all earlier ones expire. Pure: the caller passes the time.
"""

from collections.abc import Collection


class Reports:
    """Which members have reported their coordinator.

    Args:
        timeout_ms: reports expire when no new one has come for this time.
    """

    def __init__(self, *, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._members: dict[tuple[str, int], set[str]] = {}
        self._last_ms: dict[tuple[str, int], float] = {}

    def add(self, group: str, epoch: int, member: str, *, now_ms: float) -> int:
        """Add a member's report; return how many members have reported by now."""
        key = (group, epoch)
        if now_ms - self._last_ms.get(key, now_ms) > self._timeout_ms:
            self._members.pop(key)
        self._last_ms[key] = now_ms
        members = self._members.setdefault(key, set())
        members.add(member)
        return len(members)

    def keep(self, epochs: Collection[tuple[str, int]]) -> None:
        """Drop the reports for all other groups and epochs."""
        for key in self._members.keys() - set(epochs):
            del self._members[key], self._last_ms[key]
