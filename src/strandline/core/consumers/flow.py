"""Flow control of a push consumer: how many bytes may be on their way to its receiver. Pure.

Rules: once more than half of the window is on its way, the receiver is asked to answer. It answers
in order with the records, so everything that was sent before the request has then arrived, and the
window grows. Nothing is sent while more than the window is on its way. One request waits for its
answer at a time.

Invariant: a full window has a request that waits. ``check`` asserts it.
"""

from collections.abc import Sequence
from typing import Final

WINDOW_BYTES_FIRST: Final = 2 << 20
WINDOW_BYTES_MAX: Final = 32 << 20
"""Both limits are those of nats-server."""


class FlowWindow:
    """The bytes that may be on their way.

    Attributes:
        window_bytes: how many bytes may be on their way.
        sent_bytes: how many bytes are on their way.
        request: the number of the request that waits for its answer; 0: none waits.
    """

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES_FIRST
        self.sent_bytes = 0
        self.request = 0
        self._covered = 0
        """The bytes whose arrival the answer will confirm."""
        self._requests = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing may be sent now."""
        return self.sent_bytes > self.window_bytes

    def send_run(self, sizes: Sequence[int]) -> tuple[int, bool]:
        """Count records that are sent now, until the window is full or a request must follow.

        Returns:
            How many, and whether the request ``request`` must follow the last of them.
        """
        for count, size in enumerate(sizes):
            if self.is_full:
                return count, False
            if self.sent(size):
                return count + 1, True
        return len(sizes), False

    def sent(self, size: int) -> bool:
        """Count a record; return whether the request ``request`` must follow it."""
        self.sent_bytes += size
        if not self.request:
            if self.sent_bytes <= self.window_bytes // 2:
                return False
            self._requests += 1
            self.request = self._requests
            self._covered = self.sent_bytes
            return True
        if self.sent_bytes - self._covered >= self.window_bytes:
            # Else one huge record behind the request would keep the window full for ever.
            self._covered += size
        return False

    def answered(self, request: int) -> bool:
        """Handle an answer; return whether it is to the request that waits."""
        if not self.request or request != self.request:
            return False
        self.sent_bytes = max(0, self.sent_bytes - self._covered)
        self.window_bytes = min(WINDOW_BYTES_MAX, self.window_bytes * 2)
        self.request = self._covered = 0
        return True

    def reset(self) -> None:
        """Begin anew, because there is another receiver."""
        self.window_bytes = WINDOW_BYTES_FIRST
        self.sent_bytes = self.request = self._covered = 0

    def check(self) -> None:
        """Assert the invariant; for tests."""
        assert self.request or not self.is_full
