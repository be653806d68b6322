"""Reports of consumer group members that lost their coordinator.

Rules: a report counts for its epoch, once per member. After the coordinator's timeout without a new
report, earlier ones expire. Pure: the caller passes the time.
"""

from collections.abc import Collection


class Reports:
    """The members that reported their coordinator.

    Args:
        timeout_ms: the time after the last report in which reports are valid.
    """

    def __init__(self, *, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._members: dict[tuple[str, int], set[str]] = {}
        self._last_ms: dict[tuple[str, int], float] = {}

    def add(self, group: str, epoch: int, member: str, *, now_ms: float) -> int:
        """Add a member's report; return how many members have reported."""
        key = (group, epoch)
        if now_ms - self._last_ms.get(key, now_ms) > self._timeout_ms:
            self._members.pop(key)
        self._last_ms[key] = now_ms
        members = self._members.setdefault(key, set())
        members.add(member)
        return len(members)

    def keep(self, epochs: Collection[tuple[str, int]]) -> None:
        """Drop reports of other groups and epochs."""
        for key in self._members.keys() - set(epochs):
            del self._members[key], self._last_ms[key]
