"""Members of consumer groups that miss their coordinator.

Rules: a report counts for the epoch it names, once a member; when nobody has reported for the
coordinator's timeout, those before count no more. Pure: the caller tells the time.
"""

from collections.abc import Collection


class Reports:
    """Who has reported whose coordinator.

    Args:
        timeout_ms: for how long reports count behind the last one.
    """

    def __init__(self, *, timeout_ms: float) -> None:
        self._timeout_ms = timeout_ms
        self._members: dict[tuple[str, int], set[str]] = {}
        self._last_ms: dict[tuple[str, int], float] = {}

    def add(self, group: str, epoch: int, member: str, *, now_ms: float) -> int:
        """Return a member misses its coordinator; how many do by now."""
        key = (group, epoch)
        if now_ms - self._last_ms.get(key, now_ms) > self._timeout_ms:
            self._members.pop(key)
        self._last_ms[key] = now_ms
        members = self._members.setdefault(key, set())
        members.add(member)
        return len(members)

    def keep(self, epochs: Collection[tuple[str, int]]) -> None:
        """Forget those of other groups and epochs."""
        for key in self._members.keys() - set(epochs):
            del self._members[key], self._last_ms[key]
