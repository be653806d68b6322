"""The inboxes of a consumer's waiting pulls, and which of them have lost their receivers.

Rules: clients subscribe and unsubscribe all the time, and usually that concerns no waiting pull. So
the inboxes are sorted, and only those are checked to which a changed subject or pattern applies.
Inboxes of ended pulls stay in the list until they are the majority.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from typing import Final, Protocol

from strandline.core.consumers.pulls import PullQueue

OUTDATED_MIN: Final = 1_000
AFTER_DOT: Final = b"/"
"""The byte after a dot: all texts that begin with ``a.`` sort before ``a/``."""


class InterestView(Protocol):
    """The known receivers of inboxes."""

    def has_interest(self, inbox: bytes) -> bool:
        """Return whether a client is known to receive an inbox."""
        ...

    def has_lost(self, inbox: bytes) -> bool:
        """Return whether an inbox has lost its receiver a moment ago and has none now."""
        ...


class WaitingInboxes:
    """The inboxes of the pulls in a queue.

    Args:
        leaf: knows the receivers of inboxes.
        pulls: the queue; a pull's token is its inbox.
    """

    def __init__(self, leaf: InterestView, pulls: PullQueue) -> None:
        self._leaf = leaf
        self._pulls = pulls
        self._sorted: list[bytes] = []
        self._known: set[bytes] = set()
        self._seen: set[bytes] = set()
        """Inboxes that had a receiver when they were last checked."""

    def add(self, inbox: bytes) -> None:
        """Add the inbox of a new waiting pull."""
        if self._leaf.has_interest(inbox):
            self._seen.add(inbox)
        else:
            self._seen.discard(inbox)  # an earlier pull had a receiver, this one has none yet
        if inbox in self._known:
            return
        self._known.add(inbox)
        insort(self._sorted, inbox)
        if len(self._sorted) > OUTDATED_MIN + 2 * len(self._pulls):
            self._sorted = [each for each in self._sorted if self._pulls.has(each)]
            self._known = set(self._sorted)
            self._seen &= self._known

    def lost(self, changed: Collection[bytes] | None) -> list[bytes]:
        """Return the inboxes of waiting pulls whose receivers are gone.

        Args:
            changed: subjects and patterns whose receivers have changed; None: any may have.
        """
        lost = []
        for inbox in self._concerned(changed):
            if not self._pulls.has(inbox):
                continue
            if self._leaf.has_interest(inbox):
                self._seen.add(inbox)
            elif inbox in self._seen or self._leaf.has_lost(inbox):
                lost.append(inbox)
        return lost

    def _concerned(self, changed: Collection[bytes] | None) -> Collection[bytes]:
        if changed is None or len(changed) > len(self._sorted):
            return self._sorted
        found: set[bytes] = set()
        for subject in changed:
            if subject.endswith((b".>", b".*")):
                start, end = subject[:-1], subject[:-2] + AFTER_DOT
                first = bisect_left(self._sorted, start)
                found.update(self._sorted[first : bisect_left(self._sorted, end)])
            elif subject in self._known:
                found.add(subject)
        return found
